//! Wires between devices, and the faults of packets on them.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use invar_core::roce::Opcode;
use invar_linux::soft::{Train, TransmitSink};

use super::SOURCE_PORTS;
use super::coverage::Fault;
use crate::random::Random;

/// The properties of a link from one host to another. Probabilities are in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The delay from one host to the other.
    pub delay_ns: u64,
    /// The most additional delay, which differs for each packet. Packets stay in order.
    pub jitter_ns: u64,
    /// The probability that a packet is lost.
    pub loss_ppm: u32,
    /// The probability that a packet arrives twice.
    pub duplicate_ppm: u32,
    /// The probability that later packets overtake a packet.
    pub reorder_ppm: u32,
    /// The most time by which such a packet is held back.
    pub reorder_ns: u64,
    /// The probability that a packet arrives with one to three bits changed.
    pub corrupt_ppm: u32,
}

/// The number of packets that had each fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is a count of packets to which that happened")]
pub struct WireCounters {
    pub sent: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub corrupted: u64,
    /// Packets that were lost because a port was down.
    pub cut: u64,
    /// Packets that were dropped because a slow receiver had no room.
    pub overflowed: u64,
}

/// A packet on its way.
pub(super) struct Arrival {
    pub(super) from: SocketAddr,
    pub(super) heading: Heading,
    pub(super) bytes: Vec<u8>,
}

/// The machines that a packet concerns.
#[derive(Clone, Copy)]
pub(super) struct Heading {
    /// The host to which the packet goes.
    pub(super) to: usize,
    /// The queue pair there.
    pub(super) dest_qp: u32,
    /// Whether a responder answers a requester.
    pub(super) is_response: bool,
}

impl Heading {
    /// Reads the heading from the base transport header (BTH) of an undamaged packet.
    fn new(to: usize, bytes: &[u8]) -> Heading {
        let dest_qp = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]);
        Heading { to, dest_qp, is_response: Opcode(bytes[0]).is_response() }
    }
}

pub(super) struct Wire {
    pub(super) random: Random,
    pub(super) trace: u64,
    pub(super) counters: WireCounters,
    /// The faults of packets that nobody has recorded yet.
    pub(super) faults: Vec<(Fault, Heading)>,
    hosts: HashMap<IpAddr, usize>,
    ports: Vec<Port>,
    links: HashMap<(usize, usize), WireLink>,
    /// The packets on their way, by time of arrival and then by order of sending.
    on_the_way: BTreeMap<(u64, u64), Arrival>,
    order: u64,
}

struct Port {
    ip: IpAddr,
    up: bool,
}

#[derive(Default)]
struct WireLink {
    link: Link,
    /// The time at which the last packet that was not held back arrives.
    last_ns: u64,
}

/// The fates of packets that the trace distinguishes.
#[derive(Clone, Copy)]
enum Fate {
    Sent,
    Arrived,
    Faulty(Fault),
}

impl Wire {
    pub(super) fn new(seed: u64) -> Self {
        Wire {
            random: Random::new(seed),
            // The start value of FNV-1a.
            trace: 0xcbf2_9ce4_8422_2325,
            counters: WireCounters::default(),
            faults: Vec::new(),
            hosts: HashMap::new(),
            ports: Vec::new(),
            links: HashMap::new(),
            on_the_way: BTreeMap::new(),
            order: 0,
        }
    }

    pub(super) fn add_host(&mut self, ip: IpAddr) {
        self.hosts.insert(ip, self.ports.len());
        self.ports.push(Port { ip, up: true });
    }

    /// The number of the host that has an address.
    pub(super) fn host_of(&self, ip: IpAddr) -> Option<usize> {
        self.hosts.get(&ip).copied()
    }

    pub(super) fn set_link(&mut self, from: usize, to: usize, link: Link) {
        self.links.entry((from, to)).or_default().link = link;
    }

    pub(super) fn set_up(&mut self, host: usize, up: bool) {
        self.ports[host].up = up;
    }

    pub(super) fn is_up(&self, host: usize) -> bool {
        self.ports[host].up
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.on_the_way.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next packet that arrives at a port that is up.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<Arrival> {
        while self.next_ns()? <= now_ns {
            let (_, arrival) = self.on_the_way.pop_first()?;
            if self.ports[arrival.heading.to].up {
                self.note(now_ns, Fate::Arrived, &arrival.bytes);
                return Some(arrival);
            }
            self.counters.cut += 1;
            self.fault(now_ns, Fault::Cut, arrival.heading, &arrival.bytes);
        }
        None
    }

    /// Drops a packet for which the receiver has no room.
    pub(super) fn overflow(&mut self, arrival: &Arrival) {
        self.counters.overflowed += 1;
        self.fault(0, Fault::Overflowed, arrival.heading, &arrival.bytes);
    }

    fn put(&mut self, at: u64, arrival: Arrival) {
        self.order += 1;
        self.on_the_way.insert((at, self.order), arrival);
    }

    fn send(&mut self, now_ns: u64, from: (usize, u16), to: IpAddr, bytes: &[u8]) {
        self.counters.sent += 1;
        self.note(now_ns, Fate::Sent, bytes);
        let Some(to) = self.host_of(to) else { return };
        let heading = Heading::new(to, bytes);
        if !self.ports[from.0].up {
            self.counters.cut += 1;
            self.fault(now_ns, Fault::Cut, heading, bytes);
            return;
        }
        let WireLink { link, last_ns } = *self.links.entry((from.0, to)).or_default();
        if self.random.chance(link.loss_ppm) {
            self.counters.lost += 1;
            self.fault(now_ns, Fault::Lost, heading, bytes);
            return;
        }
        let mut copies = 1;
        if self.random.chance(link.duplicate_ppm) {
            self.counters.duplicated += 1;
            self.fault(now_ns, Fault::Duplicated, heading, bytes);
            copies = 2;
        }
        for _ in 0..copies {
            let mut at = now_ns + link.delay_ns + self.random.below(link.jitter_ns);
            if self.random.chance(link.reorder_ppm) {
                at += self.random.below(link.reorder_ns);
                self.counters.reordered += 1;
                self.fault(now_ns, Fault::Reordered, heading, bytes);
            } else {
                at = at.max(last_ns);
                self.links.entry((from.0, to)).or_default().last_ns = at;
            }
            let mut bytes = bytes.to_vec();
            if self.random.chance(link.corrupt_ppm) {
                self.fault(now_ns, Fault::Corrupted, heading, &bytes);
                self.corrupt(&mut bytes);
            }
            let from = SocketAddr::new(self.ports[from.0].ip, from.1);
            self.put(at, Arrival { from, heading, bytes });
        }
    }

    /// Changes one to three bits. A packet's CRC detects so few changes in any case.
    fn corrupt(&mut self, bytes: &mut [u8]) {
        self.counters.corrupted += 1;
        for _ in 0..=self.random.below(3) {
            let bit = self.random.below(8 * bytes.len() as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Adds to the digest everything that the seed decides. For a packet that is its base transport
    /// header (BTH) and its length. Later bytes contain addresses of this process's memory.
    fn note(&mut self, now_ns: u64, fate: Fate, bytes: &[u8]) {
        let fate = match fate {
            Fate::Sent => 1,
            Fate::Arrived => 2,
            Fate::Faulty(fault) => 3 + fault as u64,
        };
        self.digest([now_ns, fate, bytes.len() as u64]);
        bytes.iter().take(12).for_each(|byte| self.digest_byte(*byte));
    }

    /// Notes the fault of a packet, both in the digest and for the record of faults.
    fn fault(&mut self, now_ns: u64, fault: Fault, heading: Heading, bytes: &[u8]) {
        self.note(now_ns, Fate::Faulty(fault), bytes);
        self.faults.push((fault, heading));
    }

    /// Adds numbers to the digest.
    pub(super) fn digest(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let bytes = numbers.into_iter().flat_map(u64::to_le_bytes);
        bytes.for_each(|byte| self.digest_byte(byte));
    }

    fn digest_byte(&mut self, byte: u8) {
        self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
}

/// The wires as one host sees them.
pub(super) struct Outgoing<'a> {
    pub(super) from: usize,
    pub(super) now_ns: u64,
    pub(super) wire: &'a mut Wire,
}

impl TransmitSink for Outgoing<'_> {
    fn ip_id(&self, _: usize, index: usize) -> u16 {
        index as u16
    }

    fn send(&mut self, train: Train<'_>) -> usize {
        let from = (self.from, SOURCE_PORTS[train.route.source]);
        for datagram in train.datagrams {
            self.wire.send(self.now_ns, from, train.route.to.ip(), &datagram.to_vec());
        }
        train.datagrams.len()
    }
}
