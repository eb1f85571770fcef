//! Tests how fast lost packets with Invar's mark are sent again, and that no other packets are.

use std::collections::VecDeque;

use invar_core::nic::{SendOpcode, WcStatus};
use invar_core::roce::qp::{Transmit, Tuning};
use invar_core::roce::{NakCode, Psn, Syndrome};
use invar_testkit::model::roce::{Attr, Peer};

const US: u64 = 1000;
/// The delay in one direction.
const DELAY: u64 = 10 * US;
const ROUND_TRIP: u64 = 2 * DELAY;
const HOLE_AGE: u64 = 50 * US;
const ACK_DELAY: u64 = 100 * US;
/// The packets of a message that fills the memory.
const PACKETS: u32 = 16;
const BYTES: u32 = PACKETS * 1024;
const FIRST: Psn = Psn::new(0xff_fffa);

type Packet = (Transmit, Vec<u8>);

/// Two ends and the network between them.
struct Network {
    ends: [Peer; 2],
    now: u64,
    /// The packets in flight, each with its time of arrival and its destination.
    under_way: VecDeque<(u64, usize, Packet)>,
    /// How often each request packet of the first end was sent, by PSN from 0 on.
    sent: Vec<u32>,
}

impl Network {
    fn new(adaptive: bool) -> Network {
        let tuning = Tuning { hole_age_ns: HOLE_AGE, ack_delay_ns: ACK_DELAY, ..Tuning::default() };
        let attr = Attr { adaptive, tuning, ..Attr::default() };
        let mut ends = attr.pair();
        ends[0].host.regions[0].bytes.fill(1);
        Network { ends, now: 0, under_way: VecDeque::new(), sent: Vec::new() }
    }

    /// Sends all due packets. `lost(psn, times)` decides whether a request of the first end is lost, by
    /// its PSN from 0 on and the number of earlier copies. `ack_lost` loses the answers.
    fn transmit(&mut self, lost: impl Fn(u32, u32) -> bool, ack_lost: bool) {
        for from in 0..2 {
            for packet in self.ends[from].transmit_all(self.now) {
                let bth = packet.0.headers.bth;
                let is_lost = if bth.opcode.is_response() {
                    ack_lost
                } else {
                    let psn = bth.psn.since(FIRST) as usize;
                    self.sent.resize(self.sent.len().max(psn + 1), 0);
                    self.sent[psn] += 1;
                    lost(psn as u32, self.sent[psn] - 1)
                };
                if !is_lost {
                    self.under_way.push_back((self.now + DELAY, 1 - from, packet));
                }
            }
        }
    }

    /// Moves on to the next event.
    fn advance(&mut self) {
        let arrival = self.under_way.front().map(|(at, ..)| *at);
        let timers = self.ends.iter().filter_map(|end| end.qp.deadline_ns());
        self.now = timers.chain(arrival).min().expect("something is to happen").max(self.now);
        while let Some((_, to, packet)) = self.under_way.pop_front_if(|(at, ..)| *at <= self.now) {
            self.ends[to].receive(self.now, &packet);
        }
        for end in &mut self.ends {
            end.qp.handle_timeout(self.now, &mut end.host);
        }
    }

    /// Sends a WRITE of `bytes` and returns the time until it completes. `lost` works as in `transmit`,
    /// with PSNs relative to the WRITE's first packet.
    fn write(&mut self, bytes: u32, lost: impl Fn(u32, u32) -> bool) -> u64 {
        let (start, first) = (self.now, self.sent.len() as u32);
        self.ends[0].host.sends.clear();
        self.ends[0].post(7, SendOpcode::RdmaWrite, bytes);
        loop {
            self.transmit(|psn, times| lost(psn - first, times), false);
            if !self.ends[0].host.sends.is_empty() {
                assert_eq!(self.ends[0].sends(), [(7, WcStatus::SUCCESS)]);
                return self.now - start;
            }
            self.advance();
        }
    }

    /// Sends messages from which both ends learn the round trip and the time that holes take to close.
    fn warm_up(&mut self) {
        (0..20).for_each(|_| assert_eq!(self.write(BYTES, |_, _| false), ROUND_TRIP));
        self.write(BYTES, |psn, times| psn == 3 && times == 0);
    }

    /// How often the packets of the last message that filled the memory were sent.
    fn last_sent(&self) -> &[u32] {
        &self.sent[self.sent.len() - PACKETS as usize..]
    }
}

/// The expected counts: one for each packet, and `more` in addition for those in `again`.
fn once_and(again: std::ops::Range<usize>, more: u32) -> Vec<u32> {
    (0..PACKETS as usize).map(|i| 1 + if again.contains(&i) { more } else { 0 }).collect()
}

#[test]
fn a_lost_train_is_repaired_a_round_trip_after_it_is_noticed_and_nothing_else_is_sent_again() {
    let mut network = Network::new(true);
    network.warm_up();
    let took = network.write(BYTES, |psn, times| (4..10).contains(&psn) && times == 0);
    assert_eq!(took, DELAY + HOLE_AGE + ROUND_TRIP + DELAY);
    assert_eq!(network.last_sent(), once_and(4..10, 1));
    assert_eq!(network.ends[1].host.regions[0].bytes, [1; BYTES as usize]);
    assert_eq!(network.ends[0].qp.counters().probes, 0);
}

#[test]
fn a_lost_retransmission_comes_again_within_a_few_round_trips() {
    let mut network = Network::new(true);
    network.warm_up();
    let took = network.write(BYTES, |psn, times| (4..10).contains(&psn) && times < 2);
    // The second repair waits for twice the time that holes take to close, and a hole's age.
    assert!(took <= 2 * HOLE_AGE + 6 * ROUND_TRIP, "{took} ns");
    assert_eq!(network.last_sent(), once_and(4..10, 2));
}

#[test]
fn a_lost_last_packet_comes_again_within_a_few_round_trips() {
    for lost in [1, 5, PACKETS] {
        let mut network = Network::new(true);
        network.warm_up();
        let took = network.write(BYTES, |psn, times| psn + lost >= PACKETS && times == 0);
        // The acknowledge is late after two round trips and its longest delay.
        assert!(took <= ACK_DELAY + HOLE_AGE + 6 * ROUND_TRIP, "{lost} lost: {took} ns");
        let again: u32 = network.last_sent().iter().map(|times| times - 1).sum();
        assert!(again <= lost + 2, "{lost} lost: {again} sent again");
    }
}

#[test]
fn a_lost_message_of_one_packet_comes_again_and_so_does_its_retransmission() {
    for times_lost in 1..4 {
        let mut network = Network::new(true);
        (0..20).for_each(|_| assert_eq!(network.write(64, |_, _| false), ROUND_TRIP));
        let took = network.write(64, |_, times| times < times_lost);
        // Each probe waits at most twice as long as the previous one.
        let late = ACK_DELAY + 3 * ROUND_TRIP;
        assert!(took <= late * ((1 << times_lost) - 1) + ROUND_TRIP, "{times_lost}: {took} ns");
        assert_eq!(network.sent.last(), Some(&(1 + times_lost)));
    }
}

#[test]
fn a_lost_acknowledge_delivers_nothing_twice() {
    let mut network = Network::new(true);
    network.warm_up();
    network.ends[0].host.sends.clear();
    network.ends[1].post_receive(1, 0);
    network.ends[1].post_receive(2, 0);
    network.ends[0].post(7, SendOpcode::RdmaWriteWithImm, 4096);
    let start = network.now;
    network.transmit(|_, _| false, false);
    network.advance();
    network.ends[1].host.regions[0].bytes.fill(9);
    network.transmit(|_, _| false, true);
    while network.ends[0].sends().is_empty() {
        network.advance();
        network.transmit(|_, _| false, false);
    }
    assert!(network.now - start <= ACK_DELAY + 6 * ROUND_TRIP);
    assert_eq!(network.ends[1].receives(), [(1, WcStatus::SUCCESS)]);
    assert_eq!(network.ends[1].host.regions[0].bytes, [9; BYTES as usize]);
    assert_eq!(network.ends[1].qp.counters().duplicates, 2, "the oldest and the newest packet");
}

#[test]
fn a_peer_that_misses_everything_all_the_time_gets_a_window_each_round_trip() {
    let mut network = Network::new(true);
    network.warm_up();
    let first = network.sent.len() as u32;
    let [a, _] = &mut network.ends;
    a.post(7, SendOpcode::RdmaWrite, BYTES);
    assert_eq!(a.transmit_all(network.now).len() as u32, PACKETS);
    let (mut again, round_trips) = (0, 50);
    for at in 0..round_trips * ROUND_TRIP / US {
        let now = network.now + at * US;
        for psn in 0..PACKETS {
            let missing = Syndrome::Nak(NakCode::PsnSequenceError);
            a.hear(now, FIRST.add(first + psn).get(), missing);
        }
        again += a.transmit_all(now).len() as u64;
    }
    let window = u64::from(PACKETS);
    assert!((window..=(round_trips + 1) * window).contains(&again), "{again} packets");
}

#[test]
fn packets_in_order_are_not_probed_before_their_time() {
    let mut network = Network::new(false);
    (0..20).for_each(|_| assert_eq!(network.write(BYTES, |_, _| false), ROUND_TRIP));
    let took = network.write(64, |_, times| times == 0);
    let probe = Tuning::default().probe_ns;
    // The acknowledge timer runs from the last acknowledge. The first check after it expires sends the
    // packet again.
    assert!((probe..3 * probe).contains(&took), "{took} ns");
    assert_eq!(network.sent.last(), Some(&2));
}
