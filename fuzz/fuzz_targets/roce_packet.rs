//! Decodes any bytes as a RoCEv2 packet, and as an IP packet that carries one. A decoded packet encodes
//! to the same bytes, and sender and receiver agree on its ICRC.
#![no_main]

use invar_core::roce::{Flow, HEADERS_BYTES_MAX, ICRC_BYTES, IpDatagram, Ipv4Id, Packet};
use libfuzzer_sys::fuzz_target;

fn packet(udp_payload: &[u8]) {
    let Ok(packet) = Packet::decode(udp_payload) else { return };
    let mut headers = [0; HEADERS_BYTES_MAX];
    let n = packet.headers.encode(&mut headers);
    assert_eq!([&headers[..n], packet.payload, packet.trailer].concat(), udp_payload);
}

fn datagram(ip: &[u8]) {
    let Ok(datagram) = IpDatagram::decode(ip) else { return };
    packet(datagram.udp_payload);
    datagram.verify_icrc(true);
    let Ok(mut flow) = Flow::new(datagram.src, datagram.dst) else { return };
    let Some((covered, _)) = datagram.udp_payload.split_last_chunk::<ICRC_BYTES>() else { return };
    let icrc = flow.icrc(Ipv4Id::Known(0), covered);
    let sound = [covered, &icrc].concat();
    // A base transport header (BTH) has 12 bytes.
    assert_eq!(flow.verify(Ipv4Id::Known(0), &sound), covered.len() >= 12);
}

fuzz_target!(|data: &[u8]| {
    packet(data);
    datagram(data);
});
