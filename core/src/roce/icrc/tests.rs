use proptest::prelude::*;
use std::vec::Vec;

use super::*;
use crate::roce::IpDatagram;

extern crate std;

/// Computes the ICRC bit by bit, as the standard words it, for an IP packet without its ICRC.
fn naive_icrc(ip: &[u8], mask_ip_id: bool) -> [u8; 4] {
    let mut bytes = ip.to_vec();
    let udp = if ip[0] >> 4 == 4 {
        bytes[1] = 0xff;
        bytes[8] = 0xff;
        bytes[10..12].fill(0xff);
        if mask_ip_id {
            bytes[4..6].fill(0xff);
        }
        20
    } else {
        bytes[0] |= 0x0f;
        bytes[1..4].fill(0xff);
        bytes[7] = 0xff;
        40
    };
    bytes[udp + 6..udp + 8].fill(0xff);
    bytes[udp + 8 + 4] = 0xff;
    let mut crc = u32::MAX;
    for byte in [0xff; 8].into_iter().chain(bytes) {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    (!crc).to_le_bytes()
}

/// Builds the IP packet that a UDP socket makes from a payload. `noise` fills the fields that a router
/// may change.
fn ip_packet(src: SocketAddr, dst: SocketAddr, id: u16, noise: u8, payload: &[u8]) -> Vec<u8> {
    let udp_len = 8 + payload.len() as u16 + 4;
    let mut ip = Vec::new();
    match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            ip.extend([0x45, noise]);
            ip.extend((20 + udp_len).to_be_bytes());
            ip.extend(id.to_be_bytes());
            ip.extend([0x40, 0, noise, 17, noise, noise]);
            ip.extend(src.octets());
            ip.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            ip.extend([0x60 | noise & 0x0f, noise, noise, noise]);
            ip.extend(udp_len.to_be_bytes());
            ip.extend([17, noise]);
            ip.extend(src.octets());
            ip.extend(dst.octets());
        }
        _ => unreachable!("the test asks for one family"),
    }
    ip.extend(src.port().to_be_bytes());
    ip.extend(dst.port().to_be_bytes());
    ip.extend(udp_len.to_be_bytes());
    ip.extend([noise, noise]);
    ip.extend(payload);
    ip
}

fn addresses() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    let v4 = any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
    let v6 = any::<([u8; 16], [u8; 16])>()
        // Another test covers IPv4 addresses mapped into IPv6.
        .prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)))
        .prop_filter("not mapped", |(a, b)| a.to_canonical() == *a && b.to_canonical() == *b);
    (prop_oneof![v4, v6], any::<(u16, u16)>()).prop_map(|((src, dst), (sport, dport))| {
        (SocketAddr::new(src, sport), SocketAddr::new(dst, dport))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn sender_and_both_receivers_agree_with_the_naive_one(
        (src, dst) in addresses(),
        id: u16,
        mask_ip_id: bool,
        noise: u8,
        payload in prop::collection::vec(any::<u8>(), 12..1000),
    ) {
        let id_of = if mask_ip_id { Ipv4Id::Masked } else { Ipv4Id::Known(id) };
        let mut ip = ip_packet(src, dst, id, noise, &payload);
        let icrc = naive_icrc(&ip, mask_ip_id);

        let mut flow = Flow::new(src, dst).unwrap();
        prop_assert_eq!(flow.icrc(id_of, &payload), icrc);

        let mut udp_payload = [&payload[..], &icrc].concat();
        prop_assert!(flow.verify(id_of, &udp_payload));
        ip.extend(icrc);
        prop_assert!(IpDatagram::decode(&ip).unwrap().verify_icrc(mask_ip_id));
        udp_payload[11] ^= 1;
        prop_assert!(!flow.verify(id_of, &udp_payload));
    }

    #[test]
    fn a_flow_tells_packets_of_different_lengths_and_masked_bytes_apart(
        (src, dst) in addresses(),
        packets in prop::collection::vec(
            (prop::sample::select(&[40, 700, 701, 1200][..]), any::<u8>(), any::<bool>(), any::<u16>()),
            1..20,
        ),
    ) {
        let mut flow = Flow::new(src, dst).unwrap();
        for (len, content, masked, id) in packets {
            let mut packet: Vec<u8> = (0..len).map(|i| content.wrapping_mul(i as u8)).collect();
            packet[BTH_MASKED] = if masked { 0x40 } else { 0 };
            let ip = ip_packet(src, dst, id, 0, &packet);
            prop_assert_eq!(flow.icrc(Ipv4Id::Known(id), &packet), naive_icrc(&ip, false));
            prop_assert_eq!(flow.icrc(Ipv4Id::Masked, &packet), naive_icrc(&ip, true));
        }
    }
}

/// A NAK that Linux 6.1 rxe sent from 10.77.0.2 to 10.77.0.1.
const NAK: [u8; 20] = [
    0x11, 0, 0xff, 0xff, 0, 0, 0, 0x1f, 0, 0xff, 0xff, 0xfa, 0x63, 0, 0, 0, 0xca, 0x86, 0xf9, 0x09,
];

#[test]
fn mapped_addresses_are_ipv4() {
    let v4 = ["10.77.0.2:50113", "10.77.0.1:4791"].map(|a| a.parse().unwrap());
    let mapped =
        ["[::ffff:10.77.0.2]:50113", "[::ffff:10.77.0.1]:4791"].map(|a| a.parse().unwrap());
    for [src, dst] in [v4, mapped, [v4[0], mapped[1]]] {
        let mut flow = Flow::new(src, dst).unwrap();
        assert!(flow.verify(Ipv4Id::Known(0xc403), &NAK));
        assert!([Ipv4Id::Known(0xc404), Ipv4Id::Masked].iter().all(|id| !flow.verify(*id, &NAK)));
    }
    let v6: SocketAddr = "[fd77::1]:4791".parse().unwrap();
    assert_eq!(Flow::new(v4[0], v6).unwrap_err(), MixedFamilies);
}

#[test]
fn too_short_never_verifies() {
    let mut flow = Flow::new(([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into()).unwrap();
    for len in 0..16 {
        let mut bytes = std::vec![0xff; len];
        if let Some((covered, icrc)) = bytes.split_last_chunk_mut::<4>() {
            *icrc = flow.icrc(Ipv4Id::Masked, covered);
        }
        assert!(!flow.verify(Ipv4Id::Masked, &bytes), "{len} bytes");
    }
}
