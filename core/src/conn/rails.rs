//! Sets of rails, and the keys of a row's buffers on each rail.

use core::fmt;

/// The most rails of a connection.
pub const RAILS_MAX: usize = 8;

/// Bits of a queue pair's number. A NIC with several rails has the rail's number above them.
const QPN_BITS: u32 = 24;

/// The number by which a peer names a queue pair, without the number of its rail.
pub(crate) const fn wire_qpn(qp_num: u32) -> u32 {
    qp_num & ((1 << QPN_BITS) - 1)
}

/// The number of a queue pair of a NIC with several rails. `qp_num` is its number on its own rail.
pub const fn on_rail(rail: usize, qp_num: u32) -> u32 {
    qp_num | (rail as u32) << QPN_BITS
}

/// The rail of a queue pair.
#[inline(always)]
pub(crate) const fn rail_of(qp_num: u32) -> usize {
    (qp_num >> QPN_BITS) as usize % RAILS_MAX
}

/// A set of rails: one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RailSet(pub(crate) u8);

impl RailSet {
    pub(crate) const NONE: RailSet = RailSet(0);

    /// The first `count` rails.
    pub(crate) const fn first(count: usize) -> Self {
        RailSet(if count >= RAILS_MAX { u8::MAX } else { (1 << count) - 1 })
    }

    pub(crate) const fn one(rail: usize) -> Self {
        RailSet(1 << (rail % RAILS_MAX))
    }

    pub(crate) const fn has(self, rail: usize) -> bool {
        self.0 & Self::one(rail).0 != 0
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        RailSet(self.0 & other.0)
    }

    pub(crate) const fn or(self, other: Self) -> Self {
        RailSet(self.0 | other.0)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        RailSet(self.0 & !other.0)
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set has several rails.
    #[inline(always)]
    pub(crate) const fn has_several(self) -> bool {
        self.0 & self.0.wrapping_sub(1) != 0
    }

    pub(crate) const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The rail of the set that follows a rail, in turn.
    #[inline(always)]
    pub(crate) const fn after(self, rail: usize) -> usize {
        // The set twice, since the first rail follows the last one.
        let twice = self.0 as u32 | (self.0 as u32) << RAILS_MAX;
        let next = rail % RAILS_MAX + 1;
        (next + (twice >> next).trailing_zeros() as usize) % RAILS_MAX
    }

    /// The rails, in order.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..RAILS_MAX).filter(move |rail| self.has(*rail))
    }
}

/// Displays a set for people: `0+2`.
impl fmt::Display for RailSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, rail) in self.iter().enumerate() {
            write!(f, "{}{rail}", if i == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

impl FromIterator<usize> for RailSet {
    fn from_iter<I: IntoIterator<Item = usize>>(rails: I) -> Self {
        rails.into_iter().fold(RailSet::NONE, |set, rail| set.or(RailSet::one(rail)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rail_of_a_set_has_its_turn() {
        for set in (1..=u8::MAX).map(RailSet) {
            for rail in 0..RAILS_MAX {
                let later = set.iter().find(|other| *other > rail);
                assert_eq!(Some(set.after(rail)), later.or(set.iter().next()), "{set} {rail}");
            }
        }
    }
}
