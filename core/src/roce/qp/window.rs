//! How many packets may be in flight.
//!
//! The window doubles each round trip up to a threshold, then grows by one packet a round trip. It
//! shrinks when packets are lost, and before that when round trips take longer than their target:
//! then packets wait in a queue, and senders that share it all see so. What each takes back is in
//! proportion to its window, and what each adds is the same, so that they come to equal shares (as
//! in Swift, Kumar et al., SIGCOMM 2020).

use super::{Tuning, WINDOW_PACKETS_MAX};

/// After a timeout, and least after a loss.
const PACKETS_MIN: u32 = 4;
/// Least because of delay alone, which a busy host causes too.
const DELAYED_PACKETS_MIN: u32 = 16;
/// At the start.
const PACKETS_START: u32 = 32;

/// An acknowledge is asked for at least each so many trains.
const ACK_REQ_TRAINS_MAX: u32 = 4;

/// Round trips of which the shortest decides: an end that was not scheduled delays some, a queue
/// all of them.
const SAMPLES: u32 = 2;

/// Where no round trip was ever shorter than this many targets, that is the path and no queue. Below
/// it, the shortest one must not count: a sender that comes late to a queue would take it for the
/// path, and have more than its share.
const LONG_PATH_TARGETS: u64 = 4;

/// Of so many trains that were sent, losses that come one by one are counted: the network may drop
/// whole trains, and of few of them a share says nothing.
const LOSS_SPAN_TRAINS: u32 = 128;
/// One in so many is congestion.
const LOSS_SHARE: u32 = 8;

/// Congestion window in packets.
pub(super) struct Window {
    packets: u32,
    threshold: u32,
    max: u32,
    /// Acknowledged packets that did not add up to growth yet.
    credit: u32,
    /// Packets of late that were lost, and that were not.
    lost: u32,
    arrived: u32,
    rtt_target_ns: Option<u64>,
    /// The shortest ever.
    rtt_min_ns: u64,
    /// The shortest of the last few, and how many these are.
    rtt_ns: u64,
    samples: u32,
    /// Round trips take too long.
    delayed: bool,
}

impl Window {
    pub(super) fn new(tuning: &Tuning) -> Window {
        let max = tuning.window_packets_max.clamp(1, WINDOW_PACKETS_MAX);
        Window {
            packets: max.min(PACKETS_START),
            threshold: max,
            max,
            credit: 0,
            lost: 0,
            arrived: 0,
            rtt_target_ns: tuning.rtt_target_ns,
            rtt_min_ns: u64::MAX,
            rtt_ns: u64::MAX,
            samples: 0,
            delayed: false,
        }
    }

    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    /// `acked` packets were acknowledged.
    pub(super) fn on_ack(&mut self, acked: u32) {
        // No sum that is looked at gets near this.
        self.arrived = self.arrived.saturating_add(acked).min(1 << 20);
        if self.delayed {
            return;
        }
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

    /// A packet was acknowledged so long after it was sent.
    pub(super) fn on_round_trip(&mut self, rtt_ns: u64) {
        let Some(target) = self.rtt_target_ns else { return };
        self.rtt_min_ns = self.rtt_min_ns.min(rtt_ns);
        self.rtt_ns = self.rtt_ns.min(rtt_ns);
        self.samples += 1;
        if self.samples < SAMPLES {
            return;
        }
        let rtt = core::mem::replace(&mut self.rtt_ns, u64::MAX);
        self.samples = 0;
        let long_path = self.rtt_min_ns > LONG_PATH_TARGETS * target;
        let target = if long_path { self.rtt_min_ns + self.rtt_min_ns / 2 } else { target };
        let excess = rtt.saturating_sub(target);
        self.delayed = excess > 0;
        if self.delayed {
            // An eighth, or half of what waits too long. With less, shares would hardly change.
            let excess = u128::from(self.packets) * u128::from(excess) / (2 * u128::from(rtt));
            let cut = (excess as u32).max(self.packets / 8);
            let least = DELAYED_PACKETS_MIN.min(self.packets);
            self.packets = (self.packets - cut).max(least);
            self.threshold = self.packets;
            self.credit = 0;
        }
    }

    /// A packet was lost and its loss noticed soon. At most once a round trip.
    pub(super) fn on_loss(&mut self) {
        self.threshold = (self.packets / 2).max(PACKETS_MIN).min(self.max);
        self.packets = self.threshold;
        self.credit = 0;
    }

    /// One packet of adaptive routing was lost: each of them is told of. A network loses some
    /// whatever we do, so only a good share of them counts as congestion.
    pub(super) fn on_hole(&mut self, train_packets: u32) {
        self.lost += 1;
        let span = LOSS_SPAN_TRAINS * train_packets.max(1);
        if self.lost >= span / LOSS_SHARE {
            (self.lost, self.arrived) = (0, 0);
            self.on_loss();
        } else if self.lost + self.arrived >= span {
            self.lost /= 2;
            self.arrived /= 2;
        }
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

    const TARGET_NS: u64 = 1_000_000;

    fn window(window_packets_max: u32) -> Window {
        let rtt_target_ns = Some(TARGET_NS);
        Window::new(&Tuning { window_packets_max, rtt_target_ns, ..Tuning::default() })
    }

    #[test]
    fn doubles_each_round_trip_until_the_maximum() {
        let mut window = window(256);
        for expected in [32, 64, 128, 256, 256] {
            assert_eq!(window.packets(), expected);
            window.on_ack(window.packets());
        }
    }

    #[test]
    fn halves_on_loss_and_grows_by_one_a_round_trip_then() {
        let mut window = window(256);
        window.on_ack(224);
        window.on_loss();
        for expected in [128, 129, 130] {
            assert_eq!(window.packets(), expected);
            window.on_ack(window.packets());
        }
        window.on_timeout();
        assert_eq!((window.packets(), window.threshold), (4, 65));
    }

    /// The window after so many trains of 8 packets, of which one in `share` is lost.
    fn behind_loss(trains: u32, share: u32) -> u32 {
        let mut window = window(256);
        window.on_ack(224);
        for train in 1..=trains {
            if train.is_multiple_of(share) {
                (0..8).for_each(|_| window.on_hole(8));
            } else {
                window.on_ack(8);
            }
        }
        window.packets()
    }

    #[test]
    fn only_a_good_share_of_losses_is_congestion() {
        assert_eq!(behind_loss(10_000, 20), 256);
        assert_eq!(behind_loss(10_000, 12), 256);
        assert!(behind_loss(100, 4) < 140);
        assert!(behind_loss(10_000, 2) < 16);
    }

    fn take(window: &mut Window, round_trips: &[u64]) {
        round_trips.iter().for_each(|rtt| window.on_round_trip(*rtt));
    }

    #[test]
    fn shrinks_while_round_trips_are_too_long_and_then_grows_again() {
        let mut window = window(256);
        window.on_ack(224);
        // One that takes long is the host's doing.
        take(&mut window, &[100_000, 9 * TARGET_NS]);
        assert_eq!(window.packets(), 256);
        take(&mut window, &[2 * TARGET_NS; 2]);
        assert_eq!(window.packets(), 192, "a quarter of the time is excess of half");
        window.on_ack(1000);
        assert_eq!(window.packets(), 192);
        take(&mut window, &[100 * TARGET_NS; 20]);
        assert_eq!(window.packets(), DELAYED_PACKETS_MIN);
        take(&mut window, &[TARGET_NS; 2]);
        window.on_ack(DELAYED_PACKETS_MIN);
        assert_eq!(window.packets(), DELAYED_PACKETS_MIN + 1);
    }

    #[test]
    fn a_long_path_is_no_congestion() {
        let mut window = window(256);
        take(&mut window, &[20 * TARGET_NS; 20]);
        take(&mut window, &[29 * TARGET_NS; 20]);
        window.on_ack(32);
        assert_eq!(window.packets(), 64);
        take(&mut window, &[31 * TARGET_NS; 2]);
        assert!(window.packets() < 64);
    }

    proptest! {
        #[test]
        fn stays_between_one_and_the_maximum(
            max: u32,
            events in proptest::collection::vec(0u32..3000, 0..100),
        ) {
            let mut window = window(max);
            for event in events {
                match event {
                    0..500 => window.on_loss(),
                    500..1000 => window.on_timeout(),
                    1000..1500 => window.on_hole(event % 64),
                    1500..2000 => window.on_round_trip(u64::from(event) * TARGET_NS / 1000),
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
