//! Host memory that a NIC may read and write.
//!
//! A NIC, a peer across the network, and other threads change these bytes at any time, without the
//! compiler's knowledge. A `&[u8]` into them would promise the opposite, so safe code never gets one.
//! Safe code has three ways of access: copies in and out ([`HostMemory::write_at`],
//! [`HostMemory::read_at`]), the content as atomic words ([`Memory::words`]), and an opaque piece of a
//! gather list ([`HostMemory::gather`]) for the kernel to read.
//!
//! # Why this is sound
//!
//! Every byte of an allocated region belongs to one aligned 8-byte cell. All code in this process
//! accesses the byte only through atomic operations on exactly that cell: loads and stores of whole
//! words, and compare-and-swap for parts of words. So there is no data race, and no race between atomics
//! of different widths, whatever safe code does. Devices and the kernel (which reads gather lists) are
//! outside of the program and see what atomics guarantee them.
//!
//! Memory of a host application ([`HostMemory::from_raw`]) may start and end at any byte, with ordinary
//! data of the application next to it. There, parts of words are copied byte by byte, so that no copy
//! writes back a neighbour's bytes. A connection over TCP knows where a message is, and not in which region. So it
//! copies the first and the last part of a word byte by byte in each region: on the processors that Invar
//! supports such an atomic byte may meet an atomic word of another thread, though Rust's rules leave it open.
//!
//! Bulk copies are as fast as `memcpy`; `memory/copy.rs` explains how.

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

/// Regions of at least this size ask for transparent huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A range of host memory; clones share it. The [module](self) explains the allowed accesses.
#[derive(Clone, Debug)]
pub struct HostMemory {
    start: NonNull<u8>,
    len: usize,
    words: NonNull<[AtomicU64]>,
    edges: Edges,
    // The owner frees the bytes when the last clone goes.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: Only atomic operations (module documentation) and the kernel dereference `start`. The owner
// keeps the memory valid, wherever the last clone is dropped.
unsafe impl Send for HostMemory {}
// SAFETY: Only atomic operations and the kernel access the memory, and no method needs exclusive access.
unsafe impl Sync for HostMemory {}

/// A range that exceeds its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..+{len} asked of a region of {region_len} bytes")]
pub struct OutOfRange {
    /// Offset of the first requested byte.
    pub offset: usize,
    /// Number of requested bytes.
    pub len: usize,
    /// Length of the region in bytes.
    pub region_len: usize,
}

impl HostMemory {
    /// Allocates zeroed, page-aligned memory from the kernel. The kernel backs pages when they are first
    /// touched.
    ///
    /// The call fails with the error of `mmap(2)`: `ENOMEM` if there is no room for `len` bytes.
    pub fn alloc(len: usize) -> io::Result<Self> {
        let mapping = Mapping::new(len)?;
        let (start, words) = (mapping.start, whole_words(mapping.start, len));
        Ok(HostMemory { start, len, words, edges: Edges::Words, _owner: Arc::new(mapping) })
    }

    /// Allocates memory for `Nic::alloc` and returns a NIC's type of error.
    pub fn for_nic(len: usize) -> Result<Self, NicError> {
        HostMemory::alloc(len).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            NicError::new(Verb::AllocMemory, errno, "mmap of anonymous memory")
        })
    }

    /// Wraps memory of the host application. The last clone drops `keep_alive`.
    ///
    /// # Safety
    ///
    /// - Until `keep_alive` is dropped, `start..start + len` is valid for reads on every thread. It is
    ///   also valid for writes if [`write_at`](Self::write_at) or a registration lets anything write.
    /// - While a copy or transfer writes bytes, nobody else accesses them. While a copy or transfer
    ///   reads bytes, nobody else writes them. Atomic operations on whole aligned 8-byte words are an
    ///   exception to both.
    pub unsafe fn from_raw(
        start: NonNull<u8>,
        len: usize,
        keep_alive: impl Any + Send + Sync,
    ) -> Self {
        let words = whole_words(start, len);
        HostMemory { start, len, words, edges: Edges::Bytes, _owner: Arc::new(keep_alive) }
    }

    /// Returns a pointer to the first byte. Dereferencing it is subject to the rules of the
    /// [module](self).
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Copies `bytes` in, from lower addresses to higher ones.
    ///
    /// One atomic store writes each aligned 8-byte word that the range covers entirely. The store of the
    /// last word, or of a part of it, has release ordering. So a reader with acquire ordering that sees
    /// the new last word sees all of `bytes`, through [`words`](Memory::words) or
    /// [`read_at`](Self::read_at). A reader can therefore poll a slot whose last word is its sequence
    /// number.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.check(offset, bytes.len())?;
        // SAFETY: The range is in the region, which stays valid while `self` lives. All accesses to the
        // region use the cells of `self.edges` (module documentation, `from_raw`).
        unsafe { copy::write(self.start.add(offset), bytes, self.edges) };
        Ok(())
    }

    /// Copies bytes out with acquire ordering: if they show the end of a [`write_at`](Self::write_at),
    /// later reads show all of it.
    ///
    /// If a word changes during the copy, the copy sees the old or the new word, never a mixture.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        self.check(offset, bytes.len())?;
        // SAFETY: The range is in the region, which stays valid while `self` lives. All accesses to the
        // region use the cells of `self.edges`.
        unsafe { copy::read(self.start.add(offset), bytes, self.edges) };
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Replaces an 8-byte word by one atomic operation and returns the word before. `None` means that the
    /// word lies outside the region or is not aligned.
    pub fn update_at(&self, offset: usize, change: impl Fn(u64) -> u64) -> Option<u64> {
        self.check(offset, size_of::<u64>()).ok()?;
        // SAFETY: `check` ensures that the word is within the region.
        let word = unsafe { self.start.add(offset) }.cast::<AtomicU64>();
        if !word.is_aligned() {
            return None;
        }
        // SAFETY: The word is aligned and in the region, which stays valid while `self` lives. All
        // accesses to aligned words of the region are atomic accesses of these words.
        let word = unsafe { word.as_ref() };
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        word.fetch_update(set, fetch, |word| Some(change(word))).ok()
    }

    /// Returns a range as a piece of a gather list, for the kernel to read.
    pub fn gather(&self, range: Range<usize>) -> Result<Gather<'_>, OutOfRange> {
        let len = range.len();
        self.check(range.start, len)?;
        // SAFETY: `check` ensures that the start is within the region.
        let start = unsafe { self.start.add(range.start) };
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

    /// Returns the whole words of the region; memory of a host application that is not 8-byte aligned
    /// has none.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `whole_words` returns aligned words within the region, which is valid while `self`
        // lives. All accesses to whole words are atomic accesses of these words (module documentation,
        // `from_raw`).
        unsafe { self.words.as_ref() }
    }
}

/// Returns the whole words of a region; an unaligned region has none.
fn whole_words(start: NonNull<u8>, len: usize) -> NonNull<[AtomicU64]> {
    let start = start.cast::<AtomicU64>();
    if start.is_aligned() {
        NonNull::slice_from_raw_parts(start, len / size_of::<AtomicU64>())
    } else {
        NonNull::slice_from_raw_parts(NonNull::dangling(), 0)
    }
}

/// A piece of a gather list (`struct iovec`): bytes that the kernel reads during a system call. The
/// bytes may change during the call.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Gather<'a> {
    iovec: libc::iovec,
    borrowed: PhantomData<&'a [u8]>,
}

// SAFETY: The value stands for a shared borrow, and no code in the program reads the bytes through it.
unsafe impl Send for Gather<'_> {}
// SAFETY: The value stands for a shared borrow, and no code in the program reads the bytes through it.
unsafe impl Sync for Gather<'_> {}

impl<'a> Gather<'a> {
    /// Makes a piece from bytes that do not change.
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Gather::new(NonNull::from(bytes).cast(), bytes.len())
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.iovec.iov_len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes a piece from bytes that may change.
    ///
    /// # Safety
    ///
    /// The bytes are valid for reads by the kernel while the piece lives.
    pub(crate) unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Self {
        Gather::new(start, len)
    }

    /// Returns the part `range` of this piece, cut off at the piece's end.
    pub fn part(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        let base = self.iovec.iov_base.cast::<u8>().wrapping_add(start);
        Gather {
            iovec: libc::iovec { iov_base: base.cast(), iov_len: end - start },
            borrowed: PhantomData,
        }
    }

    /// Appends `next` if it begins where this piece ends. Returns whether it did.
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
    /// Makes a piece from exclusively borrowed bytes.
    pub(crate) fn bytes(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        // SAFETY: The bytes are borrowed for writing as long as the piece lives.
        unsafe { Scatter::from_raw(NonNull::from(bytes).cast(), len) }
    }

    /// Makes a piece from bytes that others may read.
    ///
    /// # Safety
    ///
    /// The bytes are valid for writes by the kernel while the piece lives.
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

/// Anonymous memory of the kernel, in whole pages.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: The value owns its pages, which belong to no thread.
unsafe impl Send for Mapping {}
// SAFETY: Nobody dereferences the pointer through `&Mapping`.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> io::Result<Self> {
        // mmap refuses a length of 0.
        let len =
            len.max(1).checked_next_multiple_of(page_size()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: A new mapping at an address of the kernel's choice overlaps no other memory.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        if len >= HUGE_PAGE_BYTES {
            // The advice is only a hint: a kernel without huge pages refuses it without harm.
            // SAFETY: The mapping is our own, and the advice does not change its content.
            let _ = unsafe { madvise(start, len, Advice::LinuxHugepage) };
        }
        let start = NonNull::new(start.cast()).expect("mmap never maps page 0 unasked");
        Ok(Mapping { start, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this range, and nobody holds it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

#[cfg(test)]
mod tests;
