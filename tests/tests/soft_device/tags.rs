//! Tests packets that carry tags in place of the ICRC.

use std::net::SocketAddr;

use invar_core::auth::Secret;
use invar_core::nic::{PacketKeys, QpOptions, SendOpcode, WcStatus};
use invar_testkit::pattern::pattern;

use super::{End, PORTS, carry, deliver, ip_packet, pair, pair_with, target};

const TAG_BYTES: usize = 16;

/// Two ends whose packets carry tags. Each of `keys` is the key for the packets of one end.
fn tagged(ip: &str, len: usize, keys: [u8; 2], options: QpOptions) -> [End; 2] {
    let [first, second] = keys.map(|key| Secret::new([key; 32]));
    let keys = [(first, second), (second, first)];
    pair_with(ip, len, options, keys.map(|(send, recv)| Some(PacketKeys { send, recv })))
}

#[test]
fn writes_and_reads_of_all_lengths_pass_with_tags_in_order_and_not() {
    for options in [QpOptions::empty(), QpOptions::ADAPTIVE_ROUTING] {
        for ip in ["192.0.2.1", "2001:db8::1"] {
            for len in [0, 1, 3, 1023, 1024, 5000, 70_001] {
                let [mut a, mut b] = tagged(ip, len.max(1), [1, 2], options);
                let sent = pattern(0, len);
                a.memory.write_at(0, &sent).unwrap();
                a.write(a.qpn, len, target(&b));
                b.post(b.qpn, SendOpcode::RdmaRead, len, target(&a));
                for now in 0..100 {
                    a.transmit(now);
                    b.transmit(now);
                    carry(&mut a, &mut b, now, |_| false);
                    carry(&mut b, &mut a, now, |_| false);
                }
                let mut got = vec![0; len];
                b.memory.read_at(0, &mut got).unwrap();
                assert!(got == sent, "{ip} {len}");
                for end in [&mut a, &mut b] {
                    assert_eq!(end.poll()[0].status, WcStatus::SUCCESS, "{ip} {len}");
                    let counters = end.device.counters();
                    assert_eq!((counters.tag_bad, counters.icrc_unverified), (0, 0));
                }
            }
        }
    }
}

#[test]
fn a_packet_with_any_bit_changed_is_dropped() {
    let [mut a, mut b] = tagged("192.0.2.1", 40, [1, 2], QpOptions::empty());
    a.memory.write_at(0, &[7; 40]).unwrap();
    a.write(a.qpn, 40, target(&b));
    a.transmit(0);
    let packet = a.wire.packets().remove(0);
    let from = SocketAddr::new(a.address().ip(), super::SOURCE_PORTS.port(a.qpn));
    for bit in 0..packet.len() * 8 {
        let mut changed = packet.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        b.device.handle_datagram(0, from, &changed);
    }
    let counters = b.device.counters();
    // A change in the number of the queue pair leads elsewhere. Some changes make a packet too short
    // for its opcode.
    let dropped = counters.tag_bad + counters.malformed + counters.unknown_qp;
    assert_eq!(dropped, packet.len() as u64 * 8);
    assert_eq!((counters.unknown_qp, counters.qps.packets_received), (24, 0));
    for len in 0..packet.len() {
        b.device.handle_datagram(0, from, &packet[..len]);
    }
    assert_eq!(b.device.counters().qps.packets_received, 0);
    carry(&mut a, &mut b, 0, |_| false);
    assert_eq!(b.device.counters().qps.packets_received, 1, "the one that was not changed");
}

#[test]
fn who_lacks_the_key_makes_no_packet_that_counts() {
    // The forgeries have the right ICRC, the peer's key for the other direction, or another
    // connection's key.
    let [mut a, b] = pair("192.0.2.1", 8, QpOptions::ICRC_MASKS_IP_ID);
    let forgers = [[2, 1], [3, 4]].map(|keys| tagged("192.0.2.1", 8, keys, QpOptions::empty()));
    let [real, mut victim] = tagged("192.0.2.1", 8, [1, 2], QpOptions::empty());
    let from = SocketAddr::new(real.address().ip(), super::SOURCE_PORTS.port(real.qpn));
    a.write(a.qpn, 8, target(&b));
    a.transmit(0);
    let mut forged = a.wire.packets();
    for [mut forger, other] in forgers {
        // Devices of one seed have equal numbers, so only the tag differs from the real peer's.
        assert_eq!((forger.qpn, other.qpn), (real.qpn, victim.qpn));
        forger.write(forger.qpn, 8, target(&victim));
        forger.transmit(0);
        forged.extend(forger.wire.packets());
    }
    assert_eq!(forged.len(), 3);
    for packet in &forged {
        victim.device.handle_datagram(0, from, packet);
    }
    let counters = victim.device.counters();
    assert_eq!((counters.tag_bad + counters.malformed, counters.qps.packets_received), (3, 0));
}

#[test]
fn an_acknowledge_without_a_tag_is_dropped_too() {
    let [mut a, mut b] = tagged("::1", 8, [1, 2], QpOptions::empty());
    let [mut c, mut d] = pair("::1", 8, QpOptions::empty());
    for (from, to) in [(&mut a, &mut b), (&mut c, &mut d)] {
        from.write(from.qpn, 8, target(to));
        from.transmit(0);
        carry(from, to, 0, |_| false);
    }
    let forged = d.wire.packets().remove(0);
    let port = super::SOURCE_PORTS.port(b.qpn);
    a.device.handle_datagram(0, SocketAddr::new(b.address().ip(), port), &forged);
    assert!(a.poll().is_empty());
    deliver(&mut b, &mut a, 0, |_| false);
    assert_eq!(a.poll()[0].status, WcStatus::SUCCESS);
}

#[test]
fn a_destroyed_queue_pair_answers_with_tags() {
    let [mut a, mut b] = tagged("::1", 8, [1, 2], QpOptions::empty());
    a.write(a.qpn, 8, target(&b));
    a.transmit(0);
    carry(&mut a, &mut b, 0, |_| false);
    b.wire.trains.clear();
    b.device.destroy_qp(1, b.qpn);
    let deadline = a.device.next_deadline_ns().unwrap();
    a.device.handle_timers(deadline);
    a.transmit(deadline);
    carry(&mut a, &mut b, deadline, |_| false);
    deliver(&mut b, &mut a, deadline, |_| false);
    assert_eq!(a.poll()[0].status, WcStatus::SUCCESS);
}

#[test]
fn packets_end_with_a_tag_of_sixteen_bytes_and_trains_stay_equally_long() {
    let [mut a, b] = tagged("192.0.2.1", 20_480, [1, 2], QpOptions::empty());
    a.write(a.qpn, 20_480, target(&b));
    a.transmit(0);
    // The first packet is longer by its RETH, and so leaves alone.
    let train = &a.wire.trains[1];
    let lengths: Vec<usize> = train.datagrams[..10].iter().map(Vec::len).collect();
    assert_eq!(lengths, [12 + 1024 + TAG_BYTES; 10]);
    let from = SocketAddr::new(a.address().ip(), PORTS[train.source]);
    let whole = ip_packet(from, train.to, 1, &train.datagrams[1]);
    let packet = invar_core::roce::IpDatagram::decode(&whole).unwrap();
    assert!(!packet.verify_icrc(true), "there is no ICRC");
}
