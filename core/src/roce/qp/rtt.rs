//! How long packets take to be acknowledged.

use crate::roce::Psn;

/// Times one packet at a time, of those that ask for an acknowledge.
#[derive(Clone, Default)]
pub(super) struct RoundTrip {
    /// One past the packet that is timed, and when it was sent.
    timed: Option<(Psn, u64)>,
}

impl RoundTrip {
    /// A packet that asks for an acknowledge is sent, for the first time.
    pub(super) fn on_transmit(&mut self, now: u64, psn: Psn) {
        self.timed.get_or_insert((psn.add(1), now));
    }

    /// All before `oldest` is acknowledged: how long the packet took, if it was among that.
    pub(super) fn on_ack(&mut self, now: u64, oldest: Psn) -> Option<u64> {
        let (_, sent) = self.timed.take_if(|(end, _)| oldest.since(*end) >= 0)?;
        Some(now.saturating_sub(sent))
    }

    /// Packets are sent again: of which one an acknowledge tells is not known any more (Karn).
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
    fn what_is_sent_again_is_not_timed() {
        let mut rtt = RoundTrip::default();
        rtt.on_transmit(100, Psn::new(7));
        rtt.on_resend();
        assert_eq!(rtt.on_ack(300, Psn::new(8)), None);
        rtt.on_transmit(400, Psn::new(9));
        assert_eq!(rtt.on_ack(450, Psn::new(10)), Some(50));
    }
}
