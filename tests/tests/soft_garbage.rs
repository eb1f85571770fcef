//! The NIC counts datagrams that are not for it, or come from unknown senders, and changes nothing
//! else.

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use invar_core::nic::{Nic, SendOpcode, WcStatus};
use invar_core::roce::{Bth, Flow, HEADERS_BYTES_MAX, Headers, Ipv4Id, Opcode, Psn, Reth};
use invar_linux::soft::{DeviceCounters, SoftConfig, SoftNic};
use invar_testkit::end::{End, Link};
use invar_testkit::random::Random;
use invar_testkit::strangers::Stops;
use invar_testkit::wait::until;

struct Target {
    ends: [End<SoftNic>; 2],
    stranger: UdpSocket,
}

impl Target {
    fn new() -> Target {
        let open = || SoftNic::open(&SoftConfig::new("soft", "[::1]:0".parse().unwrap())).unwrap();
        let ends = End::pair([&open(), &open()], 64, &Link::default());
        Target { ends, stranger: UdpSocket::bind("[::1]:0").unwrap() }
    }

    /// Sends bytes to the second end, from the IP address of the first end.
    fn send(&self, bytes: &[u8]) {
        let port = self.ends[1].nic.query_port().unwrap().udp_port;
        self.stranger.send_to(bytes, ("::1", port)).unwrap();
    }

    /// Waits until `count` returns `n` for the second end.
    fn expect(&self, n: u64, count: impl Fn(&DeviceCounters) -> u64) {
        let nic = &self.ends[1].nic;
        until("datagrams", || count(&nic.counters().device) == n);
    }

    /// Checks that the connection works and that no byte was written.
    fn is_unharmed(&self) {
        let [a, b] = &self.ends;
        assert_eq!(b.buffer.read(0, 64), [0; 64]);
        a.post(&a.work(SendOpcode::RdmaRead, 64, b));
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
    }

    /// A WRITE that the second end would carry out if it came from the first end. `change` may alter
    /// its headers.
    fn write(&self, change: impl FnOnce(&mut Headers)) -> Vec<u8> {
        let b = &self.ends[1];
        let bth = Bth {
            opcode: Opcode::WRITE_ONLY,
            pkey: 0xffff,
            dest_qp: b.nic.qp_num(&b.qp),
            ack_req: true,
            psn: Psn::new(Link::default().psn),
            ..Bth::default()
        };
        let reth = Reth { va: b.buffer.addr(0), rkey: b.buffer.rkey(), dma_len: 4 };
        let mut headers = Headers { bth, reth: Some(reth), ..Headers::default() };
        change(&mut headers);
        let mut bytes = [0; HEADERS_BYTES_MAX];
        let len = headers.encode(&mut bytes);
        let mut packet = [&bytes[..len], b"spam"].concat();
        let to = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), b.nic.query_port().unwrap().udp_port);
        let mut flow = Flow::new(self.stranger.local_addr().unwrap(), to).unwrap();
        packet.extend(flow.icrc(Ipv4Id::Masked, &packet));
        packet
    }
}

#[test]
fn noise() {
    let target = Target::new();
    let mut state = 1u64;
    for len in 1..=200 {
        let noise: Vec<u8> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        target.send(&noise);
    }
    target.expect(200, |c| c.malformed + c.unknown_qp);
    target.is_unharmed();
}

#[test]
fn a_flood_of_noise_and_forged_packets_harms_no_transfer() {
    const SEED: u64 = 0xf100d;
    let target = Target::new();
    let [a, b] = &target.ends;
    let (mut random, ours) = (Random::new(SEED), b.nic.qp_num(&b.qp));
    let packets: Vec<Vec<u8>> = (0..256)
        .map(|i| match i % 2 {
            0 => (0..1 + random.below(1400)).map(|_| random.next() as u8).collect(),
            _ => target.write(|headers| {
                // The number differs from that of the queue pair.
                headers.bth.dest_qp = (ours ^ (1 + random.below(0xff_ffff) as u32)) & 0xff_ffff;
                headers.bth.psn = Psn::new(random.next() as u32 & Psn::MASK);
            }),
        })
        .collect();
    let (stranger, stop) = (target.stranger.try_clone().unwrap(), &AtomicBool::new(false));
    let (there, port) = (&AtomicBool::new(false), b.nic.query_port().unwrap().udp_port);
    thread::scope(|scope| {
        scope.spawn(move || {
            for (number, packet) in packets.iter().enumerate().cycle() {
                // The kernel's buffer may be full.
                let _ = stranger.send_to(packet, ("::1", port));
                there.store(true, Ordering::Release);
                if stop.load(Ordering::Acquire) {
                    break;
                }
                if number % 64 == 0 {
                    thread::sleep(Duration::from_micros(100));
                }
            }
        });
        let _stops = Stops(stop);
        until("a packet", || there.load(Ordering::Acquire));
        for round in 1..=100_u8 {
            a.buffer.write(0, &[round; 64]);
            a.post(&a.work(SendOpcode::RdmaWrite, 32, b));
            let status = a.wait().status;
            let bytes = b.buffer.read(0, 64);
            let how = format!("round {round}, seed {SEED:#x}: {bytes:?}");
            assert_eq!(status, WcStatus::SUCCESS, "{how}");
            assert!(bytes[..32] == [round; 32] && bytes[32..] == [0; 32], "{how}");
        }
    });
    let counters = b.nic.counters().device;
    assert!(counters.malformed + counters.unknown_qp > 0, "{counters:?}");
}

#[test]
fn packets_cut_short_anywhere() {
    let target = Target::new();
    let packet = target.write(|_| ());
    (1..packet.len()).for_each(|len| target.send(&packet[..len]));
    target.expect(packet.len() as u64 - 1, |c| c.malformed + c.icrc_bad);
    target.is_unharmed();
}

#[test]
fn packets_with_any_bit_flipped() {
    let target = Target::new();
    let packet = target.write(|_| ());
    // The ICRC does not cover byte 4 of the BTH, which has the congestion marks.
    let bits = (0..packet.len() * 8).filter(|bit| bit / 8 != 4);
    let count = bits.clone().count() as u64;
    for bit in bits {
        let mut damaged = packet.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        target.send(&damaged);
    }
    target.expect(count, |c| c.malformed + c.icrc_bad + c.unknown_qp);
    target.is_unharmed();
}

#[test]
fn packets_for_queue_pairs_that_are_not_there() {
    let target = Target::new();
    let qpn = target.ends[1].nic.qp_num(&target.ends[1].qp);
    // The numbers name no slot, another slot, or another use of the queue pair's slot.
    for other in [0, 1, 0xff_ffff, qpn ^ 0x1_0000, qpn ^ 1] {
        target.send(&target.write(|headers| headers.bth.dest_qp = other));
    }
    target.expect(5, |c| c.unknown_qp);
    target.is_unharmed();
}

#[test]
fn packets_of_another_partition() {
    let target = Target::new();
    target.send(&target.write(|headers| headers.bth.pkey = 0x8001));
    target.expect(1, |c| c.wrong_pkey);
    target.is_unharmed();
}

#[test]
fn packets_for_a_queue_pair_without_a_peer() {
    let target = Target::new();
    let idle = End::new(&target.ends[1].nic, 8);
    let qpn = idle.nic.qp_num(&idle.qp);
    target.send(&target.write(|headers| headers.bth.dest_qp = qpn));
    target.expect(1, |c| c.unconnected);
}

#[test]
fn packets_from_another_address_than_the_peers() {
    let config = SoftConfig::new("soft", "127.0.0.1:0".parse().unwrap());
    let nics = [0, 1].map(|_| SoftNic::open(&config).unwrap());
    let [_a, b] = End::pair([&nics[0], &nics[1]], 64, &Link::default());
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    let qpn = b.nic.qp_num(&b.qp).to_be_bytes();
    let packet = [&[0x0a, 0, 0xff, 0xff][..], &qpn, &[0; 40]].concat();
    stranger.send_to(&packet, ("127.0.0.1", b.nic.query_port().unwrap().udp_port)).unwrap();
    until("datagram", || b.nic.counters().device.wrong_source == 1);
}

#[test]
fn the_packet_that_the_others_are_made_of_would_be_carried_out() {
    let target = Target::new();
    target.send(&target.write(|_| ()));
    until("write", || target.ends[1].buffer.read(0, 4) == b"spam");
}
