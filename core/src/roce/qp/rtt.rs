//! Measures how long packets take to be acknowledged.

use crate::roce::Psn;

/// Measures one packet at a time, chosen among those that ask for an acknowledge.
#[derive(Clone, Default)]
pub(super) struct RoundTrip {
    /// One past the PSN of the measured packet, and the time at which it was sent.
    timed: Option<(Psn, u64)>,
    /// A probe was sent while the packet was measured.
    probed: bool,
    /// Smoothed round trip and its mean deviation (RFC 6298). `None` before the first measurement.
    smoothed: Option<(u64, u64)>,
}

impl RoundTrip {
    /// Notes that a packet which asks for an acknowledge is sent for the first time.
    pub(super) fn on_transmit(&mut self, now: u64, psn: Psn) {
        if self.timed.is_none() {
            (self.timed, self.probed) = (Some((psn.add(1), now)), false);
        }
    }

    /// Notes that a probe is sent, because the packet was lost or its acknowledge is late. If it was
    /// late, the next probe must leave later. So the measurement goes on and enters the smoothed round
    /// trip, as two round trips at most: otherwise each loss would delay the probes of the next losses.
    /// [`RoundTrip::on_ack`] does not return such a measurement, because it does not say how long packets
    /// travel.
    pub(super) fn on_probe(&mut self) {
        self.probed = true;
    }

    /// Handles an acknowledge of everything before `oldest`. The function returns the round trip if
    /// the measured packet is acknowledged and no probe was sent meanwhile.
    pub(super) fn on_ack(&mut self, now: u64, oldest: Psn) -> Option<u64> {
        let (_, sent) = self.timed.take_if(|(end, _)| oldest.since(*end) >= 0)?;
        let rtt = now.saturating_sub(sent);
        self.smoothed = Some(match self.smoothed {
            None => (rtt, rtt / 2),
            Some((mean, deviation)) => {
                let rtt = if self.probed { rtt.min(2 * mean) } else { rtt };
                (mean - mean / 8 + rtt / 8, deviation - deviation / 4 + mean.abs_diff(rtt) / 4)
            }
        });
        (!self.probed).then_some(rtt)
    }

    /// Smoothed round trip.
    pub(super) fn mean_ns(&self) -> Option<u64> {
        self.smoothed.map(|(mean, _)| mean)
    }

    /// Time that hardly any round trip exceeds.
    pub(super) fn long_ns(&self) -> Option<u64> {
        self.smoothed.map(|(mean, deviation)| mean + (4 * deviation).max(mean))
    }

    /// Stops the measurement because packets are sent again: an acknowledge no longer tells which copy
    /// it answers (Karn).
    pub(super) fn on_resend(&mut self) {
        self.timed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_packet_at_a_time_is_timed_until_it_is_acknowledged() {
        let mut rtt = RoundTrip::default();
        let psn = Psn::new(0xff_fffe);
        rtt.on_transmit(100, psn);
        rtt.on_transmit(150, psn.add(1));
        assert_eq!(rtt.on_ack(300, psn), None);
        assert_eq!(rtt.on_ack(400, psn.add(3)), Some(300));
        assert_eq!(rtt.on_ack(500, psn.add(3)), None);
    }

    #[test]
    fn round_trips_are_smoothed() {
        let mut rtt = RoundTrip::default();
        assert_eq!((rtt.mean_ns(), rtt.long_ns()), (None, None));
        for i in 0..50 {
            rtt.on_transmit(1000 * i, Psn::new(i as u32));
            assert_eq!(rtt.on_ack(1000 * i + 80, Psn::new(i as u32 + 1)), Some(80));
        }
        assert_eq!(rtt.mean_ns(), Some(80));
        assert!((160..200).contains(&rtt.long_ns().unwrap()), "{:?}", rtt.long_ns());
        rtt.on_transmit(90_000, Psn::new(50));
        rtt.on_ack(90_880, Psn::new(51));
        assert_eq!(rtt.mean_ns(), Some(180));
        assert!(rtt.long_ns().unwrap() > 880, "{:?}", rtt.long_ns());
    }

    #[test]
    fn a_late_acknowledge_is_late_no_more_the_next_time() {
        let mut rtt = RoundTrip::default();
        for i in 0..20 {
            rtt.on_transmit(9000 * i, Psn::new(i as u32));
            rtt.on_probe();
            assert_eq!(rtt.on_ack(9000 * i + 800, Psn::new(i as u32 + 1)), None);
        }
        assert!(rtt.long_ns().unwrap() >= 1600, "{:?}", rtt.long_ns());
        rtt.on_transmit(1, Psn::new(20));
        assert_eq!(rtt.on_ack(801, Psn::new(21)), Some(800));
    }

    #[test]
    fn losses_hardly_delay_the_probes_of_later_losses() {
        let mut rtt = RoundTrip::default();
        for i in 0..200 {
            rtt.on_transmit(9000 * i, Psn::new(i as u32));
            let is_lost = i % 10 == 9;
            if is_lost {
                rtt.on_probe();
            }
            rtt.on_ack(9000 * i + if is_lost { 2000 } else { 100 }, Psn::new(i as u32 + 1));
        }
        assert!(rtt.long_ns().unwrap() < 300, "{:?}", rtt.long_ns());
    }

    #[test]
    fn a_path_that_has_become_longer_is_learned() {
        let mut rtt = RoundTrip::default();
        for i in 0..100 {
            rtt.on_transmit(90_000 * i, Psn::new(i as u32));
            let round_trip = if i < 10 { 100 } else { 5000 };
            if rtt.long_ns().is_some_and(|long_ns| long_ns < round_trip) {
                rtt.on_probe();
            }
            rtt.on_ack(90_000 * i + round_trip, Psn::new(i as u32 + 1));
        }
        assert!(rtt.long_ns().unwrap() > 5000, "{:?}", rtt.long_ns());
    }

    #[test]
    fn what_is_sent_again_is_not_timed() {
        let mut rtt = RoundTrip::default();
        rtt.on_transmit(100, Psn::new(7));
        rtt.on_resend();
        assert_eq!(rtt.on_ack(300, Psn::new(8)), None);
        rtt.on_transmit(400, Psn::new(9));
        assert_eq!(rtt.on_ack(450, Psn::new(10)), Some(50));
    }
}
