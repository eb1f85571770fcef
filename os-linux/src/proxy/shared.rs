//! The pool of operations in memory that processes share.
//!
//! The memory is a file without a name: its descriptor goes to the ranks over a Unix socket, and
//! nothing is left behind when the last process ends, however it does. Its size is sealed, so that
//! no process can take pages from under another.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use invar_core::proxy::{Cell, Head, LOCAL_RANKS_MAX, OPS_PER_RANK, OpPool};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `INVP`, and the version of the layout.
const MAGIC: [u32; 2] = [u32::from_be_bytes(*b"INVP"), 1];
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The head of the memory. After it come a [`Head`] for each rank's free cells, and the cells.
#[repr(C, align(64))]
struct Start {
    magic: [u32; 2],
    nranks: u32,
    posted: Head,
}

/// Operations that ranks and a proxy share; clones are of the same mapping.
#[derive(Clone, Debug)]
pub struct SharedOps(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    file: OwnedFd,
    start: NonNull<Start>,
    nranks: usize,
}

// SAFETY: what is behind `start` is atomic, or not written once the mapping exists.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl SharedOps {
    /// A new pool with all cells free, for 1 to [`LOCAL_RANKS_MAX`] ranks.
    pub fn create(nranks: usize) -> io::Result<Self> {
        let len = len_of(nranks)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("invar-proxy-ops", flags)?);
        file.set_len(len as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        let start = map(file.as_fd(), len)?;
        let header = Start { magic: MAGIC, nranks: nranks as u32, posted: Head::default() };
        // SAFETY: the mapping is as long as `len_of` says, which is at least a `Start`, and new.
        unsafe { start.write(header) };
        let shared = SharedOps(Arc::new(Mapping { file: file.into(), start, nranks }));
        shared.pool().fill();
        Ok(shared)
    }

    /// The pool in memory that another process created.
    ///
    /// Fails with `InvalidData` where the file is no such pool, or its size is not sealed.
    pub fn from_fd(file: OwnedFd) -> io::Result<Self> {
        let file = File::from(file);
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| no_pool("too large"))?;
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(no_pool("its size is not sealed"));
        }
        if len < size_of::<Start>() {
            return Err(no_pool("too small"));
        }
        let start = map(file.as_fd(), len)?;
        // SAFETY: the mapping holds a `Start`, of which any bytes are one.
        let (magic, nranks) = unsafe { ((*start.as_ptr()).magic, (*start.as_ptr()).nranks) };
        if magic != MAGIC || len_of(nranks as usize).ok() != Some(len) {
            // SAFETY: just mapped with this length, and nobody else has it.
            unsafe { munmap(start.as_ptr().cast(), len) }?;
            return Err(no_pool("its header or its size is another"));
        }
        let nranks = nranks as usize;
        Ok(SharedOps(Arc::new(Mapping { file: file.into(), start, nranks })))
    }

    /// The pool.
    pub fn pool(&self) -> OpPool<'_> {
        let Mapping { start, nranks, .. } = *self.0;
        // SAFETY: `len_of` has room for this many heads and cells behind the `Start`, each aligned
        // like it; heads and cells are atomics, for which any bytes are a value; they are mapped
        // while `self` lives.
        let (posted, free, cells) = unsafe {
            let free = start.add(1).cast::<Head>();
            let cells = free.add(nranks).cast::<Cell>();
            (
                &*ptr::from_ref(&(*start.as_ptr()).posted),
                NonNull::slice_from_raw_parts(free, nranks).as_ref(),
                NonNull::slice_from_raw_parts(cells, nranks * OPS_PER_RANK).as_ref(),
            )
        };
        OpPool::new(posted, free, cells).expect("as many cells for each rank")
    }

    /// A descriptor of the memory, to be given to a rank.
    pub fn to_fd(&self) -> io::Result<OwnedFd> {
        self.0.file.try_clone()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Ok(len) = len_of(self.nranks) {
            // SAFETY: exactly what was mapped, and the last that has it.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), len) };
        }
    }
}

/// Bytes of the memory.
fn len_of(nranks: usize) -> io::Result<usize> {
    if !(1..=LOCAL_RANKS_MAX).contains(&nranks) {
        let what = format!("a pool for {nranks} ranks, of 1 to {LOCAL_RANKS_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let of_rank = size_of::<Head>() + OPS_PER_RANK * size_of::<Cell>();
    Ok(size_of::<Start>() + nranks * of_rank)
}

fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<Start>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nobody else's memory.
    let start = unsafe {
        mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
    }?;
    Ok(NonNull::new(start.cast()).expect("mmap never maps page 0 unasked"))
}

fn no_pool(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a proxy's pool of operations: {why}"))
}
