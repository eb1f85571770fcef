//! The slots of one end of a link, and how far they are used.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use invar_core::math::STEPS;

use crate::{Device, Error, MemoryRegion};

/// Slots of a ring.
pub(super) const SLOTS: usize = STEPS as usize;
/// Bytes that a slot may have.
pub(super) const SLOT_BYTES_MAX: usize = 128 << 20;
const _: () = assert!(SLOT_BYTES_MAX.checked_mul(SLOTS).is_some());

/// Registered memory in slots, between a rank and its proxy: one fills the next slot, the other
/// uses it and gives it back. Step `n` is in slot `n` modulo [`SLOTS`], at both ends.
///
/// To send, the rank fills and the network uses; to receive, the network fills and the rank uses.
pub(super) struct Ring {
    region: MemoryRegion,
    start: NonNull<u8>,
    slot_bytes: usize,
    lens: [AtomicU32; SLOTS],
    filled: Count,
    used: Count,
    settled: Count,
}

// SAFETY: `start` is the region's, which is freed with the ring; who may access a slot is agreed
// by the counts, and what is behind them is for the holders of the pointers to see to.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// Steps, counted by one side and seen by the other, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Count(AtomicU64);

impl Count {
    fn set(&self, steps: u64) {
        self.0.store(steps, Ordering::Release);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl Ring {
    /// Slots of at most [`SLOT_BYTES_MAX`].
    pub(super) fn new(device: &Device, slot_bytes: usize) -> Result<Self, Error> {
        let region = MemoryRegion::new(device, slot_bytes * SLOTS)?;
        let start = region.host_start().expect("a new region is the host's");
        let (lens, filled, used, settled) = Default::default();
        Ok(Ring { region, start, slot_bytes, lens, filled, used, settled })
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub(super) fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Where the slot of a step is.
    #[inline]
    pub(super) fn slot(&self, step: u64) -> NonNull<u8> {
        // SAFETY: the region has as many slots.
        unsafe { self.start.add(index(step) * self.slot_bytes) }
    }

    /// A step is filled with as many bytes; the next is `step + 1`.
    #[inline]
    pub(super) fn fill(&self, step: u64, len: u32) {
        debug_assert_eq!(self.filled.get(), step, "slots are filled in turn");
        self.lens[index(step)].store(len, Ordering::Relaxed);
        self.filled.set(step + 1);
    }

    /// How many bytes a step has that is filled.
    #[inline]
    pub(super) fn filled(&self, step: u64) -> Option<u32> {
        (self.filled.get() > step).then(|| self.lens[index(step)].load(Ordering::Relaxed))
    }

    /// A step is used, and its slot free for the one of the next turn.
    #[inline]
    pub(super) fn give_back(&self, step: u64) {
        debug_assert_eq!(self.used.get(), step, "slots are given back in turn");
        self.used.set(step + 1);
    }

    /// Steps that are used.
    #[inline]
    pub(super) fn used(&self) -> u64 {
        self.used.get()
    }

    /// To send: a step needs no more help of this rank to get to the peer.
    #[inline]
    pub(super) fn settle(&self, step: u64) {
        self.settled.set(step + 1);
    }

    /// Steps of which that is so.
    #[inline]
    pub(super) fn settled(&self) -> u64 {
        self.settled.get()
    }
}

#[inline]
fn index(step: u64) -> usize {
    (step % SLOTS as u64) as usize
}
