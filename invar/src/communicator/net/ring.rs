//! The memory of one end of a link.

use std::ptr::NonNull;

use invar_core::math::STEPS;

use crate::{Device, Error, MemoryRegion};

/// Number of slots of a ring.
pub(super) const SLOTS: usize = STEPS as usize;
/// Most bytes of a slot.
pub(super) const SLOT_BYTES_MAX: usize = 128 << 20;
const _: () = assert!(SLOT_BYTES_MAX.checked_mul(SLOTS).is_some());

/// Registered memory, divided into slots. Step `n` uses slot `n` modulo [`SLOTS`].
pub(super) struct LinkRing {
    region: MemoryRegion,
    start: NonNull<u8>,
    slot_bytes: usize,
    /// The address by which the device knows the first slot.
    addr: u64,
}

// SAFETY: `start` belongs to the region, which is freed with the ring. The link that owns the ring
// decides who accesses a slot, on whichever thread.
unsafe impl Send for LinkRing {}

impl LinkRing {
    /// Creates a ring with slots of at most [`SLOT_BYTES_MAX`].
    pub(super) fn new(device: &Device, slot_bytes: usize) -> Result<Self, Error> {
        let region = MemoryRegion::new(device, slot_bytes * SLOTS)?;
        let start = region.host_start().expect("a new region is the host's");
        let (addr, _) = region.locate(region.device(), &(0..slot_bytes))?;
        Ok(LinkRing { region, start, slot_bytes, addr })
    }

    #[inline]
    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns the memory of the slot of a step.
    #[inline]
    pub(super) fn slot(&self, step: u64) -> NonNull<u8> {
        // SAFETY: the index is below the number of slots in the region.
        unsafe { self.start.add(index(step) * self.slot_bytes) }
    }

    /// Returns the address by which the device knows the slot of a step.
    #[inline]
    pub(super) fn addr(&self, step: u64) -> u64 {
        self.addr + (index(step) * self.slot_bytes) as u64
    }

    #[inline]
    pub(super) fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    #[inline]
    pub(super) fn rkey(&self) -> u32 {
        self.region.rkey()
    }
}

/// Returns the index of a step's slot.
#[inline]
pub(super) fn index(step: u64) -> usize {
    (step % SLOTS as u64) as usize
}
