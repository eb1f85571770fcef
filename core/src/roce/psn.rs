//! Packet sequence numbers.

use core::fmt;

/// Packet sequence number (PSN): 24 bits that wrap (IBTA §9.7.1). PSNs have no order, only distances:
/// see [`Psn::since`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Mask of the 24 valid bits.
    pub const MASK: u32 = 0xff_ffff;

    /// Takes the low 24 bits of `v`.
    pub const fn new(v: u32) -> Psn {
        Psn(v & Self::MASK)
    }

    /// Returns the number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `n` packets later. Only `n` modulo 2^24 counts.
    #[must_use]
    pub const fn add(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_add(n))
    }

    /// Number of packets by which `self` is ahead of `other`, in -2^23 .. 2^23. A negative number
    /// means that `self` is behind.
    pub const fn since(self, other: Psn) -> i32 {
        // Shift the 24-bit difference to the top of the word: its sign bit becomes the sign bit of the
        // i32.
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:06x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wraps_at_24_bits() {
        assert_eq!(Psn::new(0xff_ffff).add(1), Psn::new(0));
        assert_eq!(Psn::new(0x0100_0002), Psn::new(2));
        assert_eq!(Psn::new(0).since(Psn::new(0xff_ffff)), 1);
        assert_eq!(Psn::new(0xff_ffff).since(Psn::new(0)), -1);
    }

    #[test]
    fn the_distance_half_way_round_is_negative() {
        let far = Psn::new(5).add(1 << 23);
        assert_eq!(far.since(Psn::new(5)), -(1 << 23));
        assert_eq!(Psn::new(5).since(far), -(1 << 23));
    }

    proptest! {
        #[test]
        fn since_undoes_add(start: u32, n in -(1i32 << 23)..1 << 23) {
            let start = Psn::new(start);
            prop_assert_eq!(start.add(n as u32).since(start), n);
        }
    }
}
