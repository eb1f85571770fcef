//! A whole network of software NICs from one seed: hosts, links, faults, and a clock that moves
//! only when it is told.
//!
//! The devices are those of the software NIC ([`invar_linux::soft::Device`]); only wires and clock
//! are different. Nothing here depends on anything but the seed and the calls made, so that one
//! seed is one history: [`World::trace`] tells whether two were the same.

mod nic;
mod random;
pub mod ranks;
mod scenario;
mod seeds;
mod wire;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar_core::nic::{Mtu, QpTransition};
use invar_core::roce::UDP_PORT;
use invar_core::roce::qp::Tuning;
use invar_linux::soft::{Device, DeviceConfig, DeviceCounters};

pub use nic::{SimCq, SimMr, SimNic, SimQp};
pub use random::Random;
pub use scenario::{Outcome, run};
pub use seeds::share;
pub use wire::{Link, WireCounters};

use wire::{Outgoing, Wire};

/// Steps without time going by after which something goes in circles.
const STEPS_AT_ONCE_MAX: u32 = 1_000_000;

/// The network; clones are the same one.
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
    /// How long it takes over a packet, and how many may wait meanwhile.
    service_ns: u64,
    queue_packets_max: usize,
    queued: usize,
    /// When it is done with those that wait.
    free_ns: u64,
}

impl World {
    /// A network without hosts. All its chances come from `seed`.
    pub fn new(seed: u64, ipv6: bool, tuning: Tuning) -> World {
        let wire = Wire::new(seed);
        World(Arc::new(Mutex::new(Net { now_ns: 0, hosts: Vec::new(), wire, ipv6, tuning })))
    }

    /// A host with one port, numbered from 0.
    pub fn add_host(&self, mtu: Mtu) -> SimNic {
        let mut net = self.net();
        let number = net.hosts.len();
        let last = number as u8 + 1;
        let ip = if net.ipv6 {
            IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
        };
        let device = Device::new(DeviceConfig {
            address: SocketAddr::new(ip, UDP_PORT),
            source_ports: vec![0xc000, 0xc001],
            seed: net.wire.random.next(),
            tuning: net.tuning,
        });
        let (service_ns, queue_packets_max) = (0, usize::MAX);
        net.wire.add_host(ip);
        net.hosts.push(Host { device, mtu, service_ns, queue_packets_max, queued: 0, free_ns: 0 });
        drop(net);
        SimNic::new(self.clone(), number)
    }

    /// How packets fare from one host to another, or to itself.
    pub fn set_link(&self, from: usize, to: usize, link: Link) {
        self.net().wire.set_link(from, to, link);
    }

    /// A port that is down takes and gives no packets.
    pub fn set_up(&self, host: usize, up: bool) {
        self.net().wire.set_up(host, up);
    }

    /// From now on a host takes `service_ns` over each packet that comes in, and drops those that
    /// come while `queue_packets_max` wait.
    pub fn slow_down(&self, host: usize, service_ns: u64, queue_packets_max: usize) {
        let host = &mut self.net().hosts[host];
        (host.service_ns, host.queue_packets_max) = (service_ns, queue_packets_max);
    }

    /// Moves a queue pair to ERR behind its owner's back.
    pub fn break_qp(&self, host: usize, qpn: u32) {
        let mut net = self.net();
        // One that is gone by now cannot break any more.
        let _ = net.hosts[host].device.modify_qp(qpn, &QpTransition::Err);
        net.transmit(host);
    }

    /// Nanoseconds since the beginning.
    pub fn now_ns(&self) -> u64 {
        self.net().now_ns
    }

    /// Lets time go by, and everything happen that then happens.
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

    /// A digest of every packet so far: when, from where to where, what, and what became of it.
    pub fn trace(&self) -> u64 {
        self.net().wire.trace
    }

    /// What the wires did.
    pub fn wire_counters(&self) -> WireCounters {
        self.net().wire.counters
    }

    /// What a host's device counted.
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

impl Net {
    /// When something happens next.
    fn next_ns(&self) -> Option<u64> {
        let timers = self.hosts.iter().filter_map(|host| host.device.next_deadline_ns());
        let next = timers.chain(self.wire.next_ns()).min()?;
        Some(next.max(self.now_ns))
    }

    /// The next thing that happens: a packet, or a timer.
    fn step(&mut self) {
        let Some(at) = self.next_ns() else { return };
        self.now_ns = at;
        if let Some(arrival) = self.wire.pop_due(at) {
            let host = &mut self.hosts[arrival.to];
            if !arrival.served && host.service_ns > 0 {
                if host.queued >= host.queue_packets_max {
                    self.wire.overflow(&arrival);
                    return;
                }
                host.queued += 1;
                host.free_ns = host.free_ns.max(at) + host.service_ns;
                self.wire.wait(host.free_ns, arrival);
                return;
            }
            host.queued -= usize::from(arrival.served);
            host.device.handle_datagram(at, arrival.from, &arrival.bytes);
            self.transmit(arrival.to);
            return;
        }
        let due = |host: &Host| host.device.next_deadline_ns().is_some_and(|due| due <= at);
        if let Some(host) = self.hosts.iter().position(due) {
            self.hosts[host].device.handle_timers(at);
            self.transmit(host);
        }
    }

    /// Puts on the wires what a host has to send.
    fn transmit(&mut self, host: usize) {
        let mut sink = Outgoing { from: host, now_ns: self.now_ns, wire: &mut self.wire };
        self.hosts[host].device.transmit(self.now_ns, &mut sink);
    }
}
