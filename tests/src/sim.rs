//! Simulates a whole network of software NICs from one seed: hosts, links, faults and a clock. The
//! clock moves only when the caller advances it.
//!
//! The devices are those of the software NIC ([`invar_linux::soft::Device`]). Only wires and clock
//! differ. The result depends on the seed and on the calls alone, so one seed is one history.
//! [`World::trace`] tells whether two histories were equal.

mod memory;
mod nic;
pub mod ranks;
mod scenario;
mod seeds;
mod wire;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar_core::nic::{Mtu, QpTransition, SourcePorts};
use invar_core::roce::UDP_PORT;
use invar_core::roce::qp::Tuning;
use invar_linux::soft::{Device, DeviceConfig, DeviceCounters};

pub use nic::{SimCq, SimMr, SimNic, SimQp};
pub use scenario::{Outcome, run};
pub use seeds::live_through;
pub use wire::{Link, WireCounters};

use wire::{Arrival, Outgoing, Wire};

/// The most steps without time passing. More of them mean an endless loop.
const STEPS_AT_ONCE_MAX: u32 = 1_000_000;

/// The UDP ports from which every host sends.
const SOURCE_PORTS: [u16; SourcePorts::MAX] = [0xc000, 0xc001, 0xc002, 0xc003];

/// The simulated network. Clones are the same network.
#[derive(Clone)]
pub struct World(Arc<Mutex<Net>>);

struct Net {
    now_ns: u64,
    hosts: Vec<Host>,
    wire: Wire,
    ipv6: bool,
    tuning: Tuning,
}

struct Host {
    device: Device,
    mtu: Mtu,
    /// The time that the host takes to handle a packet. `queue_packets_max` packets may wait meanwhile.
    service_ns: u64,
    queue_packets_max: usize,
    /// The packets that have arrived and wait, each with the time at which the host has handled it.
    queue: VecDeque<(u64, Arrival)>,
}

impl World {
    /// Creates a network without hosts. `seed` decides all random choices.
    pub fn new(seed: u64, ipv6: bool, tuning: Tuning) -> World {
        let wire = Wire::new(seed);
        World(Arc::new(Mutex::new(Net { now_ns: 0, hosts: Vec::new(), wire, ipv6, tuning })))
    }

    /// Adds a host with one port. Hosts are numbered from 0.
    pub fn add_host(&self, mtu: Mtu) -> SimNic {
        let mut net = self.net();
        let number = net.hosts.len();
        let last = number as u8 + 1;
        let ip = if net.ipv6 {
            IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
        };
        let seed = [(); 4].map(|()| net.wire.random.next());
        let device = Device::new(DeviceConfig {
            address: SocketAddr::new(ip, UDP_PORT),
            source_ports: SourcePorts(SOURCE_PORTS),
            seed: std::array::from_fn(|i| seed[i / 8].to_le_bytes()[i % 8]),
            tuning: net.tuning,
        });
        let (service_ns, queue_packets_max) = (0, usize::MAX);
        net.wire.add_host(ip);
        let queue = VecDeque::new();
        net.hosts.push(Host { device, mtu, service_ns, queue_packets_max, queue });
        drop(net);
        SimNic::new(self.clone(), number)
    }

    /// Sets the properties of the link from one host to another, or to itself.
    pub fn set_link(&self, from: usize, to: usize, link: Link) {
        self.net().wire.set_link(from, to, link);
    }

    /// Sets a port up or down. A port that is down takes and sends no packets. Packets that it took
    /// before still reach the device.
    pub fn set_up(&self, host: usize, up: bool) {
        self.net().wire.set_up(host, up);
    }

    /// Slows a host down. It takes `service_ns` for each incoming packet, and drops packets that arrive
    /// while `queue_packets_max` wait.
    pub fn slow_down(&self, host: usize, service_ns: u64, queue_packets_max: usize) {
        let host = &mut self.net().hosts[host];
        (host.service_ns, host.queue_packets_max) = (service_ns, queue_packets_max);
    }

    /// Moves a queue pair to ERR without its owner's knowledge.
    pub fn break_qp(&self, host: usize, qpn: u32) {
        let mut net = self.net();
        // The queue pair may be destroyed by now.
        let _ = net.hosts[host].device.modify_qp(qpn, &QpTransition::Err);
        net.transmit(host);
    }

    /// The nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        self.net().now_ns
    }

    /// Lets time pass and handles every event that is due.
    pub fn advance(&self, ns: u64) {
        let mut net = self.net();
        let end = net.now_ns.saturating_add(ns);
        let mut steps = 0;
        while net.next_ns().is_some_and(|at| at <= end) {
            let before = net.now_ns;
            net.step();
            steps = if net.now_ns == before { steps + 1 } else { 0 };
            assert!(steps < STEPS_AT_ONCE_MAX, "time stands still at {before} ns");
        }
        net.now_ns = end;
    }

    /// A digest of every packet so far: its time, source, destination, content and fate.
    pub fn trace(&self) -> u64 {
        self.net().wire.trace
    }

    /// The counters of the wires.
    pub fn wire_counters(&self) -> WireCounters {
        self.net().wire.counters
    }

    /// The counters of a host's device.
    pub fn device_counters(&self, host: usize) -> DeviceCounters {
        self.net().hosts[host].device.counters()
    }

    /// Whether a host's device has no queue pairs, completion queues and regions.
    pub fn has_nothing(&self, host: usize) -> bool {
        self.net().hosts[host].device.is_empty()
    }

    fn net(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host {
    /// The time at which the host has handled the packet that has waited longest.
    fn handled_ns(&self) -> Option<u64> {
        self.queue.front().map(|(handled_ns, _)| *handled_ns)
    }
}

impl Net {
    /// The time of the next event.
    fn next_ns(&self) -> Option<u64> {
        let timers = self.hosts.iter().filter_map(|host| host.device.next_deadline_ns());
        let queues = self.hosts.iter().filter_map(Host::handled_ns);
        let next = timers.chain(queues).chain(self.wire.next_ns()).min()?;
        Some(next.max(self.now_ns))
    }

    /// Handles the next event: a packet or a timer.
    fn step(&mut self) {
        let Some(at) = self.next_ns() else { return };
        self.now_ns = at;
        let is_due = |due_ns: Option<u64>| due_ns.is_some_and(|due_ns| due_ns <= at);
        if let Some(host) = self.hosts.iter().position(|host| is_due(host.handled_ns())) {
            if let Some((_, packet)) = self.hosts[host].queue.pop_front() {
                self.deliver(packet);
            }
        } else if let Some(packet) = self.wire.pop_due(at) {
            let host = &mut self.hosts[packet.to];
            if host.service_ns == 0 && host.queue.is_empty() {
                self.deliver(packet);
            } else if host.queue.len() >= host.queue_packets_max {
                self.wire.overflow(&packet);
            } else {
                let free_ns = host.queue.back().map_or(at, |(handled_ns, _)| *handled_ns);
                host.queue.push_back((free_ns + host.service_ns, packet));
            }
        } else if let Some(host) =
            self.hosts.iter().position(|host| is_due(host.device.next_deadline_ns()))
        {
            self.hosts[host].device.handle_timers(at);
            self.transmit(host);
        }
    }

    /// Hands a packet to the device of its destination.
    fn deliver(&mut self, Arrival { from, to, bytes }: Arrival) {
        self.hosts[to].device.handle_datagram(self.now_ns, from, &bytes);
        self.transmit(to);
    }

    /// Puts the packets that a host has to send on the wires.
    fn transmit(&mut self, host: usize) {
        let mut sink = Outgoing { from: host, now_ns: self.now_ns, wire: &mut self.wire };
        self.hosts[host].device.transmit(self.now_ns, &mut sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::end::{self, End};
    use invar_core::nic::{Nic, SendOpcode, Wc, WcStatus};

    /// Four packets wait at the receiver when its port goes down. Later four other packets must have
    /// room.
    #[test]
    fn packets_that_wait_when_a_port_goes_down_do_not_keep_their_room() {
        const MS: u64 = 1_000_000;
        let world = World::new(1, true, Tuning::default());
        let nics = [(); 2].map(|()| world.add_host(Mtu::Mtu1024));
        let [from, to] = End::pair([&nics[0], &nics[1]], 64, &end::Link::default());
        world.slow_down(to.nic.host(), MS, 4);
        for round in 0..2 {
            (0..4).for_each(|_| from.post(&from.work(SendOpcode::RdmaWrite, 8, &to)));
            world.advance(MS / 2);
            world.set_up(to.nic.host(), false);
            world.advance(10 * MS);
            world.set_up(to.nic.host(), true);
            world.advance(100 * MS);
            let mut wcs = [Wc::default(); 5];
            assert_eq!(from.nic.poll(&from.cq, &mut wcs), Ok(4), "round {round}");
            assert!(wcs[..4].iter().all(|wc| wc.status == WcStatus::SUCCESS), "{wcs:?}");
        }
        assert_eq!(world.wire_counters().overflowed, 0);
    }
}
