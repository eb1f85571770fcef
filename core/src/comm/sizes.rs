//! The sizes of a group. On Invar's own wire the sender writes them together with the immediate,
//! because the immediate has only one bit for each buffer.
//!
//! Both ends keep one row of eight sizes for each row of the FIFO, in the control memory behind the
//! FIFO. The sender's NIC reads the sender's copy; the peer writes the receiver's copy.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::fifo::{RECVS_MAX, ROW_BYTES};

/// Bytes of a row of sizes: eight `u32`.
pub(super) const SIZES_ROW_BYTES: usize = size_of::<Sizes>();

/// The sizes of a row's buffers.
pub(super) type Sizes = [u32; RECVS_MAX];

type Words = [AtomicU64; SIZES_ROW_BYTES / 8];

/// Offset of the sizes in the control memory of a FIFO of `depth` rows.
pub(super) const fn sizes_offset(depth: usize) -> usize {
    depth * ROW_BYTES
}

/// The sizes of one row, in memory that a NIC reads or writes at the same time.
pub(super) struct SizesRow<'a>(&'a Words);

impl<'a> SizesRow<'a> {
    /// The sizes that lie `offset` bytes into the control memory; `None` if the memory is too short.
    #[inline(always)]
    pub(super) fn at(words: &'a [AtomicU64], offset: usize) -> Option<Self> {
        words.as_chunks().0.get(offset / SIZES_ROW_BYTES).map(SizesRow)
    }

    #[inline(always)]
    pub(super) fn store(&self, sizes: &Sizes) {
        for (word, [low, high]) in self.0.iter().zip(sizes.as_chunks().0) {
            let pair = u64::from(*low) | u64::from(*high) << 32;
            word.store(pair.to_le(), Ordering::Release);
        }
    }

    /// The sizes number 2 `i` and 2 `i` + 1.
    #[inline(always)]
    pub(super) fn load_pair(&self, i: usize) -> [u32; 2] {
        let word = u64::from_le(self.0[i].load(Ordering::Acquire));
        [word as u32, (word >> 32) as u32]
    }
}
