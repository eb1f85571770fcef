//! Host memory that a NIC may read and write.
//!
//! A NIC, a peer across the network, and other threads change these bytes at any time, and no
//! compiler knows. A `&[u8]` into them would promise the opposite, so safe code never gets one.
//! It gets three things: copies in and out ([`HostMemory::write_at`], [`HostMemory::read_at`]),
//! the content as atomic words ([`Memory::words`]), and an opaque piece of a gather list
//! ([`HostMemory::gather`]) for the kernel to read.
//!
//! # Why this is sound
//!
//! Every byte of an allocated region belongs to one aligned 8-byte cell, and whatever runs in
//! this process touches it only through atomic operations of exactly that cell: whole words by
//! loads and stores, parts of words by compare-and-swap. There is thus no data race, and no race
//! between atomics of different widths, whatever safe code does. Devices and the kernel (which
//! reads gather lists) stand outside of the program and see what atomics promise them.
//!
//! Memory of a host application ([`HostMemory::from_raw`]) has its edges where the application
//! wants them, and plain code next to them. There parts of words are copied byte by byte, so that
//! not even a neighbour's value is written back.
//!
//! Bulk copies are as fast as `memcpy`; `memory/copy.rs` says how.

mod copy;

use std::any::Any;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use invar_core::nic::{Memory, NicError, Verb};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::env::page_size;
use copy::Edges;

/// Regions from this size on ask for transparent huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A range of host memory; clones share it. See the [module](self) for what may be done with it.
#[derive(Clone, Debug)]
pub struct HostMemory {
    start: NonNull<u8>,
    len: usize,
    words: NonNull<[AtomicU64]>,
    edges: Edges,
    // Frees the bytes when the last clone goes.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: `start` is only dereferenced by atomic operations (module documentation) and by the
// kernel; the owner keeps it valid wherever the last clone is dropped.
unsafe impl Send for HostMemory {}
// SAFETY: as above; no method needs exclusive access.
unsafe impl Sync for HostMemory {}

/// A range that does not lie within its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..+{len} asked of a region of {region_len} bytes")]
pub struct OutOfRange {
    /// First byte asked for.
    pub offset: usize,
    /// Bytes asked for.
    pub len: usize,
    /// Bytes there are.
    pub region_len: usize,
}

impl HostMemory {
    /// Zeroed memory, page-aligned, from the kernel. Pages are backed when first touched.
    ///
    /// Fails with the error of `mmap(2)`: `ENOMEM` where there is no room for `len` bytes.
    pub fn alloc(len: usize) -> io::Result<Self> {
        let mapping = Mapping::new(len)?;
        let (start, words) = (mapping.start, whole_words(mapping.start, len));
        Ok(HostMemory { start, len, words, edges: Edges::Words, _owner: Arc::new(mapping) })
    }

    /// Allocates memory for `Nic::alloc`, with a NIC's kind of error.
    pub fn for_nic(len: usize) -> Result<Self, NicError> {
        HostMemory::alloc(len).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            NicError::new(Verb::AllocMemory, errno, "mmap of anonymous memory")
        })
    }

    /// Memory of the host application. `keep_alive` is dropped with the last clone.
    ///
    /// # Safety
    ///
    /// - Until `keep_alive` is dropped, `start..start + len` is valid for reads on every thread,
    ///   and for writes if [`write_at`](Self::write_at) or a registration lets anything write.
    /// - Bytes that a copy or a transfer under way writes are not accessed by anyone else, and
    ///   bytes that it reads are not written by anyone else, except by atomic operations on whole
    ///   aligned 8-byte words.
    pub unsafe fn from_raw(
        start: NonNull<u8>,
        len: usize,
        keep_alive: impl Any + Send + Sync,
    ) -> Self {
        let words = whole_words(start, len);
        HostMemory { start, len, words, edges: Edges::Bytes, _owner: Arc::new(keep_alive) }
    }

    /// First byte. Dereferencing it is subject to the rules of the [module](self).
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Copies `bytes` in, from lower addresses to higher.
    ///
    /// Each aligned 8-byte word that the range covers whole is written by one atomic store, and
    /// the last word (or part of one) has release ordering: whoever reads it with acquire
    /// ordering, by [`words`](Memory::words) or [`read_at`](Self::read_at), and sees the new
    /// value, sees all of `bytes`. A slot whose last word is its sequence number can be polled.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.check(offset, bytes.len())?;
        // SAFETY: the range is in the region, which stays valid while `self` lives and is
        // accessed by the cells of `self.edges` only (module documentation, `from_raw`).
        unsafe { copy::write(self.start.add(offset), bytes, self.edges) };
        Ok(())
    }

    /// Copies bytes out, with acquire ordering: if they show the end of a
    /// [`write_at`](Self::write_at), what is read later shows all of it.
    ///
    /// Words that change meanwhile are seen old or new, never mixed.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        self.check(offset, bytes.len())?;
        // SAFETY: as in `write_at`.
        unsafe { copy::read(self.start.add(offset), bytes, self.edges) };
        fence(Ordering::Acquire);
        Ok(())
    }

    /// A range as a piece of a gather list, to be read by the kernel.
    pub fn gather(&self, offset: usize, len: usize) -> Result<Gather<'_>, OutOfRange> {
        self.check(offset, len)?;
        // SAFETY: the offset is within the region.
        let start = unsafe { self.start.add(offset) };
        Ok(Gather::new(start, len))
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), OutOfRange> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(OutOfRange { offset, len, region_len: self.len }),
        }
    }
}

impl Memory for HostMemory {
    fn addr(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    fn len(&self) -> usize {
        self.len
    }

    /// Empty too for memory of a host application that is not 8-byte aligned.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `whole_words` gave aligned words within the region, which is valid while `self`
        // lives, and whole words are accessed as such only (module documentation, `from_raw`).
        unsafe { self.words.as_ref() }
    }
}

/// The whole words of a region; none where it is not aligned.
fn whole_words(start: NonNull<u8>, len: usize) -> NonNull<[AtomicU64]> {
    let start = start.cast::<AtomicU64>();
    if start.is_aligned() {
        NonNull::slice_from_raw_parts(start, len / size_of::<AtomicU64>())
    } else {
        NonNull::slice_from_raw_parts(NonNull::dangling(), 0)
    }
}

/// A piece of a gather list (`struct iovec`): bytes that the kernel reads during a system call
/// and that may be changing meanwhile.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Gather<'a> {
    iovec: libc::iovec,
    borrowed: PhantomData<&'a [u8]>,
}

// SAFETY: stands for a shared borrow of bytes that nothing in the program reads through it.
unsafe impl Send for Gather<'_> {}
// SAFETY: as above.
unsafe impl Sync for Gather<'_> {}

impl<'a> Gather<'a> {
    /// Bytes that do not change.
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Gather::new(NonNull::from(bytes).cast(), bytes.len())
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.iovec.iov_len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that may be changing.
    ///
    /// # Safety
    ///
    /// They are valid for reads by the kernel while the piece lives.
    pub(crate) unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Self {
        Gather::new(start, len)
    }

    /// The part `range` of this piece; the range is cut off at the end.
    pub fn part(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        let base = self.iovec.iov_base.cast::<u8>().wrapping_add(start);
        Gather {
            iovec: libc::iovec { iov_base: base.cast(), iov_len: end - start },
            borrowed: PhantomData,
        }
    }

    /// Takes `next` in, if it begins where this one ends. Says whether it did.
    #[inline]
    pub fn extend(&mut self, next: &Gather<'a>) -> bool {
        let end = self.iovec.iov_base.cast::<u8>().wrapping_add(self.len());
        let adjacent = end.cast() == next.iovec.iov_base;
        if adjacent {
            self.iovec.iov_len += next.len();
        }
        adjacent
    }

    fn new(start: NonNull<u8>, len: usize) -> Self {
        Gather {
            iovec: libc::iovec { iov_base: start.as_ptr().cast(), iov_len: len },
            borrowed: PhantomData,
        }
    }
}

/// A piece of a scatter list (`struct iovec`): bytes that the kernel writes during a system call.
#[repr(transparent)]
pub(crate) struct Scatter<'a> {
    iovec: libc::iovec,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> Scatter<'a> {
    /// Bytes of one's own.
    pub(crate) fn bytes(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        // SAFETY: borrowed for writing as long as the piece lives.
        unsafe { Scatter::from_raw(NonNull::from(bytes).cast(), len) }
    }

    /// Bytes that others may look at.
    ///
    /// # Safety
    ///
    /// They are valid for writes by the kernel while the piece lives.
    pub(crate) unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Self {
        let iovec = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: len };
        Scatter { iovec, borrowed: PhantomData }
    }
}

/// Copies `bytes` to memory of the host application, as [`HostMemory::write_at`] does.
///
/// # Safety
///
/// The caller keeps the promises of [`HostMemory::from_raw`] for the bytes at `to`.
pub(crate) unsafe fn write_raw(to: NonNull<u8>, bytes: &[u8]) {
    // SAFETY: The caller upholds this function's safety contract.
    unsafe { copy::write(to, bytes, Edges::Bytes) };
}

/// Copies bytes out of memory of the host application, as [`HostMemory::read_at`] does.
///
/// # Safety
///
/// The caller keeps the promises of [`HostMemory::from_raw`] for the bytes at `from`.
pub(crate) unsafe fn read_raw(from: NonNull<u8>, bytes: &mut [u8]) {
    // SAFETY: The caller upholds this function's safety contract.
    unsafe { copy::read(from, bytes, Edges::Bytes) };
}

/// Anonymous memory of the kernel, whole pages.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: owns its pages and has no thread affinity.
unsafe impl Send for Mapping {}
// SAFETY: never dereferenced through `&Mapping`.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> io::Result<Self> {
        // mmap refuses a length of 0.
        let len =
            len.max(1).checked_next_multiple_of(page_size()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nobody else's memory.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        if len >= HUGE_PAGE_BYTES {
            // Only a hint: a kernel without huge pages refuses, and nothing is lost.
            // SAFETY: our own mapping; the advice does not change its content.
            let _ = unsafe { madvise(start, len, Advice::LinuxHugepage) };
        }
        let start = NonNull::new(start.cast()).expect("mmap never maps page 0 unasked");
        Ok(Mapping { start, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped, and nobody holds it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

#[cfg(test)]
mod tests;
