//! Tests the packets of the software NIC without its sockets, in virtual time. The times are tested in
//! `timers`, and large amounts in `floods`.

mod acknowledges;
mod datagrams;
mod domains;
mod events;
mod floods;
mod lingering;
mod lists;
mod strangers;
mod tags;
mod timers;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use invar_core::nic::{
    Access, AddressVector, Memory, Mtu, PacketKeys, QpCap, QpOptions, QpTransition, RtrAttr,
    RtsAttr, SendFlags, SendOpcode, SendWr, Sge, SourcePorts, Wc, WcStatus,
};
use invar_core::roce::qp::Tuning;
use invar_core::roce::{IpDatagram, Packet};
use invar_linux::memory::HostMemory;
use invar_linux::soft::{Datagram, Device, DeviceConfig, QpConfig, QpnRange, Train, TransmitSink};

const PORTS: [u16; 2] = [50_001, 50_002];
const SOURCE_PORTS: SourcePorts = SourcePorts([PORTS[0], PORTS[1], 0, 0]);

/// A train of datagrams that was sent.
struct Sent {
    to: SocketAddr,
    source: usize,
    datagrams: Vec<Vec<u8>>,
}

/// Keeps sent trains as long as there is room.
struct Wire {
    room: usize,
    trains: VecDeque<Sent>,
}

impl Wire {
    fn new() -> Wire {
        Wire { room: usize::MAX, trains: VecDeque::new() }
    }

    fn packets(&self) -> Vec<Vec<u8>> {
        self.trains.iter().flat_map(|train| train.datagrams.clone()).collect()
    }
}

impl TransmitSink for Wire {
    fn ip_id(&self, _: usize, index: usize) -> u16 {
        index as u16
    }

    fn send(&mut self, train: Train<'_>) -> usize {
        let taken = self.room.min(train.datagrams.len());
        self.room -= taken;
        if taken > 0 {
            self.trains.push_back(Sent {
                to: train.route.to,
                source: train.route.source,
                datagrams: train.datagrams[..taken].iter().map(Datagram::to_vec).collect(),
            });
        }
        taken
    }
}

/// A device with one connected queue pair and one region.
struct End {
    device: Device,
    wire: Wire,
    pd: u32,
    cq: u32,
    qpn: u32,
    key: u32,
    memory: HostMemory,
}

impl End {
    fn new(ip: IpAddr, port: u16, len: usize) -> End {
        End::with_peers(ip, port, len, QpOptions::ICRC_MASKS_IP_ID)
    }

    /// An end whose peers of datagrams have these options.
    fn with_peers(ip: IpAddr, port: u16, len: usize, datagram_options: QpOptions) -> End {
        let mut device = Device::new(DeviceConfig {
            datagram_options,
            address: SocketAddr::new(ip, port),
            more_addresses: Vec::new(),
            source_ports: SOURCE_PORTS,
            seed: [port as u8; 32],
            tuning: Tuning::default(),
            qpns: QpnRange::ALL,
        });
        let memory = HostMemory::alloc(len).unwrap();
        let pd = device.alloc_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let key = device.reg_mr(pd, &memory, memory.addr(), access).unwrap();
        let cq = device.create_cq(256).unwrap();
        let mut end = End { device, wire: Wire::new(), pd, cq, qpn: 0, key, memory };
        end.qpn = end.create_qp();
        end
    }

    fn create_qp(&mut self) -> u32 {
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 8, max_inline_data: 0 };
        let qpn = self.device.create_qp(&QpConfig::new(self.pd, self.cq, cap)).unwrap();
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let init = QpTransition::Init { pkey_index: 0, port_num: 1, access };
        self.device.modify_qp(qpn, &init).unwrap();
        qpn
    }

    /// Connects a queue pair in state INIT.
    fn start(&mut self, qpn: u32, peer: SocketAddr, dest_qp_num: u32, options: QpOptions) {
        self.start_with(qpn, peer, dest_qp_num, options, None);
    }

    fn start_with(
        &mut self,
        qpn: u32,
        peer: SocketAddr,
        dest_qp_num: u32,
        options: QpOptions,
        packet_keys: Option<PacketKeys>,
    ) {
        let ah = AddressVector {
            dgid: peer.ip().into(),
            udp_port: peer.port(),
            udp_source_port: SOURCE_PORTS.port(dest_qp_num),
            hop_limit: 255,
            ..AddressVector::default()
        };
        let rtr = RtrAttr {
            path_mtu: Mtu::Mtu1024,
            dest_qp_num,
            ah,
            options,
            packet_keys,
            max_dest_rd_atomic: 1,
            ..RtrAttr::default()
        };
        self.device.modify_qp(qpn, &QpTransition::Rtr(rtr)).unwrap();
        let rts = RtsAttr { timeout: 14, retry_cnt: 2, rnr_retry: 7, sq_psn: 0, max_rd_atomic: 1 };
        self.device.modify_qp(qpn, &QpTransition::Rts(rts)).unwrap();
    }

    /// Posts a WRITE of the first `len` bytes to the peer's memory.
    fn write(&mut self, qpn: u32, len: usize, peer: (u64, u32)) {
        self.post(qpn, SendOpcode::RdmaWrite, len, peer);
    }

    /// Posts a work request on the first `len` bytes of either end.
    fn post(&mut self, qpn: u32, opcode: SendOpcode, len: usize, peer: (u64, u32)) {
        let sge = Sge { addr: self.memory.addr(), length: len as u32, lkey: self.key };
        let (remote_addr, rkey) = peer;
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id: 1, remote_addr, sge, rkey, flags, opcode, ..SendWr::default() };
        self.device.post_send(qpn, &wr).unwrap();
    }

    fn transmit(&mut self, now: u64) {
        self.device.transmit(now, &mut self.wire);
    }

    fn address(&self) -> SocketAddr {
        self.device.config().address
    }

    fn poll(&mut self) -> Vec<Wc> {
        let mut wcs = [Wc::default(); 256];
        let n = self.device.poll(self.cq, &mut wcs).unwrap();
        wcs[..n as usize].to_vec()
    }
}

fn pair(ip: &str, len: usize, options: QpOptions) -> [End; 2] {
    pair_with(ip, len, options, [None; 2])
}

fn pair_with(ip: &str, len: usize, options: QpOptions, keys: [Option<PacketKeys>; 2]) -> [End; 2] {
    let ip = ip.parse().unwrap();
    let mut ends = [End::new(ip, 4791, len), End::new(ip, 5000, len)];
    let (addresses, qpns) = (ends.each_ref().map(End::address), ends.each_ref().map(|e| e.qpn));
    for (i, end) in ends.iter_mut().enumerate() {
        end.start_with(end.qpn, addresses[1 - i], qpns[1 - i], options, keys[i]);
    }
    ends
}

/// Connects a queue pair of each end, both in state INIT.
fn connect([a, b]: [&mut End; 2], qpns: [u32; 2]) {
    a.start(qpns[0], b.address(), qpns[1], QpOptions::empty());
    b.start(qpns[1], a.address(), qpns[0], QpOptions::empty());
}

/// Carries the sent datagrams to the other end and lets that answer. Datagrams that `lose` selects are
/// lost.
fn carry(from: &mut End, to: &mut End, now: u64, lose: impl FnMut(&[u8]) -> bool) {
    deliver(from, to, now, lose);
    to.transmit(now);
}

fn deliver(from: &mut End, to: &mut End, now: u64, mut lose: impl FnMut(&[u8]) -> bool) {
    for train in from.wire.trains.drain(..) {
        assert_eq!(train.to, to.device.config().address);
        let source = SocketAddr::new(from.device.config().address.ip(), PORTS[train.source]);
        for datagram in train.datagrams.iter().filter(|datagram| !lose(datagram)) {
            to.device.handle_datagram(now, source, datagram);
        }
    }
}

fn target(end: &End) -> (u64, u32) {
    (end.memory.addr(), end.key)
}

/// The whole IP packet around a datagram. It lacks checksums, which the ICRC does not cover.
fn ip_packet(from: SocketAddr, to: SocketAddr, id: u16, datagram: &[u8]) -> Vec<u8> {
    let udp_len = (8 + datagram.len()) as u16;
    let mut packet = Vec::new();
    match (from.ip(), to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            packet.extend([0x45, 0x68]);
            packet.extend((20 + udp_len).to_be_bytes());
            packet.extend(id.to_be_bytes());
            packet.extend([0x40, 0, 63, 17, 0, 0]);
            packet.extend(src.octets());
            packet.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            packet.extend([0x66, 0x80, 1, 2]);
            packet.extend(udp_len.to_be_bytes());
            packet.extend([17, 63]);
            packet.extend(src.octets());
            packet.extend(dst.octets());
        }
        _ => unreachable!("both ends are of one family"),
    }
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(udp_len.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(datagram);
    packet
}

#[test]
fn every_packet_of_a_train_ends_with_the_icrc_that_its_own_ip_header_asks_for() {
    let masked = QpOptions::ICRC_MASKS_IP_ID;
    for (ip, options) in
        [("192.0.2.1", QpOptions::empty()), ("192.0.2.1", masked), ("2001:db8::1", masked)]
    {
        let [mut a, b] = pair(ip, 20_003, options);
        a.memory.write_at(0, &[7; 20_003]).unwrap();
        a.write(a.qpn, 20_003, target(&b));
        a.transmit(0);
        let mut longest = 0;
        for train in &a.wire.trains {
            longest = longest.max(train.datagrams.len());
            for (id, datagram) in (0..).zip(&train.datagrams) {
                let from = SocketAddr::new(a.address().ip(), PORTS[train.source]);
                let packet = ip_packet(from, train.to, id, datagram);
                let decoded = IpDatagram::decode(&packet).unwrap();
                assert!(decoded.verify_icrc(options.contains(masked)), "{ip}, packet {id}");
            }
        }
        assert!(longest > 10, "{longest}");
    }
}

#[test]
fn padding_is_zero_and_not_what_was_sent_before() {
    let [mut a, b] = pair("::1", 4096, QpOptions::empty());
    a.memory.write_at(0, &[0xff; 4096]).unwrap();
    a.write(a.qpn, 4096, target(&b));
    a.transmit(0);
    a.wire.trains.clear();
    a.write(a.qpn, 1, target(&b));
    a.transmit(0);
    let packets = a.wire.packets();
    let packet = Packet::decode(&packets[0]).unwrap();
    assert_eq!((packet.payload, &packet.trailer[..3]), (&[0xff][..], &[0; 3][..]));
}

#[test]
fn a_train_is_as_long_as_packets_of_one_length_allow() {
    let len = 30 * 1024 + 1;
    let lengths = |options| -> Vec<Vec<usize>> {
        let [mut a, b] = pair("::1", len, options);
        a.write(a.qpn, len, target(&b));
        a.transmit(0);
        let trains = a.wire.trains.iter();
        trains.map(|train| train.datagrams.iter().map(Vec::len).collect()).collect()
    };
    // The first packet of a message is longer by its RETH, and the last one is short.
    let middle = 12 + 1024 + 4;
    let in_order = [vec![middle + 16, middle], [vec![middle; 28], vec![20]].concat()];
    assert_eq!(lengths(QpOptions::empty()), in_order);
    // With adaptive routing each packet has a RETH.
    let adaptive = [[vec![middle + 16; 30], vec![36]].concat()];
    assert_eq!(lengths(QpOptions::ADAPTIVE_ROUTING), adaptive);
}

#[test]
fn small_packets_of_several_queue_pairs_share_a_train() {
    let [mut a, b] = pair("::1", 64, QpOptions::empty());
    let peer = b.address();
    // Select queue pairs with the source port of the first one.
    let more: Vec<u32> = (0..6).map(|_| a.create_qp()).collect();
    let same = |qpn: &&u32| **qpn as usize % PORTS.len() == a.qpn as usize % PORTS.len();
    let more: Vec<u32> = more.iter().filter(same).copied().collect();
    assert!(!more.is_empty());
    for &qpn in &more {
        a.start(qpn, peer, b.qpn, QpOptions::empty());
        a.write(qpn, 8, target(&b));
    }
    a.write(a.qpn, 8, target(&b));
    a.transmit(0);
    assert_eq!(a.wire.trains.len(), 1);
    assert_eq!(a.wire.trains[0].datagrams.len(), more.len() + 1);
}

#[test]
fn an_acknowledge_ends_the_train_of_requests_that_are_there_too_and_waits_for_no_longer_a_one() {
    for (len, before_ack) in [(64, 1), (64 * 1024, 62)] {
        let [mut a, mut b] = pair("::1", len, QpOptions::empty());
        // This message opens the window.
        b.write(b.qpn, len, target(&a));
        while b.poll().is_empty() {
            b.transmit(0);
            carry(&mut b, &mut a, 0, |_| false);
            carry(&mut a, &mut b, 0, |_| false);
        }
        a.write(a.qpn, 8, target(&b));
        a.transmit(0);
        deliver(&mut a, &mut b, 0, |_| false);
        b.write(b.qpn, len, target(&a));
        b.transmit(0);
        let is_ack = |bytes: &[u8]| Packet::decode(bytes).unwrap().headers.aeth.is_some();
        assert_eq!(b.wire.packets().iter().position(|bytes| is_ack(bytes)), Some(before_ack));
        let train = b.wire.trains.iter().find(|t| is_ack(t.datagrams.last().unwrap())).unwrap();
        assert!(train.datagrams.len() > 1);
        carry(&mut b, &mut a, 0, |_| false);
        assert_eq!(a.poll()[0].status, WcStatus::SUCCESS);
    }
}

#[test]
fn what_is_posted_goes_before_what_other_queue_pairs_owe() {
    let [mut a, mut b] = pair("::1", 64, QpOptions::empty());
    let posted = b.create_qp();
    b.start(posted, a.address(), a.qpn ^ 1, QpOptions::empty());
    a.write(a.qpn, 8, target(&b));
    a.transmit(0);
    deliver(&mut a, &mut b, 0, |_| false);
    assert!(b.device.is_ready());
    b.write(posted, 8, target(&a));
    b.transmit(0);
    assert!(!b.device.is_ready());
    let to: Vec<u32> =
        b.wire.packets().iter().map(|p| Packet::decode(p).unwrap().headers.bth.dest_qp).collect();
    assert_eq!(to, [a.qpn ^ 1, a.qpn]);
}

#[test]
fn a_sink_without_room_delays_packets_and_loses_none() {
    let len = 30 * 1024 + 1;
    for options in [QpOptions::empty(), QpOptions::ADAPTIVE_ROUTING] {
        let all = {
            let [mut a, b] = pair("::1", len, options);
            a.write(a.qpn, len, target(&b));
            a.transmit(0);
            a.wire.packets()
        };
        for room in 1..8 {
            let [mut a, b] = pair("::1", len, options);
            a.write(a.qpn, len, target(&b));
            for _ in 0..all.len().div_ceil(room) + 1 {
                a.wire.room = room;
                a.transmit(0);
            }
            assert!(!a.device.is_blocked());
            // The two devices differ in memory addresses alone.
            let psns = |packets: &[Vec<u8>]| -> Vec<(u32, usize)> {
                let psn = |bytes: &[u8]| Packet::decode(bytes).unwrap().headers.bth.psn.get();
                packets.iter().map(|packet| (psn(packet), packet.len())).collect()
            };
            assert_eq!(psns(&a.wire.packets()), psns(&all), "room for {room}");
            let counters = a.device.counters();
            assert_eq!(counters.packets_sent, all.len() as u64);
            assert_eq!(counters.bytes_sent, all.iter().map(|p| p.len() as u64).sum::<u64>());
            assert!(counters.sink_full > 0);
        }
    }
}

#[test]
fn what_waited_for_room_is_not_sent_once_its_memory_or_queue_pair_is_gone() {
    #[derive(Clone, Copy, PartialEq)]
    enum Gone {
        Memory,
        QueuePair,
        /// The queue pair is in this state.
        State(QpTransition),
        /// The peer refused the request, so the queue pair is in ERR.
        Refused,
    }
    let states = [QpTransition::Err, QpTransition::Reset].map(Gone::State);
    for gone in [Gone::Memory, Gone::QueuePair, Gone::Refused].into_iter().chain(states) {
        let len = 30 * 1024;
        let [mut a, mut b] = pair("::1", len, QpOptions::empty());
        let (addr, key) = target(&b);
        a.write(a.qpn, len, (addr, if gone == Gone::Refused { !key } else { key }));
        a.wire.room = 1;
        a.transmit(0);
        assert!(a.device.is_blocked());
        let secret = HostMemory::alloc(len).unwrap();
        match gone {
            Gone::QueuePair => a.device.destroy_qp(0, a.qpn),
            Gone::State(transition) => a.device.modify_qp(a.qpn, &transition).unwrap(),
            Gone::Memory => {
                a.device.dereg_mr(a.key).unwrap();
                // The new region takes the place of the old one.
                a.device.reg_mr(a.pd, &secret, secret.addr(), Access::empty()).unwrap();
            }
            Gone::Refused => {
                carry(&mut a, &mut b, 0, |_| false);
                deliver(&mut b, &mut a, 0, |_| false);
                assert_eq!(a.poll()[0].status, WcStatus::REM_ACCESS_ERR);
            }
        }
        a.wire.trains.clear();
        a.wire.room = usize::MAX;
        a.transmit(0);
        assert!(!a.device.is_blocked());
        // The program may use the memory of the prepared packet again.
        assert!(a.wire.trains.is_empty());
        if gone == Gone::Memory {
            assert_eq!(a.poll()[0].status, WcStatus::LOC_PROT_ERR);
        }
    }
}

#[test]
fn what_waits_for_room_behind_packets_of_a_queue_pair_that_ends_still_leaves() {
    let [mut a, b] = pair("::1", 3072, QpOptions::empty());
    let other = a.create_qp();
    a.start(other, b.address(), b.qpn, QpOptions::empty());
    a.write(other, 3072, target(&b));
    // The queue pair with the latest request sends first.
    a.write(a.qpn, 1024, target(&b));
    a.wire.room = 0;
    a.transmit(0);
    a.device.modify_qp(a.qpn, &QpTransition::Err).unwrap();
    assert!(a.device.is_blocked());
    a.wire.room = usize::MAX;
    a.transmit(0);
    assert!(!a.device.is_blocked());
    let packets = a.wire.packets();
    let last = packets.last().map(|bytes| Packet::decode(bytes).unwrap().headers.bth.psn.get());
    assert_eq!(last, Some(2));
}

#[test]
fn memory_that_changes_while_a_packet_waits_for_room_never_arrives_half_changed() {
    for opcode in [SendOpcode::RdmaWrite, SendOpcode::RdmaRead] {
        let [mut a, mut b] = pair("::1", 1024, QpOptions::empty());
        let source = [&a, &b][usize::from(opcode == SendOpcode::RdmaRead)].memory.clone();
        source.write_at(0, &[1; 1024]).unwrap();
        a.post(a.qpn, opcode, 1024, target(&b));
        (a.wire.room, b.wire.room) = match opcode {
            SendOpcode::RdmaRead => (usize::MAX, 0),
            _ => (0, usize::MAX),
        };
        a.transmit(0);
        carry(&mut a, &mut b, 0, |_| false);
        source.write_at(500, &[2; 100]).unwrap();
        (a.wire.room, b.wire.room) = (usize::MAX, usize::MAX);
        for now in [0, Tuning::default().probe_ns] {
            a.device.handle_timers(now);
            a.transmit(now);
            carry(&mut a, &mut b, now, |_| false);
            carry(&mut b, &mut a, now, |_| false);
        }
        assert_eq!(a.poll()[0].status, WcStatus::SUCCESS);
        let read = opcode == SendOpcode::RdmaRead;
        let mut arrived = [0; 1024];
        [&b, &a][usize::from(read)].memory.read_at(0, &mut arrived).unwrap();
        // A request is read when it goes out, and its damaged packet is dropped once. A response is a
        // copy.
        assert_eq!(arrived[500..600], [if read { 1 } else { 2 }; 100]);
        assert_eq!(b.device.counters().icrc_bad, u64::from(!read));
        assert_eq!(a.device.counters().icrc_bad, 0);
    }
}
