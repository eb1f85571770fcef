//! The keys of a row's buffers on the rails of a connection. A slot has room for one key, that of the first
//! rail. The keys of the other rails lie in a table beside the FIFO, and the receiver writes them together
//! with the row.
//!
//! ```text
//! byte  0                            28     32
//!       +----------------------------+------+
//!       | keys of the rails 1 to 7   | idx  |   little-endian, one for each slot of the FIFO
//!       +----------------------------+------+
//! ```
//!
//! `idx` has the low bits of the slot's number. Two writes may arrive in any order, so the sender waits for
//! both.

use core::sync::atomic::{AtomicU64, Ordering};

use static_assertions::const_assert;

use super::sizes::SIZES_ROW_BYTES;
use crate::conn::RAILS_MAX;
use crate::fifo::{DEPTH_MAX, FIFO_BYTES_MAX, RECVS_MAX, ROW_BYTES};

/// The keys of a buffer on all rails.
pub(super) type RailKeys = [u32; RAILS_MAX];

/// Bytes of the keys of one slot.
pub(super) const KEYS_BYTES: usize = size_of::<RailKeys>();
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

/// Offset in the control memory of the keys of a row.
pub(super) const fn keys_offset(row: usize) -> usize {
    ROW_KEYS_OFFSET + row % DEPTH_MAX * KEYS_ROW_BYTES
}

fn words_of(words: &[AtomicU64], row: usize, slot: usize) -> Option<&[AtomicU64; WORDS]> {
    let at = (keys_offset(row) + slot % RECVS_MAX * KEYS_BYTES) / 8;
    words.get(at..)?.first_chunk()
}

/// Fills the keys of a slot in the receiver's shadow. The slot itself has the first key.
pub(super) fn store(words: &[AtomicU64], row: usize, slot: usize, keys: &RailKeys, idx: u64) {
    let Some(words) = words_of(words, row, slot) else { return };
    let [_, k1, k2, k3, k4, k5, k6, k7] = keys.map(u64::from);
    let idx = u64::from(idx as u32);
    let values = [k1 | k2 << 32, k3 | k4 << 32, k5 | k6 << 32, k7 | idx << 32];
    for (word, value) in words.iter().zip(values) {
        word.store(value.to_le(), Ordering::Release);
    }
}

/// The keys of a slot, if they belong to the receive with number `idx`. `first` is the key in the slot.
pub(super) fn load(
    words: &[AtomicU64],
    row: usize,
    slot: usize,
    idx: u64,
    first: u32,
) -> Option<RailKeys> {
    let last = u64::from_le(words_of(words, row, slot)?[WORDS - 1].load(Ordering::Acquire));
    (last >> 32 == u64::from(idx as u32)).then(|| keys(words, row, slot, first))
}

/// The keys of a slot that [`load`] has found before.
pub(super) fn keys(words: &[AtomicU64], row: usize, slot: usize, first: u32) -> RailKeys {
    let Some(words) = words_of(words, row, slot) else { return [first; RAILS_MAX] };
    let word = |i: usize| u64::from_le(words[i].load(Ordering::Relaxed));
    let [a, b, c, d] = [word(0), word(1), word(2), word(3)];
    let halves = [a, a >> 32, b, b >> 32, c, c >> 32, d].map(|half| half as u32);
    let [k1, k2, k3, k4, k5, k6, k7] = halves;
    [first, k1, k2, k3, k4, k5, k6, k7]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TABLE_WORDS: usize = ROW_KEYS_END / 8;

    proptest! {
        #[test]
        fn stored_keys_read_back_once_their_number_is_there(
            keys: RailKeys, row in 0..DEPTH_MAX, slot in 0..RECVS_MAX, idx: u64,
        ) {
            let words = [const { AtomicU64::new(0) }; TABLE_WORDS];
            store(&words, row, slot, &keys, idx);
            prop_assert_eq!(load(&words, row, slot, idx, keys[0]), Some(keys));
            prop_assert_eq!(load(&words, row, slot, idx.wrapping_add(1), keys[0]), None);
        }
    }
}
