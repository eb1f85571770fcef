//! Congestion window: how many packets may be in flight.
//!
//! The window doubles each round trip up to a threshold, then grows by one packet a round trip. The
//! window shrinks when packets are lost. The window also shrinks when round trips exceed their target:
//! then packets wait in a queue, and all senders that share the queue notice. Each sender shrinks in
//! proportion to its window and grows by the same amount. So all senders come to equal shares (as in
//! Swift, Kumar et al., SIGCOMM 2020).

use super::{Tuning, WINDOW_PACKETS_MAX};

/// Window after a timeout, and smallest window after a loss.
const PACKETS_MIN: u32 = 4;
/// Smallest window because of delay alone, which a busy host causes too.
const DELAYED_PACKETS_MIN: u32 = 16;
/// Window at the start.
const PACKETS_START: u32 = 32;

/// Maximum distance between packets that ask for an acknowledge, in trains.
const ACK_REQ_TRAINS_MAX: u32 = 4;

/// Number of round trips of which the shortest counts. An end that is not scheduled delays some
/// packets, but a queue delays all of them.
const SAMPLES: u32 = 2;

/// If no round trip was ever shorter than this many targets, the path is long and there is no queue.
/// Below this, the shortest round trip must not count. A sender that joins a queue late would
/// otherwise take the queue for the path, and get more than its share.
const LONG_PATH_TARGETS: u64 = 4;

/// Number of trains over which the share of single losses is measured. A network may drop whole
/// trains, and a share of few trains means nothing.
const LOSS_SPAN_TRAINS: u32 = 128;
/// One lost packet in this many counts as congestion.
const LOSS_SHARE: u32 = 8;

/// Congestion window in packets.
pub(super) struct Window {
    packets: u32,
    threshold: u32,
    max: u32,
    /// Acknowledged packets that have not yet added up to growth.
    credit: u32,
    /// Number of recent packets that were lost (`lost`) and that arrived (`arrived`).
    lost: u32,
    arrived: u32,
    rtt_target_ns: Option<u64>,
    /// Shortest round trip ever.
    rtt_min_ns: u64,
    /// Shortest of the last `samples` round trips.
    rtt_ns: u64,
    samples: u32,
    /// Round trips exceed their target.
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

    /// Handles the acknowledge of `acked` packets.
    pub(super) fn on_ack(&mut self, acked: u32) {
        // Any sum that the code compares stays far below this bound.
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

    /// Handles a measured round trip.
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
            // Cut an eighth, or half of the share of time above the target. A smaller cut would hardly
            // change the shares.
            let excess = u128::from(self.packets) * u128::from(excess) / (2 * u128::from(rtt));
            let cut = (excess as u32).max(self.packets / 8);
            let least = DELAYED_PACKETS_MIN.min(self.packets);
            self.packets = (self.packets - cut).max(least);
            self.threshold = self.packets;
            self.credit = 0;
        }
    }

    /// Handles a loss that was noticed soon. The caller calls this at most once a round trip.
    pub(super) fn on_loss(&mut self) {
        self.threshold = (self.packets / 2).max(PACKETS_MIN).min(self.max);
        self.packets = self.threshold;
        self.credit = 0;
    }

    /// Handles the loss of one packet of adaptive routing. The responder reports each loss. A network
    /// loses some packets whatever the sender does, so only a large share counts as congestion.
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

    /// Number of packets after which one asks for an acknowledge. A window has several such stretches,
    /// so one lost acknowledge does not stop the sender. In a large window each stretch is a whole
    /// number of trains. So an acknowledge releases whole trains too.
    pub(super) fn ack_req_packets(&self, train_packets: u32) -> u32 {
        let quarter = self.packets / 4;
        match quarter / train_packets.max(1) {
            0 => quarter.max(1),
            trains => trains.min(ACK_REQ_TRAINS_MAX) * train_packets,
        }
    }

    /// Handles a timeout: nothing came back at all.
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

    /// Returns the window after `trains` trains of 8 packets, where one train in `share` is lost.
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
        // One long round trip is the host's doing.
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
