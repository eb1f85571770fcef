//! Tests packets of strangers, and peers with invalid addresses.

use std::net::SocketAddr;

use invar_core::nic::{AddressVector, QpOptions, QpTransition, RtrAttr, WcStatus};

use super::{End, carry, deliver, pair, target};

#[test]
fn a_packet_from_another_port_than_the_peer_has_named_is_no_packet_of_the_peers() {
    let [mut a, mut b] = pair("::1", 8, QpOptions::empty());
    a.memory.write_at(0, &[0xee; 8]).unwrap();
    a.write(a.qpn, 8, target(&b));
    a.transmit(0);
    // Everything but the port is right. The ICRC is right too, since it would be the other port's.
    let forged = a.wire.packets().remove(0);
    let ip = a.address().ip();
    let named = super::SOURCE_PORTS.port(a.qpn);
    for port in [named ^ 3, 4791, 1] {
        b.device.handle_datagram(0, SocketAddr::new(ip, port), &forged);
    }
    assert_eq!(b.device.counters().wrong_source, 3);
    carry(&mut a, &mut b, 0, |_| false);
    deliver(&mut b, &mut a, 0, |_| false);
    assert_eq!(a.poll()[0].status, WcStatus::SUCCESS, "the real one counts");
}

#[test]
fn queue_pair_numbers_and_keys_are_not_those_of_the_next_device() {
    let numbers = |port| {
        let mut end = End::new("::1".parse().unwrap(), port, 8);
        let key = end.key;
        (0..100).map(|_| end.create_qp()).chain([key]).collect::<Vec<_>>()
    };
    let (one, other) = (numbers(1), numbers(2));
    let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert_eq!(same, 0);
    assert!(one.windows(2).any(|pair| pair[0] > pair[1]), "they are not counted");
}

#[test]
fn a_peer_that_would_have_packets_sent_to_many_or_to_our_own_services_is_refused() {
    let refused = |local: &str, gid: &str| {
        let mut end = End::new(local.parse().unwrap(), 4791, 8);
        let ip: std::net::IpAddr = gid.parse().unwrap();
        let ah = AddressVector { dgid: ip.into(), ..AddressVector::default() };
        let rtr = QpTransition::Rtr(RtrAttr { ah, ..RtrAttr::default() });
        end.device.modify_qp(end.qpn, &rtr).is_err()
    };
    for gid in ["224.0.0.1", "255.255.255.255", "0.0.0.0", "127.0.0.1"] {
        assert!(refused("192.0.2.1", gid), "{gid}");
    }
    for gid in ["ff02::1", "::", "::1"] {
        assert!(refused("2001:db8::1", gid), "{gid}");
    }
    assert!(!refused("192.0.2.1", "192.0.2.2") && !refused("127.0.0.1", "127.0.0.2"));
}
