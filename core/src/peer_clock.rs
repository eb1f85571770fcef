//! The clock of a peer, compared with this end's clock.
//!
//! A connector notes when it sends its message and when the answer is there. The acceptor says what its clock
//! showed in between. So the handshake's round trip bounds the difference of both clocks, as in NTP (RFC 5905).

/// The difference of two clocks, as an end knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerClock {
    /// Nanoseconds that the peer's clock is ahead of this end's.
    pub ahead_ns: i64,
    /// The true difference lies within so many nanoseconds of `ahead_ns`.
    pub uncertainty_ns: u64,
}

impl PeerClock {
    /// Estimates the difference from a round trip: from `asked_ns` to `heard_ns` on this end's clock. In between
    /// the peer's clock showed `answered_ns`. Returns `None` for times that cannot be.
    pub fn estimate(asked_ns: u64, answered_ns: u64, heard_ns: u64) -> Option<Self> {
        let round_trip_ns = heard_ns.checked_sub(asked_ns)?;
        let least_ns = i128::from(answered_ns) - i128::from(heard_ns);
        let middle_ns = least_ns + i128::from(round_trip_ns / 2);
        Some(PeerClock {
            ahead_ns: i64::try_from(middle_ns).ok()?,
            uncertainty_ns: round_trip_ns.div_ceil(2),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_true_difference_lies_within_the_uncertainty(
            asked_ns in 0..1_u64 << 62, ahead_ns in -1_i64 << 62..1 << 62, there_ns in 0..1_u64 << 40,
            back_ns in 0..1_u64 << 40,
        ) {
            let answered_ns = (asked_ns + there_ns).checked_add_signed(ahead_ns);
            prop_assume!(answered_ns.is_some());
            let clock = PeerClock::estimate(asked_ns, answered_ns.unwrap(), asked_ns + there_ns + back_ns);
            let clock = clock.unwrap();
            prop_assert!(clock.ahead_ns.abs_diff(ahead_ns) <= clock.uncertainty_ns);
            prop_assert!(clock.uncertainty_ns <= (there_ns + back_ns).div_ceil(2));
        }

        #[test]
        fn no_times_make_it_panic(asked_ns: u64, answered_ns: u64, heard_ns: u64) {
            let clock = PeerClock::estimate(asked_ns, answered_ns, heard_ns);
            prop_assert!(clock.is_none() || asked_ns <= heard_ns);
        }
    }

    #[test]
    fn a_round_trip_with_equal_ways_gives_the_difference_itself() {
        let clock = PeerClock::estimate(1_000, 501_500, 2_000).unwrap();
        assert_eq!(clock, PeerClock { ahead_ns: 500_000, uncertainty_ns: 500 });
        let clock = PeerClock::estimate(501_000, 1_500, 502_000).unwrap();
        assert_eq!(clock, PeerClock { ahead_ns: -500_000, uncertainty_ns: 500 });
        assert_eq!(PeerClock::estimate(2_000, 1_500, 1_000), None, "the clock goes back");
    }
}
