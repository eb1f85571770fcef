//! Two senders on one host share a cable that is slower than they are. Each gets its share, and few
//! packets are sent twice.

use std::net::SocketAddr;

use invar_core::nic::{Nic, SendOpcode, Wc, WcStatus};
use invar_linux::soft::{SoftConfig, SoftNic};
use invar_testkit::end::{End, Link};
use invar_testkit::namespaces::{Hosts, IPV6};
use invar_testkit::skip::{NAMESPACES, skip};
use invar_testkit::wait::until;

const MESSAGE_BYTES: usize = 64 << 10;
const UNDER_WAY: usize = 16;
/// The messages before the count begins. [`COUNTED_MESSAGES`] follow them.
const WARM_UP_MESSAGES: u64 = 200;
const COUNTED_MESSAGES: u64 = 1000;

fn open(hosts: &Hosts, host: usize) -> SoftNic {
    let address = SocketAddr::new(IPV6[host].parse().unwrap(), 0);
    hosts.call(host, || SoftNic::open(&SoftConfig::new("soft", address)).unwrap())
}

struct Sender {
    from: End<SoftNic>,
    to: End<SoftNic>,
    messages: u64,
}

impl Sender {
    fn new(hosts: &Hosts, receiver: &SoftNic) -> Self {
        let [from, to] = End::pair([&open(hosts, 1), receiver], MESSAGE_BYTES, &Link::default());
        let sender = Sender { from, to, messages: 0 };
        (0..UNDER_WAY).for_each(|_| sender.post());
        sender
    }

    fn post(&self) {
        self.from.post(&self.from.work(SendOpcode::RdmaWrite, MESSAGE_BYTES, &self.to));
    }

    /// Posts a new message for each finished one.
    fn step(&mut self) {
        let mut wcs = [Wc::default(); UNDER_WAY];
        let done = self.from.nic.poll(&self.from.cq, &mut wcs).unwrap();
        for wc in &wcs[..done as usize] {
            assert_eq!(wc.status, WcStatus::SUCCESS);
            self.messages += 1;
            self.post();
        }
    }
}

#[test]
fn two_senders_share_a_slow_cable() {
    // The queue holds packets of 4 ms.
    let bottleneck = "qdisc add dev v0 root tbf rate 500mbit burst 128kb limit 256kb";
    let made = Hosts::new(9000).and_then(|hosts| hosts.tc(1, bottleneck).map(|_| hosts));
    let hosts = match &made {
        Ok(hosts) => hosts,
        Err(error) => {
            return skip(NAMESPACES, format!("no slow cable between namespaces here: {error}"));
        }
    };
    let receiver = open(hosts, 0);
    let mut senders = [(); 2].map(|()| Sender::new(hosts, &receiver));
    let mut until = |messages| {
        until("messages", || {
            senders.iter_mut().for_each(Sender::step);
            senders.iter().map(|sender| sender.messages).sum::<u64>() >= messages
        });
        senders.each_ref().map(|sender| sender.messages)
    };
    let before = until(WARM_UP_MESSAGES);
    let after = until(WARM_UP_MESSAGES + COUNTED_MESSAGES);
    let share = [0, 1].map(|i: usize| after[i] - before[i]);
    let (mut packets, mut again) = (0, 0);
    for sender in &senders {
        let counters = sender.from.nic.counters().device;
        packets += counters.packets_sent;
        again += counters.qps.packets_retransmitted;
    }
    eprintln!("{share:?} messages; {again} of {packets} packets were sent again");
    assert!(5 * share[0].min(share[1]) >= share[0].max(share[1]), "fair");
    assert!(5 * again <= packets, "without much loss");
}
