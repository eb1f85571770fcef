//! The sizes of a group: on our own wire the sender writes them along with the immediate, which has
//! but a bit for each buffer.
//!
//! Both ends have a row of eight sizes for each row of the FIFO, behind it in their control
//! memory: the sender for its NIC to read, the receiver for the peer's to write.

use core::sync::atomic::{AtomicU64, Ordering};

use static_assertions::const_assert;

use crate::fifo::{DEPTH_MAX, FIFO_BYTES_MAX, RECVS_MAX, ROW_BYTES};

/// Bytes of a row of sizes: eight `u32`.
pub(super) const SIZES_ROW_BYTES: usize = size_of::<Sizes>();

/// Sizes of the buffers of a row.
pub(super) type Sizes = [u32; RECVS_MAX];

type Words = [AtomicU64; SIZES_ROW_BYTES / 8];

/// Registered memory that a comm needs: the FIFO of `depth` rows, or its shadow, in as many bytes as
/// the longest has; and the sizes of groups going out, or coming in.
pub(crate) const fn control_bytes(depth: usize) -> usize {
    let bytes = depth * (ROW_BYTES + SIZES_ROW_BYTES);
    if bytes < FIFO_BYTES_MAX { FIFO_BYTES_MAX } else { bytes }
}

const_assert!(control_bytes(DEPTH_MAX) <= u32::MAX as usize);

/// Where the sizes begin in the control memory of a FIFO of `depth` rows.
pub(super) const fn sizes_offset(depth: usize) -> usize {
    depth * ROW_BYTES
}

/// Sizes of a row, in memory that a NIC is at work in.
pub(super) struct SizesRow<'a>(&'a Words);

impl<'a> SizesRow<'a> {
    /// Those that lie `offset` bytes into the control memory; `None` where it ends before.
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

    /// Sizes number 2 `i` and 2 `i` + 1.
    #[inline(always)]
    pub(super) fn load_pair(&self, i: usize) -> [u32; 2] {
        let word = u64::from_le(self.0[i].load(Ordering::Acquire));
        [word as u32, (word >> 32) as u32]
    }
}
