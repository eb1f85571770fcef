//! `wr_id` and immediate data: how a completion finds its requests, and a receiver its sizes.
//!
//! `wr_id` packs up to eight request indices, a byte each, the first in the low byte. The
//! immediate is the size of a single message, or one bit for each buffer of a group
//! (`net_ib.cc ncclIbMultiSend`).

use static_assertions::const_assert;

use crate::fifo::{DEPTH_MAX, RECVS_MAX};

const_assert!(DEPTH_MAX <= 1 << 8);
const_assert!(RECVS_MAX <= size_of::<u64>());
const_assert!(RECVS_MAX <= u32::BITS as usize);

/// The `wr_id` with `index` in place `i` and zeros elsewhere; those of a group are or-ed.
#[inline]
pub const fn pack_one(index: u8, i: usize) -> u64 {
    (index as u64) << (8 * (i % RECVS_MAX))
}

/// Request index number `i` of a packed `wr_id`.
#[inline]
pub const fn index(wr_id: u64, i: usize) -> u8 {
    (wr_id >> (8 * (i % RECVS_MAX))) as u8
}

/// Immediate data of a group: bit `i` says whether buffer `i` got data.
#[inline]
pub fn group_imm(sizes: &[u32]) -> u32 {
    sizes.iter().take(RECVS_MAX).rev().fold(0, |imm, &size| imm << 1 | u32::from(size != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_packed_index_comes_back(indices in prop::collection::vec(any::<u8>(), 0..=8)) {
            let id = indices.iter().enumerate().fold(0, |id, (i, &index)| id | pack_one(index, i));
            for (i, &want) in indices.iter().enumerate() {
                prop_assert_eq!(index(id, i), want);
            }
        }

        #[test]
        fn group_imm_has_a_bit_for_each_non_empty_buffer(
            sizes in prop::collection::vec(0u32..3, 0..=8)
        ) {
            let imm = group_imm(&sizes);
            for (i, &size) in sizes.iter().enumerate() {
                prop_assert_eq!(imm >> i & 1 == 1, size != 0);
            }
            prop_assert_eq!(imm >> sizes.len(), 0);
        }
    }
}
