//! The keys of a row's buffers on the rails of a connection. A slot has room for one key, that of the first
//! rail. The receiver writes the keys of the other rails together with the row. The keys of a row of one slot
//! lie behind this slot, so that one WRITE carries both. The keys of longer rows lie in a table beside the FIFO.
//!
//! ```text
//! byte  0                            28     32
//!       +----------------------------+------+
//!       | keys of the rails 1 to 7   | idx  |   little-endian, one for each slot of the FIFO
//!       +----------------------------+------+
//! ```
//!
//! `idx` has the low bits of the slot's number. A row and its keys may arrive in any order, so the sender waits
//! for both.

use core::sync::atomic::{AtomicU64, Ordering};

use static_assertions::const_assert;

use super::sizes::SIZES_ROW_BYTES;
use crate::conn::RAILS_MAX;
use crate::fifo::{DEPTH_MAX, FIFO_BYTES_MAX, RECVS_MAX, ROW_BYTES, SLOT_BYTES};
use crate::mutant::{Mutant, is_planted};

/// The keys of a buffer on all rails.
pub(super) type RailKeys = [u32; RAILS_MAX];

/// Bytes of the keys of one slot.
pub(crate) const KEYS_BYTES: usize = size_of::<RailKeys>();
/// Bytes of the keys of a row.
pub(super) const KEYS_ROW_BYTES: usize = KEYS_BYTES * RECVS_MAX;
/// Offset of the table in the control memory. It is the same for FIFOs of any length.
pub(super) const ROW_KEYS_OFFSET: usize = FIFO_BYTES_MAX + DEPTH_MAX * SIZES_ROW_BYTES;
/// Bytes of control memory with a table.
pub(super) const ROW_KEYS_END: usize = ROW_KEYS_OFFSET + DEPTH_MAX * KEYS_ROW_BYTES;

const WORDS: usize = KEYS_BYTES / 8;

/// Bytes of registered memory that a comm needs. The FIFO of `depth` rows, or its shadow, takes at
/// least as many bytes as the longest FIFO. The sizes of outgoing or incoming groups lie behind it. If the
/// NIC has several rails, the keys of the rows' buffers follow.
pub(crate) const fn control_bytes(depth: usize, rails_max: usize) -> usize {
    if rails_max > 1 {
        return ROW_KEYS_END;
    }
    let bytes = depth * (ROW_BYTES + SIZES_ROW_BYTES);
    if bytes < FIFO_BYTES_MAX { FIFO_BYTES_MAX } else { bytes }
}

const_assert!(control_bytes(DEPTH_MAX, 1) <= ROW_KEYS_OFFSET);
const_assert!(ROW_KEYS_END <= u32::MAX as usize);

/// Offset in the control memory of the keys of a row of `nreqs` slots.
pub(super) const fn keys_offset(row: usize, nreqs: usize) -> usize {
    let row = row % DEPTH_MAX;
    if nreqs == 1 { row * ROW_BYTES + SLOT_BYTES } else { ROW_KEYS_OFFSET + row * KEYS_ROW_BYTES }
}

/// The keys of a slot in memory.
pub(super) struct SlotKeys<'a>(&'a [AtomicU64; WORDS]);

impl<'a> SlotKeys<'a> {
    /// The keys of a slot of a row of `nreqs` slots; `None` if the memory is too short.
    #[inline(always)]
    pub(super) fn of(
        words: &'a [AtomicU64],
        row: usize,
        nreqs: usize,
        slot: usize,
    ) -> Option<Self> {
        let at = (keys_offset(row, nreqs) + slot % RECVS_MAX * KEYS_BYTES) / 8;
        words.get(at..)?.first_chunk().map(SlotKeys)
    }

    /// Fills the receiver's shadow. The slot itself has the first key.
    #[inline(always)]
    pub(super) fn store(&self, keys: &RailKeys, idx: u64) {
        let [_, k1, k2, k3, k4, k5, k6, k7] = keys.map(u64::from);
        let idx = u64::from(idx as u32);
        let values = [k1 | k2 << 32, k3 | k4 << 32, k5 | k6 << 32, k7 | idx << 32];
        for (word, value) in self.0.iter().zip(values) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// Whether the keys are those of the receive with number `idx`.
    #[inline(always)]
    pub(super) fn are_there(&self, idx: u64) -> bool {
        let last = u64::from_le(self.0[WORDS - 1].load(Ordering::Acquire));
        is_planted(Mutant::UseOldKeys) || last >> 32 == u64::from(idx as u32)
    }

    /// The key of a rail. `first` is the key in the slot.
    #[inline(always)]
    pub(super) fn key(&self, rail: usize, first: u32) -> u32 {
        let Some(at) = (rail % RAILS_MAX).checked_sub(1) else { return first };
        let word = u64::from_le(self.0[at / 2].load(Ordering::Relaxed));
        (word >> (at % 2 * 32)) as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TABLE_WORDS: usize = ROW_KEYS_END / 8;

    proptest! {
        #[test]
        fn stored_keys_read_back_once_their_number_is_there(
            keys: RailKeys,
            row in 0..DEPTH_MAX,
            (nreqs, slot) in (1..=RECVS_MAX).prop_flat_map(|nreqs| (Just(nreqs), 0..nreqs)),
            idx: u64,
        ) {
            let words = [const { AtomicU64::new(0) }; TABLE_WORDS];
            let there = SlotKeys::of(&words, row, nreqs, slot).unwrap();
            there.store(&keys, idx);
            prop_assert!(there.are_there(idx) && !there.are_there(idx.wrapping_add(1)));
            let read: RailKeys = core::array::from_fn(|rail| there.key(rail, keys[0]));
            prop_assert_eq!(read, keys);
        }
    }
}
