//! Memory that the processes of a host share.
//!
//! The memory is an unnamed file. Its descriptor goes from process to process over a Unix socket.
//! Nothing is left behind when the last process ends, whatever ends it. The size of the file is sealed,
//! so no process can take pages away from another.

mod bell;
mod ring;
mod share;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, getrlimit};

pub use bell::{BELL_BYTES, Bell};
pub use ring::{INLINE_BYTES_MAX, RecvRing, RingError, RingLayout, SendRing};
pub use share::Offer;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Mapped shared memory; clones share the mapping. The kernel backs pages when they are first touched.
///
/// Other processes may read and write the bytes behind [`start`](Self::start) at any time.
#[derive(Clone, Debug)]
pub struct SharedMemory(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    file: OwnedFd,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: The value owns its pages, which belong to no thread.
unsafe impl Send for Mapping {}
// SAFETY: Nobody dereferences the pointer through `&Mapping`.
unsafe impl Sync for Mapping {}

impl SharedMemory {
    /// Creates zeroed memory of `len` bytes; `/proc` shows `name`.
    ///
    /// The call fails with `FileTooLarge` if `len` exceeds the process' limit of file sizes.
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        // The kernel kills a process that makes a file longer than the limit (SIGXFSZ).
        let limit = getrlimit(Resource::Fsize).current;
        if let Some(limit) = limit.filter(|limit| *limit < len as u64) {
            let text = format!(
                "{len} bytes of shared memory are a file beyond the limit of {limit} bytes (RLIMIT_FSIZE): \
                 raise the limit, as by ulimit -f unlimited"
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create(name, flags)?);
        file.set_len(len as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        map(file.into(), len)
    }

    /// Maps memory that another process created.
    ///
    /// The call fails with `InvalidData` if the size of the file is not sealed.
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

    /// Returns a descriptor of the memory, to send to another process.
    pub fn to_fd(&self) -> io::Result<OwnedFd> {
        self.0.file.try_clone()
    }

    /// Returns a pointer to the first byte, at the start of a page. The memory stays mapped while this
    /// value or a clone lives.
    pub fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    /// Returns the length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.0.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` mapped exactly this range, and this is its last owner.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

fn map(file: OwnedFd, len: usize) -> io::Result<SharedMemory> {
    // SAFETY: A new mapping at an address of the kernel's choice overlaps no other memory.
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

    use rustix::process::{Rlimit, setrlimit};

    use super::*;

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let ours = SharedMemory::create("invar-test", 10_000).unwrap();
        let theirs = SharedMemory::from_fd(ours.to_fd().unwrap()).unwrap();
        assert_eq!(theirs.len(), 10_000);
        assert_ne!(ours.start(), theirs.start());
        // SAFETY: Both mappings exist, and nothing else uses them.
        unsafe {
            ours.start().add(9_999).write(7);
            assert_eq!(theirs.start().add(9_999).read(), 7);
        }
    }

    /// Whether memory beyond the limit of file sizes is refused, and memory up to the limit is not.
    fn keeps_to_the_limit() -> bool {
        let limit = Rlimit { current: Some(4096), maximum: Some(4096) };
        setrlimit(Resource::Fsize, limit).is_ok()
            && SharedMemory::create("invar-test", 4096).is_ok()
            && SharedMemory::create("invar-test", 4097)
                .is_err_and(|error| error.to_string().contains("4096 bytes (RLIMIT_FSIZE)"))
    }

    #[test]
    fn memory_beyond_the_limit_of_file_sizes_is_refused_and_kills_nobody() {
        // SAFETY: the child calls nothing that needs a lock of another thread, except for the allocator, which is
        // ready for forks.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // The limit is the child's own, so no other test has it.
            let is_kept = keeps_to_the_limit();
            // SAFETY: the call only ends the child.
            unsafe { libc::_exit(i32::from(!is_kept)) };
        }
        let mut status = -1;
        // SAFETY: the status lives longer than the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child's wait status");
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
