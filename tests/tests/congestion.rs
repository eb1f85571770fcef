//! Several senders share a receiver that is slower than they are. They share it fairly, use all of it,
//! and cause no drops. A sender also keeps to its rate limit.

use std::num::NonZeroU32;

use invar_core::nic::{Mtu, Nic, QpCap, QpOptions, SendOpcode, Wc, WcStatus};
use invar_core::roce::qp::Tuning;
use invar_testkit::end::{End, Link};
use invar_testkit::sim::{self, SimNic, World};

const MESSAGE_BYTES: usize = 64 << 10;
const UNDER_WAY: u32 = 16;
const STEP_NS: u64 = 50_000;
const MS: u64 = 1_000_000;

struct Sender {
    from: End<SimNic>,
    to: End<SimNic>,
    under_way: u32,
    messages: u64,
}

impl Sender {
    fn new(from: &SimNic, to: &SimNic, options: QpOptions) -> Self {
        let cap = QpCap { max_send_wr: UNDER_WAY, max_recv_wr: 1, max_inline_data: 0 };
        let end = |nic: &SimNic| End::with(nic, 0, &cap, UNDER_WAY as usize, MESSAGE_BYTES);
        let (from, to) = (end(from), end(to));
        let link = Link { options, ..Link::default() };
        from.connect(&to, &link);
        to.connect(&from, &link);
        Sender { from, to, under_way: 0, messages: 0 }
    }

    /// Keeps as many messages in flight as allowed.
    fn step(&mut self) {
        let mut wcs = [Wc::default(); UNDER_WAY as usize];
        let done = self.from.nic.poll(&self.from.cq, &mut wcs).unwrap();
        for wc in &wcs[..done as usize] {
            assert_eq!(wc.status, WcStatus::SUCCESS);
        }
        self.messages += u64::from(done);
        self.under_way -= done;
        while self.under_way < UNDER_WAY {
            self.from.post(&self.from.work(SendOpcode::RdmaWrite, MESSAGE_BYTES, &self.to));
            self.under_way += 1;
        }
    }
}

#[derive(Debug, PartialEq)]
struct Outcome {
    /// The throughput of each sender.
    mbps: [u64; 2],
    packets: u64,
    dropped: u64,
    trace: u64,
}

/// Measures the throughput of two senders to a receiver of `mbps` during half a second. The receiver's
/// queue holds packets of 2 ms. The second sender begins 50 ms after the first.
fn share(seed: u64, mbps: u64, options: QpOptions, tuning: Tuning) -> Outcome {
    let world = World::new(seed, true, tuning);
    let [a, b, receiver] = [(); 3].map(|()| world.add_host(Mtu::Mtu4096));
    for (from, to) in [(0, 2), (1, 2), (2, 0), (2, 1)] {
        let link = sim::Link { delay_ns: 10_000, jitter_ns: 5_000, ..sim::Link::default() };
        world.set_link(from, to, link);
    }
    let service_ns = 4096 * 8 * 1000 / mbps;
    world.slow_down(2, service_ns, (2 * MS / service_ns) as usize);
    let mut senders = [&a, &b].map(|nic| Sender::new(nic, &receiver, options));
    let run = |senders: &mut [Sender], ns: u64| {
        for _ in 0..ns / STEP_NS {
            senders.iter_mut().for_each(Sender::step);
            world.advance(STEP_NS);
        }
    };
    let now = |senders: &[Sender; 2]| {
        (senders.each_ref().map(|sender| sender.messages), world.wire_counters())
    };
    run(&mut senders[..1], 50 * MS);
    run(&mut senders, 250 * MS);
    let before = now(&senders);
    run(&mut senders, 500 * MS);
    let after = now(&senders);
    let megabits = |i: usize| (after.0[i] - before.0[i]) * MESSAGE_BYTES as u64 * 8 / 1_000_000;
    Outcome {
        mbps: [0, 1].map(|i| 2 * megabits(i)),
        packets: after.1.sent - before.1.sent,
        dropped: after.1.overflowed - before.1.overflowed,
        trace: world.trace(),
    }
}

#[test]
fn two_senders_get_equal_shares_of_all_that_the_receiver_takes_and_it_drops_next_to_nothing() {
    for options in [QpOptions::empty(), QpOptions::ADAPTIVE_ROUTING] {
        for mbps in [1000, 5000] {
            for seed in 0..4 {
                let outcome = share(seed, mbps, options, Tuning::default());
                eprintln!("seed {seed}, {options:?}: {outcome:?}");
                let [a, b] = outcome.mbps;
                assert!(10 * a.min(b) >= 7 * a.max(b), "fair");
                assert!(100 * (a + b) >= 95 * mbps, "all of it");
                assert!(1000 * outcome.dropped <= outcome.packets, "without loss");
            }
        }
    }
}

#[test]
fn one_seed_is_one_history() {
    let share = |seed| share(seed, 5000, QpOptions::empty(), Tuning::default());
    assert_eq!(share(1), share(1));
    assert_ne!(share(1).trace, share(2).trace);
}

#[test]
fn a_sender_keeps_to_its_rate_and_still_sends_trains() {
    for options in [QpOptions::empty(), QpOptions::ADAPTIVE_ROUTING] {
        let rate_mbps_max = NonZeroU32::new(2000);
        let world = World::new(1, true, Tuning { rate_mbps_max, ..Tuning::default() });
        let [from, to] = [(); 2].map(|()| world.add_host(Mtu::Mtu4096));
        let mut sender = Sender::new(&from, &to, options);
        for _ in 0..500 * MS / STEP_NS {
            sender.step();
            world.advance(STEP_NS);
        }
        let mbps = 2 * sender.messages * MESSAGE_BYTES as u64 * 8 / 1_000_000;
        assert!((1950..=2000).contains(&mbps), "{mbps} Mbit/s");
        let counters = world.device_counters(from.host());
        assert!(counters.packets_sent >= 6 * counters.trains_sent, "{counters:?}");
    }
}
