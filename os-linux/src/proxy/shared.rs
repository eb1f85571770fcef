//! The pool of operations in shared memory.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use invar_core::proxy::{Cell, Head, LOCAL_RANKS_MAX, OPS_PER_RANK, OpPool};

use crate::shm::SharedMemory;

/// The bytes `INVP` and the version of the layout.
const MAGIC: [u32; 2] = [u32::from_be_bytes(*b"INVP"), 1];

/// The start of the memory. A [`Head`] for each rank's free cells follows it, then the cells.
#[repr(C, align(64))]
struct Start {
    magic: [u32; 2],
    nranks: u32,
    posted: Head,
}

/// Operations that ranks and a proxy share; clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct SharedOps {
    memory: SharedMemory,
    nranks: usize,
}

impl SharedOps {
    /// Creates a pool with free cells only, for 1 to [`LOCAL_RANKS_MAX`] ranks.
    pub fn create(nranks: usize) -> io::Result<Self> {
        let memory = SharedMemory::create("invar-proxy-ops", len_of(nranks)?)?;
        let header = Start { magic: MAGIC, nranks: nranks as u32, posted: Head::default() };
        let shared = SharedOps { memory, nranks };
        // SAFETY: The memory is new, and its length by `len_of` is at least that of a `Start`.
        unsafe { shared.start().write(header) };
        shared.pool().fill();
        Ok(shared)
    }

    /// Opens the pool in memory that another process created.
    ///
    /// The call fails with `InvalidData` if the file is no such pool or its size is not sealed.
    pub fn from_fd(file: OwnedFd) -> io::Result<Self> {
        let memory = SharedMemory::from_fd(file)?;
        if memory.len() < size_of::<Start>() {
            return Err(no_pool("too small"));
        }
        let start = memory.start().cast::<Start>();
        // SAFETY: The memory is long enough for a `Start`, and any bytes are a valid `Start`.
        let (magic, nranks) = unsafe { ((*start.as_ptr()).magic, (*start.as_ptr()).nranks) };
        let nranks = nranks as usize;
        if magic != MAGIC || len_of(nranks).ok() != Some(memory.len()) {
            return Err(no_pool("its header or its size is another"));
        }
        Ok(SharedOps { memory, nranks })
    }

    /// Returns the pool.
    pub fn pool(&self) -> OpPool<'_> {
        let (start, nranks) = (self.start(), self.nranks);
        // SAFETY: By `len_of`, the memory has room for this many heads and cells after the `Start`, with
        // their alignment. Heads and cells consist of atomics, for which any bytes are valid. The memory
        // stays mapped while `self` lives.
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

    /// Returns a descriptor of the memory, to send to a rank.
    pub fn to_fd(&self) -> io::Result<OwnedFd> {
        self.memory.to_fd()
    }

    fn start(&self) -> NonNull<Start> {
        self.memory.start().cast()
    }
}

/// Returns the length of the memory in bytes.
fn len_of(nranks: usize) -> io::Result<usize> {
    if !(1..=LOCAL_RANKS_MAX).contains(&nranks) {
        let what = format!("a pool for {nranks} ranks, of 1 to {LOCAL_RANKS_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let of_rank = size_of::<Head>() + OPS_PER_RANK * size_of::<Cell>();
    Ok(size_of::<Start>() + nranks * of_rank)
}

fn no_pool(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a proxy's pool of operations: {why}"))
}
