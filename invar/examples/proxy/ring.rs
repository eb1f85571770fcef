//! The memory of one connection, which the kernel of a rank and the proxy both map.
//!
//! ```text
//! 0 tail u64   64 head u64   128 sizes 8 × u32   4096 slots 8 × STEP_BYTES
//! ```
//!
//! To send, the kernel fills and raises `tail`, and the proxy empties and raises `head`; to receive the
//! other way around. Both count steps. A slice of several steps lies in as many slots, one behind the
//! other, and its size stands with the first of them.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use invar_core::math::STEPS;
use invar_linux::shm::SharedMemory;

/// Bytes of a slot.
pub(crate) const STEP_BYTES: usize = 16 << 10;
/// Where the slots begin: on a page.
const SLOTS_AT: usize = 4096;
const SLOTS_BYTES: usize = STEPS as usize * STEP_BYTES;

#[repr(C)]
struct Flags {
    tail: Count,
    head: Count,
    sizes: [AtomicU32; STEPS as usize],
}

/// On a cache line of its own.
#[repr(C, align(64))]
struct Count(AtomicU64);

/// One mapping of it.
pub(crate) struct SharedRing(SharedMemory);

impl SharedRing {
    pub(crate) fn create() -> io::Result<Self> {
        SharedMemory::create("invar-example", SLOTS_AT + SLOTS_BYTES).map(SharedRing)
    }

    /// Maps the memory that another process has created.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let memory = SharedMemory::from_fd(fd)?;
        match memory.len() == SLOTS_AT + SLOTS_BYTES {
            true => Ok(SharedRing(memory)),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "no ring of this example")),
        }
    }

    pub(crate) fn to_fd(&self) -> io::Result<OwnedFd> {
        self.0.to_fd()
    }

    pub(crate) fn slots(&self) -> (NonNull<u8>, usize) {
        (self.slot(0), SLOTS_BYTES)
    }

    /// Where the slot of a step is.
    pub(crate) fn slot(&self, step: u64) -> NonNull<u8> {
        let at = SLOTS_AT + (step % u64::from(STEPS)) as usize * STEP_BYTES;
        // SAFETY: the memory has as many slots.
        unsafe { self.0.start().add(at) }
    }

    /// Steps that are filled.
    pub(crate) fn tail(&self) -> u64 {
        self.flags().tail.0.load(Ordering::Acquire)
    }

    /// Steps that are emptied.
    pub(crate) fn head(&self) -> u64 {
        self.flags().head.0.load(Ordering::Acquire)
    }

    /// How many bytes are in the slice that begins with a step. Another process says so.
    pub(crate) fn size(&self, step: u64) -> u32 {
        self.flags().sizes[(step % u64::from(STEPS)) as usize].load(Ordering::Relaxed)
    }

    /// A slice of `steps` from `step` on is filled.
    pub(crate) fn fill(&self, step: u64, steps: u64, size: u32) {
        self.flags().sizes[(step % u64::from(STEPS)) as usize].store(size, Ordering::Relaxed);
        self.flags().tail.0.store(step + steps, Ordering::Release);
    }

    /// All steps before `end` are emptied.
    pub(crate) fn empty(&self, end: u64) {
        self.flags().head.0.store(end, Ordering::Release);
    }

    fn flags(&self) -> &Flags {
        // SAFETY: the memory begins with flags, which are atomics, so any bytes are a value. It is
        // mapped while `self` lives, and starts at a page.
        unsafe { self.0.start().cast::<Flags>().as_ref() }
    }
}
