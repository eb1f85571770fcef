//! How sizes are cut: rounding, steps and chunks of a point-to-point transfer, and the share of
//! each queue pair.
//!
//! The rounding functions are those of NCCL's `align.h` (`divUp`, `roundUp`, `alignUp`,
//! `ALIGN_SIZE`). They answer `None` where C would divide by zero or wrap, so that sizes from a
//! peer or a user can be given to them as they are.

mod p2p;
mod qp_split;

pub use p2p::{P2pSteps, P2pTransfer, Protocol, STEPS};
pub use qp_split::{QP_SPLIT_ALIGN, QpPart, QpSplit};

/// `x / y`, rounded up. `None` when `y` is 0.
pub const fn div_up(x: u64, y: u64) -> Option<u64> {
    if y == 0 { None } else { Some(x.div_ceil(y)) }
}

/// The next multiple of `y` that is not below `x`. `None` when `y` is 0 or it passes 2^64.
pub const fn round_up(x: u64, y: u64) -> Option<u64> {
    x.checked_next_multiple_of(y)
}

/// [`round_up`] to a power of two, without a division. `None` when `align` is none, or the result
/// passes 2^64.
pub const fn align_up(x: u64, align: u64) -> Option<u64> {
    if !align.is_power_of_two() {
        return None;
    }
    match x.checked_add(align - 1) {
        Some(sum) => Some(sum & !(align - 1)),
        None => None,
    }
}

/// [`round_up`] for sizes of memory.
pub const fn align_size(size: usize, align: usize) -> Option<usize> {
    size.checked_next_multiple_of(align)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zero_and_overflow_have_no_answer() {
        assert_eq!((div_up(1, 0), round_up(1, 0), align_size(1, 0)), (None, None, None));
        assert_eq!((align_up(1, 0), align_up(1, 3)), (None, None));
        assert_eq!((round_up(u64::MAX, 2), align_up(u64::MAX, 2)), (None, None));
        assert_eq!(align_size(usize::MAX, 4096), None);
        assert_eq!(div_up(u64::MAX, 1), Some(u64::MAX));
        assert_eq!(align_up(u64::MAX - 4095, 4096), Some(u64::MAX - 4095));
    }

    proptest! {
        #[test]
        fn rounding_is_what_c_computes_with_room_to_spare(x: u64, y in 1..u64::MAX, shift in 0..64) {
            let (wide_x, wide_y) = (u128::from(x), u128::from(y));
            let quotient = wide_x.div_ceil(wide_y);
            prop_assert_eq!(div_up(x, y).map(u128::from), Some(quotient));
            prop_assert_eq!(round_up(x, y), u64::try_from(quotient * wide_y).ok());
            prop_assert_eq!(align_size(x as usize, y as usize), round_up(x, y).map(|n| n as usize));
            let power = 1u64 << shift;
            prop_assert_eq!(align_up(x, power), round_up(x, power));
        }
    }
}
