//! How many packets may be in flight.

use super::WINDOW_PACKETS_MAX;

/// After a timeout, and least after a loss.
const PACKETS_MIN: u32 = 4;
/// At the start.
const PACKETS_START: u32 = 32;

/// An acknowledge is asked for at least each so many trains.
const ACK_REQ_TRAINS_MAX: u32 = 4;

/// Congestion window in packets: doubles a round trip up to a threshold, then grows by one a
/// round trip, up to a maximum; halves on loss.
pub(super) struct Window {
    packets: u32,
    threshold: u32,
    max: u32,
    /// Acknowledged packets that did not add up to growth yet.
    credit: u32,
}

impl Window {
    pub(super) fn new(max: u32) -> Window {
        let max = max.clamp(1, WINDOW_PACKETS_MAX);
        Window { packets: max.min(PACKETS_START), threshold: max, max, credit: 0 }
    }

    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    /// `acked` packets were acknowledged.
    pub(super) fn on_ack(&mut self, acked: u32) {
        if self.packets < self.threshold {
            self.packets = self.packets.saturating_add(acked).min(self.threshold);
            return;
        }
        self.credit = self.credit.saturating_add(acked);
        if self.credit >= self.packets && self.packets < self.max {
            self.credit = 0;
            self.packets += 1;
        }
    }

    /// A packet was lost and its loss noticed soon. At most once a round trip.
    pub(super) fn on_loss(&mut self) {
        self.threshold = (self.packets / 2).max(PACKETS_MIN).min(self.max);
        self.packets = self.threshold;
        self.credit = 0;
    }

    /// One packet of adaptive routing was lost. The others of its round trip were not, and each of
    /// them that was is told of: so many fewer fit.
    pub(super) fn on_hole(&mut self) {
        self.packets = (self.packets - 1).max(PACKETS_MIN.min(self.packets));
        self.threshold = self.packets;
    }

    /// Packets of which one asks for an acknowledge. A window has several such stretches, so that
    /// one lost acknowledge does not stop everything; and where the window is large they are whole
    /// trains, so that what an acknowledge lets out is too.
    pub(super) fn ack_req_packets(&self, train_packets: u32) -> u32 {
        let quarter = self.packets / 4;
        match quarter / train_packets.max(1) {
            0 => quarter.max(1),
            trains => trains.min(ACK_REQ_TRAINS_MAX) * train_packets,
        }
    }

    /// Nothing came back at all.
    pub(super) fn on_timeout(&mut self) {
        self.on_loss();
        self.packets = PACKETS_MIN.min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn doubles_each_round_trip_until_the_maximum() {
        let mut window = Window::new(256);
        for expected in [32, 64, 128, 256, 256] {
            assert_eq!(window.packets(), expected);
            window.on_ack(window.packets());
        }
    }

    #[test]
    fn halves_on_loss_and_grows_by_one_a_round_trip_then() {
        let mut window = Window::new(256);
        window.on_ack(224);
        window.on_loss();
        for expected in [128, 129, 130] {
            assert_eq!(window.packets(), expected);
            window.on_ack(window.packets());
        }
        window.on_timeout();
        assert_eq!((window.packets(), window.threshold), (4, 65));
    }

    #[test]
    fn each_hole_takes_one_packet() {
        let mut window = Window::new(256);
        (0..10).for_each(|_| window.on_hole());
        assert_eq!(window.packets(), 22);
        (0..100).for_each(|_| window.on_hole());
        assert_eq!(window.packets(), PACKETS_MIN);
    }

    proptest! {
        #[test]
        fn stays_between_one_and_the_maximum(
            max: u32,
            events in proptest::collection::vec(0u32..3000, 0..100),
        ) {
            let mut window = Window::new(max);
            for event in events {
                match event {
                    0..500 => window.on_loss(),
                    500..1000 => window.on_timeout(),
                    1000..2000 => window.on_hole(),
                    _ => window.on_ack(event),
                }
                prop_assert!((1..=window.max).contains(&window.packets()));
                for train_packets in [1, 15, 64] {
                    let stretch = window.ack_req_packets(train_packets);
                    prop_assert!((1..=(window.packets() / 4).max(1)).contains(&stretch));
                    prop_assert!(stretch < train_packets || stretch.is_multiple_of(train_packets));
                }
            }
        }
    }
}
