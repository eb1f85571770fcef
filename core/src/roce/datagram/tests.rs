use std::format;
use std::vec::Vec;

use super::*;

extern crate std;

/// A NAK from Linux 6.1 rxe over IPv4.
#[rustfmt::skip]
const NAK: [u8; 48] = [
    0x45, 0x00, 0x00, 0x30, 0xc4, 0x03, 0x40, 0x00, 0x40, 0x11, 0x62, 0x1d, 0x0a, 0x4d, 0x00, 0x02,
    0x0a, 0x4d, 0x00, 0x01, 0xc3, 0xc1, 0x12, 0xb7, 0x00, 0x1c, 0x00, 0x00, 0x11, 0x00, 0xff, 0xff,
    0x00, 0x00, 0x00, 0x1f, 0x00, 0xff, 0xff, 0xfa, 0x63, 0x00, 0x00, 0x00, 0xca, 0x86, 0xf9, 0x09,
];

/// An ACK from Linux 6.12 rxe over IPv6.
#[rustfmt::skip]
const ACK: [u8; 68] = [
    0x60, 0x00, 0x00, 0x00, 0x00, 0x1c, 0x11, 0x40, 0xfd, 0x77, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0xfd, 0x77, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0xc4, 0x41, 0x12, 0xb7, 0x00, 0x1c, 0x00, 0x00,
    0x11, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x21, 0x00, 0xff, 0xff, 0xfa, 0x1f, 0x00, 0x00, 0x01,
    0x3c, 0x09, 0x85, 0x91,
];

#[test]
fn packets_of_linux_decode_and_verify() {
    let nak = IpDatagram::decode(&NAK).unwrap();
    assert_eq!(nak.src, "10.77.0.2:50113".parse().unwrap());
    assert_eq!(nak.dst, "10.77.0.1:4791".parse().unwrap());
    assert_eq!(nak.udp_payload, &NAK[28..]);
    assert!(nak.verify_icrc(false) && !nak.verify_icrc(true));

    let ack = IpDatagram::decode(&ACK).unwrap();
    assert_eq!(ack.src, "[fd77::2]:50241".parse().unwrap());
    assert_eq!(ack.dst, "[fd77::1]:4791".parse().unwrap());
    assert_eq!(ack.udp_payload, &ACK[48..]);
    assert!(ack.verify_icrc(false) && ack.verify_icrc(true), "IPv6 has no identification");
}

#[test]
fn headers_are_written_as_linux_writes_them() {
    for packet in [&NAK[..], &ACK] {
        let ip = IpDatagram::decode(packet).unwrap();
        let headers = IpHeaders {
            src: ip.src,
            dst: ip.dst,
            traffic_class: 0,
            hop_limit: 64,
            identification: 0xc403,
        };
        let mut buffer = [0xee; IP_UDP_BYTES_MAX];
        let encoded = headers.encode(ip.udp_payload.len() as u16, &mut buffer).unwrap();
        assert_eq!(encoded, &packet[..packet.len() - ip.udp_payload.len()]);
    }
}

#[test]
fn what_the_checksum_carries_may_carry_again() {
    let mut bytes = [0; 20];
    bytes[..6].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0, 1]);
    let header = Ipv4::read_from_bytes(&bytes).unwrap();
    assert_eq!(header.sum(), !1, "0x1ffff, folded to 0x10000, folded to 1");
}

/// Finds the bytes whose every bit may change while the packet stays valid.
fn blind_bytes(packet: &[u8]) -> Vec<usize> {
    let survives = |&i: &usize| {
        (0..8).all(|bit| {
            let mut changed = packet.to_vec();
            changed[i] ^= 1 << bit;
            IpDatagram::decode(&changed).is_ok_and(|datagram| datagram.verify_icrc(false))
        })
    };
    (0..packet.len()).filter(survives).collect()
}

#[test]
fn just_what_routers_change_is_masked() {
    // The blind bytes are TOS, TTL, IP checksum, UDP checksum, and byte 4 of the BTH.
    assert_eq!(blind_bytes(&NAK), [1, 8, 10, 11, 26, 27, 32]);
    // The blind bytes are the flow label and the hop limit. The first bits of the flow label and the
    // traffic class share bytes 0 and 1.
    assert_eq!(blind_bytes(&ACK), [1, 2, 3, 7, 46, 47, 52]);
}

#[test]
fn bytes_behind_the_packet_are_left_out() {
    let padded = [&NAK[..], &[0xee; 12]].concat();
    assert_eq!(IpDatagram::decode(&padded), IpDatagram::decode(&NAK));
}

#[test]
fn options_move_the_udp_header() {
    let mut ip = NAK.to_vec();
    ip[0] = 0x46;
    ip[3] += 4;
    ip.splice(20..20, [1, 1, 1, 0]);
    let datagram = IpDatagram::decode(&ip).unwrap();
    assert_eq!(datagram.src.port(), 0xc3c1);
    assert_eq!(datagram.udp_payload, &NAK[28..]);
    assert!(!datagram.verify_icrc(false), "the options are covered");
}

#[test]
fn a_cut_anywhere_is_an_error() {
    for packet in [&NAK[..], &ACK] {
        for len in 0..packet.len() {
            let error = IpDatagram::decode(&packet[..len]).unwrap_err();
            let got = match error {
                DecodeError::Truncated { offset, got, .. } => offset + got,
                other => panic!("cut to {len}: {other}"),
            };
            assert_eq!(got, len);
        }
    }
}

#[test]
fn errors_name_the_field() {
    let error = |packet: &[u8], at: usize, value: u8| {
        let mut packet = packet.to_vec();
        packet[at] = value;
        format!("{}", IpDatagram::decode(&packet).unwrap_err())
    };
    assert_eq!(error(&NAK, 0, 0x55), "IP version is 5, neither 4 nor 6");
    assert_eq!(error(&NAK, 0, 0x44), "IPv4 header length field is 16, less than the header itself");
    assert_eq!(error(&NAK, 0, 0x4f), "IPv4 options at byte 20 needs 40 bytes and has 28");
    assert_eq!(error(&NAK, 3, 19), "IPv4 total length field is 19, less than the header itself");
    assert_eq!(error(&NAK, 3, 49), "IPv4 total at byte 20 needs 29 bytes and has 28");
    assert_eq!(error(&NAK, 6, 0x20), "IPv4 fragment: flags and offset are 0x2000");
    assert_eq!(error(&NAK, 9, 6), "IP protocol is 6, not 17 (UDP)");
    assert_eq!(error(&ACK, 6, 0), "IP protocol is 0, not 17 (UDP)");
    assert_eq!(error(&ACK, 45, 7), "UDP length field is 7, less than the header itself");
    assert_eq!(error(&ACK, 45, 29), "UDP at byte 48 needs 21 bytes and has 20");
}
