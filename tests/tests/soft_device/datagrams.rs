//! Tests datagrams: their receivers, their headers, and packets that are not admitted.

use std::net::SocketAddr;

use invar_core::nic::{
    AddressVector, Memory, Mtu, QpCap, QpOptions, QpTransition, QpType, RecvWr, RtrAttr, RtsAttr,
    SendFlags, SendOpcode, SendWr, Sge, WcFlags, WcStatus,
};
use invar_core::roce::qp::Destination;
use invar_linux::soft::{QpConfig, Receiver};

use super::{End, PORTS, deliver};

const QKEY: u32 = 0x11;
const LEN: usize = 1024;

fn end(ip: &str, port: u16) -> End {
    with_peers(ip, port, QpOptions::ICRC_MASKS_IP_ID)
}

fn with_peers(ip: &str, port: u16, options: QpOptions) -> End {
    let mut end = End::with_peers(ip.parse().unwrap(), port, 4096, options);
    let cap = QpCap { max_send_wr: 64, max_recv_wr: 8, max_inline_data: 64 };
    let config = QpConfig { qp_type: QpType::Ud, ..QpConfig::new(end.pd, end.cq, cap) };
    end.qpn = end.device.create_qp(&config).unwrap();
    let access = invar_core::nic::Access::empty();
    let rtr = RtrAttr { path_mtu: Mtu::Mtu1024, ..RtrAttr::default() };
    for transition in [
        QpTransition::Init { pkey_index: 0, port_num: 1, access },
        QpTransition::Rtr(rtr),
        QpTransition::Rts(RtsAttr::default()),
    ] {
        end.device.modify_qp(end.qpn, &transition).unwrap();
    }
    end.device.set_qkey(end.qpn, QKEY).unwrap();
    end
}

fn receiver(end: &End) -> Receiver {
    let address = end.address();
    let ah = AddressVector {
        dgid: address.ip().into(),
        udp_port: address.port(),
        ..AddressVector::default()
    };
    Receiver { ah, destination: Destination { qp_num: end.qpn, qkey: QKEY } }
}

fn post(from: &mut End, to: &Receiver, len: usize) {
    from.device.set_receiver(from.qpn, to).unwrap();
    from.post(from.qpn, SendOpcode::Send, len, (0, 0));
}

fn post_receive(end: &mut End) {
    let sge = Sge { addr: end.memory.addr(), length: 40 + LEN as u32, lkey: end.key };
    end.device.post_recv(end.qpn, &RecvWr { wr_id: 2, sge, ..RecvWr::default() }).unwrap();
}

#[test]
fn datagrams_find_the_receiver_of_their_request_and_show_their_ip_header() {
    for ip in ["192.0.2.1", "2001:db8::1"] {
        let mut from = end(ip, 5000);
        let mut receivers = [end(ip, 5001), end(ip, 5002)];
        from.memory.write_at(0, &[7; LEN]).unwrap();
        for to in [0, 1, 1, 0] {
            post(&mut from, &receiver(&receivers[to]), LEN);
        }
        from.transmit(0);
        assert_eq!(from.poll().len(), 4);
        let trains: Vec<_> = from.wire.trains.drain(..).collect();
        for train in trains {
            let to = receivers.iter_mut().find(|end| end.address() == train.to).unwrap();
            let source = SocketAddr::new(from.address().ip(), PORTS[train.source]);
            for datagram in &train.datagrams {
                post_receive(to);
                to.device.handle_datagram(0, source, datagram);
                let wc = to.poll()[0];
                assert_eq!((wc.status, wc.src_qp), (WcStatus::SUCCESS, from.qpn));
                assert_eq!((wc.byte_len, wc.flags), (40 + LEN as u32, WcFlags::GRH));
                assert_eq!(wc.sl, if ip.contains(':') { 9 } else { 10 }, "UDP over which IP");
                let mut bytes = [0; 40 + LEN];
                to.memory.read_at(0, &mut bytes).unwrap();
                assert!(bytes[40..].iter().all(|byte| *byte == 7));
                match ip.contains(':') {
                    true => assert_eq!((bytes[0] >> 4, bytes[23], bytes[39]), (6, 1, 1)),
                    false => {
                        assert_eq!(bytes[..20], [0; 20]);
                        assert_eq!(bytes[20], 0x45);
                        assert_eq!(bytes[32..40], [192, 0, 2, 1, 192, 0, 2, 1]);
                    }
                }
            }
        }
    }
}

#[test]
fn a_datagram_that_waits_for_room_keeps_the_bytes_that_it_had_when_its_request_completed() {
    let (mut from, mut to) = (end("::1", 5000), end("::1", 5001));
    from.memory.write_at(0, &[7; LEN]).unwrap();
    from.wire.room = 0;
    post(&mut from, &receiver(&to), LEN);
    from.transmit(0);
    assert_eq!(from.poll().len(), 1);
    from.memory.write_at(0, &[8; LEN]).unwrap();
    from.wire.room = 1;
    from.transmit(1);
    post_receive(&mut to);
    deliver(&mut from, &mut to, 1, |_| false);
    assert_eq!(to.poll().len(), 1);
    let mut bytes = [0; LEN];
    to.memory.read_at(40, &mut bytes).unwrap();
    assert_eq!(bytes, [7; LEN]);
}

#[test]
fn datagrams_of_peers_that_are_not_invar_are_checked_over_ipv6_alone() {
    for (ip, is_taken) in [("192.0.2.1", true), ("2001:db8::1", false)] {
        let mut from = end(ip, 5000);
        let mut to = with_peers(ip, 5001, QpOptions::empty());
        post_receive(&mut to);
        post(&mut from, &receiver(&to), 100);
        from.transmit(0);
        let mut sent = from.wire.packets().remove(0);
        let source = SocketAddr::new(from.address().ip(), PORTS[from.wire.trains[0].source]);
        // A UDP socket hides a part of what the ICRC of IPv4 covers.
        *sent.last_mut().unwrap() ^= 1;
        to.device.handle_datagram(0, source, &sent);
        assert_eq!(to.poll().len(), usize::from(is_taken), "{ip}");
        let counters = to.device.counters();
        let expected = (u64::from(is_taken), u64::from(!is_taken));
        assert_eq!((counters.icrc_unverified, counters.icrc_bad), expected, "{ip}");
    }
}

#[test]
fn damaged_datagrams_and_those_of_another_partition_are_dropped() {
    let (mut from, mut to) = (end("::1", 5000), end("::1", 5001));
    post_receive(&mut to);
    post(&mut from, &receiver(&to), 100);
    from.transmit(0);
    let sent = from.wire.packets().remove(0);
    let source = SocketAddr::new(from.address().ip(), PORTS[from.wire.trains[0].source]);
    for at in 0..sent.len() {
        let mut damaged = sent.clone();
        damaged[at] ^= 1;
        to.device.handle_datagram(0, source, &damaged);
        // The ICRC leaves out the byte in front of the queue pair number.
        to.device.handle_datagram(0, source, &sent[..at]);
    }
    // The bits for congestion may change on the way.
    assert_eq!(to.poll().len(), 1);
    post_receive(&mut to);
    to.device.handle_datagram(0, SocketAddr::new(source.ip(), 9), &sent);
    assert!(to.poll().is_empty(), "the ICRC covers the source port");
    to.device.handle_datagram(0, source, &sent);
    assert_eq!(to.poll().len(), 1);
}

#[test]
fn receivers_that_are_no_hosts_are_refused_and_so_are_datagrams_without_a_receiver() {
    let mut from = end("192.0.2.1", 5000);
    let mut wrong = receiver(&from);
    for gid in ["224.0.0.1", "127.0.0.1", "2001:db8::1"] {
        wrong.ah.dgid = gid.parse::<std::net::IpAddr>().unwrap().into();
        assert!(from.device.set_receiver(from.qpn, &wrong).is_err(), "{gid}");
        assert!(from.device.check_address(&wrong.ah).is_err(), "{gid}");
    }
    let flags = SendFlags::SIGNALED;
    let wr = SendWr { opcode: SendOpcode::Send, flags, ..SendWr::default() };
    from.device.post_send(from.qpn, &wr).unwrap();
    from.transmit(0);
    assert_eq!(from.poll()[0].status, WcStatus::LOC_PROT_ERR);
    assert!(from.wire.trains.is_empty());
}
