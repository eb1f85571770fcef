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

/// The `wr_id` of a group; zeros stand where it has no message.
#[inline]
pub const fn pack(indices: [u8; RECVS_MAX]) -> u64 {
    u64::from_le_bytes(indices)
}

/// The request indices of a packed `wr_id`.
#[inline]
pub const fn unpack(wr_id: u64) -> [u8; RECVS_MAX] {
    wr_id.to_le_bytes()
}

/// The bit by which the immediate data of a group says that buffer `i` got data.
#[inline]
pub const fn imm_bit(i: usize) -> u32 {
    1 << (i % RECVS_MAX)
}

/// Immediate data of a group of `nreqs` buffers, 1 to 8, that all got data.
#[inline]
pub const fn imm_full(nreqs: usize) -> u32 {
    (2 << ((nreqs - 1) % RECVS_MAX)) - 1
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_packed_index_comes_back(indices: [u8; RECVS_MAX]) {
            let wr_id = pack(indices);
            prop_assert_eq!(unpack(wr_id), indices);
            prop_assert_eq!(wr_id as u8, indices[0]);
        }
    }

    #[test]
    fn each_buffer_has_a_bit_of_its_own() {
        let bits: Vec<u32> = (0..RECVS_MAX).map(imm_bit).collect();
        assert_eq!(bits, [1, 2, 4, 8, 16, 32, 64, 128]);
        for nreqs in 1..=RECVS_MAX {
            assert_eq!(imm_full(nreqs), bits[..nreqs].iter().sum());
        }
    }
}
