//! Simulates a whole network of software NICs from one seed: hosts, links, faults and a clock. The
//! clock moves only when the caller advances it.
//!
//! The devices are those of the software NIC ([`invar_linux::soft::Device`]). Only wires and clock
//! differ. The result depends on the seed and on the calls alone, so one seed is one history.
//! [`World::trace`] tells whether two histories were equal.

mod campaign;
mod coverage;
mod memory;
mod nic;
mod outcome;
mod ranks;
mod scenario;
mod simulation;
mod terrain;
mod wire;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use invar_core::nic::{
    Mtu, PollError, QpOptions, QpState, QpTransition, RtrAttr, SendWr, SourcePorts, Wc,
};
use invar_core::roce::UDP_PORT;
use invar_core::roce::qp::{MESSAGE_BYTES_MAX, RequesterPhase, ResponderPhase, Tuning};
use invar_linux::soft::{Device, DeviceConfig, DeviceCounters, QpnRange};

pub use campaign::{Campaign, Failure, Progress, Summary};
pub use coverage::{Apart, Coverage, Fault, FaultRow, Machine, State};
pub use nic::{SimCq, SimMr, SimNic, SimQp};
pub use outcome::{Event, Outcome};
pub use simulation::{COMMS, RAILS, RANKS, SIMULATIONS, Simulation, TWICE_EVERY};
pub use wire::{Link, WireCounters};

use wire::{Arrival, Heading, Outgoing, Wire};

/// The most steps without time passing. More of them mean an endless loop.
const STEPS_AT_ONCE_MAX: u32 = 1_000_000;

/// The UDP ports from which every host sends.
const SOURCE_PORTS: [u16; SourcePorts::MAX] = [0xc000, 0xc001, 0xc002, 0xc003];

/// A thread for histories. Without optimization each move of a comm or a queue pair takes room on the stack.
pub fn roomy_thread() -> thread::Builder {
    thread::Builder::new().stack_size(16 << 20)
}

/// The simulated network. Clones are the same network.
#[derive(Clone)]
pub struct World(Arc<Mutex<Net>>);

struct Net {
    now_ns: u64,
    hosts: Vec<Host>,
    wire: Wire,
    ipv6: bool,
    tuning: Tuning,
    completion_delay_ns_max: u64,
    /// Whether devices report that their port went down.
    reports_ports: bool,
    coverage: Coverage,
    /// The queue pair that sends to a queue pair. Both have the numbers of their host and of their own.
    peers: HashMap<(usize, u32), (usize, u32)>,
    /// The number of queue pairs so far whose packets carry tags.
    tagged_qps: u64,
    /// The number of queue pairs so far that send long packets.
    long_qps: u64,
    /// Length in bytes of the longest work request that a port carries.
    message_bytes_max: u32,
    /// The number of work requests so far that had this length.
    longest_wrs: u64,
}

struct Host {
    device: Device,
    mtu: Mtu,
    /// The payload of the longest packets that the port offers, or 0.
    long_mtu_bytes: u32,
    /// The time that the host takes to handle a packet. `queue_packets_max` packets may wait meanwhile.
    service_ns: u64,
    queue_packets_max: usize,
    /// The number of times that the port went down.
    downs: u32,
    /// Whether the next question about the way to a peer gets an answer.
    knows_way: bool,
    /// The completions that no poll returns yet, by completion queue, each with the time from which polls
    /// return it.
    unseen: HashMap<u32, VecDeque<(u64, Wc)>>,
    /// The packets that have arrived and wait, each with the time at which the host has handled it.
    queue: VecDeque<(u64, Arrival)>,
}

impl World {
    /// Creates a network without hosts. `seed` decides all random choices.
    pub fn new(seed: u64, ipv6: bool, tuning: Tuning) -> World {
        let wire = Wire::new(seed);
        World(Arc::new(Mutex::new(Net {
            now_ns: 0,
            hosts: Vec::new(),
            wire,
            ipv6,
            tuning,
            completion_delay_ns_max: 0,
            reports_ports: false,
            coverage: Coverage::default(),
            peers: HashMap::new(),
            tagged_qps: 0,
            long_qps: 0,
            message_bytes_max: MESSAGE_BYTES_MAX,
            longest_wrs: 0,
        })))
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
            datagram_options: QpOptions::ICRC_MASKS_IP_ID,
            address: SocketAddr::new(ip, UDP_PORT),
            more_addresses: Vec::new(),
            source_ports: SourcePorts(SOURCE_PORTS),
            seed: std::array::from_fn(|i| seed[i / 8].to_le_bytes()[i % 8]),
            tuning: net.tuning,
            qpns: QpnRange::ALL,
        });
        let (service_ns, queue_packets_max) = (0, usize::MAX);
        net.wire.add_host(ip);
        let queue = VecDeque::new();
        let unseen = HashMap::new();
        let (long_mtu_bytes, downs, knows_way) = (0, 0, false);
        let host = Host {
            device,
            mtu,
            long_mtu_bytes,
            service_ns,
            queue_packets_max,
            downs,
            knows_way,
            unseen,
            queue,
        };
        net.hosts.push(host);
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
        let net = &mut *self.net();
        net.wire.set_up(host, up);
        net.hosts[host].downs += u32::from(!up);
    }

    /// Lets a host offer packets with so many bytes of payload, more than its MTU. Two hosts that do use them.
    pub fn offer_long_packets(&self, host: usize, payload_bytes: u32) {
        self.net().hosts[host].long_mtu_bytes = payload_bytes;
    }

    /// Lets ports carry no work request of more than so many bytes.
    pub fn limit_messages(&self, bytes: u32) {
        self.net().message_bytes_max = bytes;
    }

    /// Length of the longest work request that ports carry, in bytes.
    pub fn message_bytes_max(&self) -> u32 {
        self.net().message_bytes_max
    }

    /// Lets devices report that their port went down.
    pub fn report_ports(&self) {
        self.net().reports_ports = true;
    }

    /// Lets polls return each completion up to `ns` later than it came about.
    pub fn delay_completions(&self, ns: u64) {
        self.net().completion_delay_ns_max = ns;
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

    /// Records a fault that the caller injects, and the states of the machines that the fault hits. The
    /// world itself records the faults of packets.
    pub fn note_fault(&self, fault: Fault, states: impl IntoIterator<Item = State>) {
        // The iterator may ask the world itself.
        let states: Vec<State> = states.into_iter().collect();
        let net = &mut *self.net();
        net.wire.digest([net.now_ns, fault as u64]);
        net.wire.digest(states.iter().map(|state| *state as u64));
        net.coverage.note(fault, states);
    }

    /// The states of a queue pair's requester and responder.
    pub fn qp_states(&self, host: usize, qpn: u32) -> [State; 2] {
        self.net().qp_states((host, qpn))
    }

    /// The faults so far, with the states that they met.
    pub fn coverage(&self) -> Coverage {
        self.net().coverage.clone()
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

    /// A digest of every packet so far, with its time, header and fate, and of every
    /// [fault](World::note_fault).
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

    /// The events that the network has counted.
    fn events(&self) -> [(Event, u64); 4] {
        let net = self.net();
        [
            (Event::PacketSent, net.wire.counters.sent),
            (Event::QpTagged, net.tagged_qps),
            (Event::QpLong, net.long_qps),
            (Event::LongestPosted, net.longest_wrs),
        ]
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
            let host = &mut self.hosts[packet.heading.to];
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
        self.record_packet_faults();
    }

    /// Returns the completions of a queue that may be seen by now.
    fn poll(&mut self, host: usize, cq: u32, wcs: &mut [Wc]) -> Result<u32, PollError> {
        let Net { now_ns, hosts, wire, completion_delay_ns_max, .. } = self;
        let Host { device, unseen, .. } = &mut hosts[host];
        if *completion_delay_ns_max == 0 {
            return device.poll(cq, wcs);
        }
        let unseen = unseen.entry(cq).or_default();
        let mut new = [Wc::default(); 32];
        loop {
            let n = device.poll(cq, &mut new)? as usize;
            for wc in &new[..n] {
                // Completions of a queue stay in order.
                let last_ns = unseen.back().map_or(0, |(at_ns, _)| *at_ns);
                let at_ns = *now_ns + wire.random.below(*completion_delay_ns_max + 1);
                unseen.push_back((at_ns.max(last_ns), *wc));
            }
            if n < new.len() {
                break;
            }
        }
        let n = unseen.iter().take(wcs.len()).take_while(|(at_ns, _)| at_ns <= now_ns).count();
        wcs.iter_mut().zip(unseen.drain(..n)).for_each(|(to, (_, wc))| *to = wc);
        Ok(n as u32)
    }

    /// Hands a packet to the device of its destination.
    fn deliver(&mut self, Arrival { from, heading, bytes }: Arrival) {
        self.hosts[heading.to].device.handle_datagram(self.now_ns, from, &bytes);
        self.transmit(heading.to);
    }

    /// Puts the packets that a host has to send on the wires.
    fn transmit(&mut self, host: usize) {
        let mut sink = Outgoing { from: host, now_ns: self.now_ns, wire: &mut self.wire };
        self.hosts[host].device.transmit(self.now_ns, &mut sink);
        self.record_packet_faults();
    }

    /// Counts the posted work requests that are as long as a port carries.
    ///
    /// # Panics
    /// Panics if a work request is longer.
    fn note_lengths(&mut self, wrs: &[SendWr]) {
        let longest = self.message_bytes_max;
        let lengths = || wrs.iter().map(|wr| wr.sge.length);
        let too_long = lengths().find(|length| *length > longest);
        assert_eq!(too_long, None, "a port carries no work request of more than {longest} bytes");
        self.longest_wrs += lengths().filter(|length| *length == longest).count() as u64;
    }

    /// Notes the peer to which a queue pair of a host sends, and the kind of its packets.
    fn learn_peer(&mut self, host: usize, qpn: u32, attr: &RtrAttr) {
        self.tagged_qps += u64::from(attr.packet_keys.is_some());
        self.long_qps += u64::from(attr.is_long());
        if let Some(peer) = self.wire.host_of(attr.ah.dgid.ip()) {
            self.peers.insert((peer, attr.dest_qp_num), (host, qpn));
        }
    }

    /// Records the faults of packets since the last call. Each fault hits the queue pairs at both ends.
    fn record_packet_faults(&mut self) {
        while let Some((fault, Heading { to, dest_qp, is_response })) = self.wire.faults.pop() {
            let near = self.peers.get(&(to, dest_qp)).map(|peer| self.qp_states(*peer));
            let [requester, responder] = self.qp_states((to, dest_qp));
            let far = if is_response { requester } else { responder };
            let near =
                near.map(|[requester, responder]| if is_response { responder } else { requester });
            self.coverage.note(fault, near.into_iter().chain([far]));
        }
    }

    fn qp_states(&self, (host, qpn): (usize, u32)) -> [State; 2] {
        let device = &self.hosts[host].device;
        let (Some(state), Some((requester, responder))) =
            (device.qp_state(qpn), device.qp_phases(qpn))
        else {
            return [State::RequesterDestroyed, State::ResponderDestroyed];
        };
        let requester = match (state, requester) {
            (QpState::Err, _) => State::RequesterFailed,
            (QpState::Reset | QpState::Init | QpState::Rtr, _) => State::RequesterStarting,
            (_, RequesterPhase::Idle) => State::RequesterIdle,
            (_, RequesterPhase::Sending) => State::RequesterSending,
            (_, RequesterPhase::Recovering) => State::RequesterRecovering,
            (_, RequesterPhase::ReceiverNotReady) => State::RequesterReceiverNotReady,
        };
        let responder = match (state, responder) {
            (QpState::Err, _) => State::ResponderFailed,
            (QpState::Reset | QpState::Init, _) => State::ResponderStarting,
            (_, ResponderPhase::Ready) => State::ResponderReady,
            (_, ResponderPhase::InMessage) => State::ResponderInMessage,
            (_, ResponderPhase::PacketMissing) => State::ResponderPacketMissing,
        };
        [requester, responder]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::end::{self, End};
    use invar_core::nic::{Nic, SendOpcode, WcStatus};

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

    /// The world knows both ends of a packet's connection, whatever the fate of the packet.
    #[test]
    fn the_fault_of_a_packet_meets_the_states_of_both_ends() {
        const WHILE_NS: u64 = 20_000_000;
        let world = World::new(1, true, Tuning::default());
        let nics = [(); 2].map(|()| world.add_host(Mtu::Mtu1024));
        let [from, to] = End::pair([&nics[0], &nics[1]], 64, &end::Link::default());
        let met = |state| world.coverage().met(Fault::Lost, state);
        let all_lost = Link { loss_ppm: 1_000_000, ..Link::default() };
        let qpn = from.nic.qp_num(&from.qp);

        world.set_link(0, 1, all_lost);
        assert_eq!(world.qp_states(0, qpn), [State::RequesterIdle, State::ResponderReady]);
        from.post(&from.work(SendOpcode::RdmaWrite, 8, &to));
        assert_eq!((met(State::RequesterSending), met(State::ResponderReady)), (1, 1));
        assert_eq!(world.qp_states(0, qpn)[0], State::RequesterSending);
        world.advance(WHILE_NS);
        assert_eq!(world.qp_states(0, qpn)[0], State::RequesterRecovering);
        assert!(met(State::RequesterRecovering) > 0, "no packet was sent again");
        let lost = world.coverage().injected(Fault::Lost);
        assert_eq!(met(State::ResponderReady), lost);

        // Now the answers are lost, and then the host that answers has closed.
        world.set_link(0, 1, Link::default());
        world.set_link(1, 0, all_lost);
        let before = met(State::RequesterRecovering);
        world.advance(WHILE_NS);
        assert!(met(State::RequesterRecovering) > before, "no answer is lost");
        drop(to);
        // Probes come ever later.
        world.advance(2 * WHILE_NS);
        assert!(met(State::ResponderDestroyed) > 0, "a destroyed queue pair answers");
        world.break_qp(0, qpn);
        assert_eq!(world.qp_states(0, qpn), [State::RequesterFailed, State::ResponderFailed]);
        drop(from);
        let destroyed = [State::RequesterDestroyed, State::ResponderDestroyed];
        assert_eq!(world.qp_states(0, qpn), destroyed);
    }
}
