//! Memory that the processes of a host share.
//!
//! It is a file without a name: its descriptor goes from process to process over a Unix socket,
//! and nothing is left behind when the last of them ends, however it does. Its size is sealed, so
//! that no process can take pages from under another.

mod ring;
mod share;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub use ring::{INLINE_BYTES_MAX, RecvRing, RingError, RingLayout, SendRing};
pub use share::Offer;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Shared memory, mapped; clones are of the same mapping. Pages are backed when first touched.
///
/// What is behind [`start`](Self::start) other processes read and write at any time.
#[derive(Clone, Debug)]
pub struct SharedMemory(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    file: OwnedFd,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: owns its pages and has no thread affinity.
unsafe impl Send for Mapping {}
// SAFETY: never dereferenced through `&Mapping`.
unsafe impl Sync for Mapping {}

impl SharedMemory {
    /// New memory of `len` bytes, all zero; `name` is what `/proc` shows.
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create(name, flags)?);
        file.set_len(len as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        map(file.into(), len)
    }

    /// Memory that another process created.
    ///
    /// Fails with `InvalidData` where the file's size is not sealed.
    pub fn from_fd(file: OwnedFd) -> io::Result<Self> {
        let file = File::from(file);
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(unfit("its size is not sealed"));
        }
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| unfit("it is too large"))?;
        if len == 0 {
            return Err(unfit("it is empty"));
        }
        map(file.into(), len)
    }

    /// A descriptor of it, to be given to another process.
    pub fn to_fd(&self) -> io::Result<OwnedFd> {
        self.0.file.try_clone()
    }

    /// First byte, at the start of a page. It is mapped while this or a clone lives.
    pub fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    /// Bytes there are, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.0.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` mapped, and the last that has it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

fn map(file: OwnedFd, len: usize) -> io::Result<SharedMemory> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nobody else's memory.
    let start = unsafe {
        mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
    }?;
    let start = NonNull::new(start.cast()).expect("mmap never maps page 0 unasked");
    Ok(SharedMemory(Arc::new(Mapping { file, start, len })))
}

fn unfit(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not to be shared: {why}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let ours = SharedMemory::create("invar-test", 10_000).unwrap();
        let theirs = SharedMemory::from_fd(ours.to_fd().unwrap()).unwrap();
        assert_eq!(theirs.len(), 10_000);
        assert_ne!(ours.start(), theirs.start());
        // SAFETY: both are mapped, and nothing else has them.
        unsafe {
            ours.start().add(9_999).write(7);
            assert_eq!(theirs.start().add(9_999).read(), 7);
        }
    }

    #[test]
    fn memory_that_could_shrink_under_us_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("invar-test", flags).unwrap());
        file.set_len(4096).unwrap();
        let error = SharedMemory::from_fd(file.try_clone().unwrap().into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        fcntl_add_seals(&file, SEALS).unwrap();
        SharedMemory::from_fd(file.into()).unwrap();
    }

    #[test]
    fn a_plain_file_is_refused() {
        let mut file = File::from(memfd_create("invar-test", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(b"bytes").unwrap();
        file.rewind().unwrap();
        SharedMemory::from_fd(file.into()).unwrap_err();
    }
}
