//! Decodes packets that the Linux kernel's software RoCE driver sent, see `tests/captures/README.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use invar_core::roce::{
    Flow, HEADERS_BYTES_MAX, IpDatagram, Ipv4Id, NakCode, Packet, Psn, Syndrome, UDP_PORT,
};
use invar_testkit::pcap::Reader;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("captures")
}

/// The IP packets of a capture, with Ethernet's padding.
fn ip_packets(name: &str) -> Vec<Vec<u8>> {
    let path = directory().join(format!("{name}.pcap"));
    let file = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let frames = Reader::new(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
    frames.map(|frame| frame.unwrap().ip().expect("IP over Ethernet").to_vec()).collect()
}

/// A line of SUMMARY.txt: the findings of an independent parser for a capture.
struct Summary {
    name: String,
    opcodes: String,
    syndromes: String,
    /// The indices of packets with a wrong ICRC. The other fields do not count these packets.
    damaged: Vec<usize>,
}

fn summaries() -> Vec<Summary> {
    let text = fs::read_to_string(directory().join("SUMMARY.txt")).unwrap();
    let parse = |line: &str| {
        let (name, rest) = line.split_once(": ")?;
        let [opcodes, syndromes, damaged] =
            rest.split(" | ").collect::<Vec<_>>().try_into().ok()?;
        let damaged = damaged.split(' ').filter(|n| *n != "-").map(|n| n.parse().ok());
        Some(Summary {
            name: name.to_owned(),
            opcodes: str::to_owned(opcodes),
            syndromes: str::to_owned(syndromes),
            damaged: damaged.collect::<Option<_>>()?,
        })
    };
    text.lines().map(|line| parse(line).unwrap_or_else(|| panic!("SUMMARY.txt: {line}"))).collect()
}

/// Formats counts as `name xN, …` in the order of names, or as `-` if there are none.
fn counted(names: impl Iterator<Item = String>) -> String {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_insert(0) += 1;
    }
    let counts: Vec<_> = counts.into_iter().map(|(name, n)| format!("{name} x{n}")).collect();
    if counts.is_empty() { "-".to_owned() } else { counts.join(", ") }
}

fn syndrome_name(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack { credits } => format!("ACK({credits})"),
        Syndrome::RnrNak { timer } => format!("RNR({timer})"),
        Syndrome::Nak(NakCode::PsnSequenceError) => "NAK(0)".to_owned(),
        Syndrome::Nak(NakCode::RemoteAccessError) => "NAK(2)".to_owned(),
        Syndrome::Nak(NakCode::RemoteOperationalError) => "NAK(3)".to_owned(),
        other => panic!("no capture has {other:?}"),
    }
}

#[test]
fn every_capture_is_in_the_summary() {
    let mut names: Vec<_> = summaries().into_iter().map(|summary| summary.name).collect();
    let mut files = Vec::new();
    for from in ["host-interop", "linux-6.1", "linux-6.12"] {
        for entry in fs::read_dir(directory().join(from)).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            files.push(format!("{from}/{}", file.strip_suffix(".pcap").unwrap()));
        }
    }
    names.sort();
    files.sort();
    assert_eq!(names, files);
}

#[test]
fn every_sound_packet_decodes_and_encodes_to_the_same_bytes() {
    for Summary { name, opcodes, syndromes, damaged } in summaries() {
        let mut headers = Vec::new();
        for (index, ip) in ip_packets(&name).iter().enumerate() {
            if damaged.contains(&index) {
                continue;
            }
            let datagram = IpDatagram::decode(ip).unwrap();
            assert_eq!(datagram.dst.port(), UDP_PORT, "{name}");
            let packet = Packet::decode(datagram.udp_payload).unwrap();
            let mut encoded = [0; HEADERS_BYTES_MAX];
            let n = packet.headers.encode(&mut encoded);
            let again = [&encoded[..n], packet.payload, packet.trailer].concat();
            assert_eq!(again, datagram.udp_payload, "{name}: {packet:?}");
            headers.push(packet.headers);
        }
        let found = headers.iter().map(|headers| format!("{:?}", headers.bth.opcode));
        assert_eq!(counted(found), opcodes, "{name}");
        let found = headers.iter().filter_map(|headers| headers.aeth);
        assert_eq!(counted(found.map(|aeth| syndrome_name(aeth.syndrome))), syndromes, "{name}");
    }
}

#[test]
fn just_the_damaged_packets_fail_the_icrc() {
    for Summary { name, damaged, .. } in summaries() {
        let mut failed = Vec::new();
        for (index, ip) in ip_packets(&name).iter().enumerate() {
            let Ok(datagram) = IpDatagram::decode(ip) else {
                failed.push(index);
                continue;
            };
            let verified = datagram.verify_icrc(false);
            if !verified {
                failed.push(index);
            }
            // A socket that knows addresses and identification gets this result too.
            let mut flow = Flow::new(datagram.src, datagram.dst).unwrap();
            let id = Ipv4Id::Known(u16::from_be_bytes([ip[4], ip[5]]));
            assert_eq!(flow.verify(id, datagram.udp_payload), verified, "{name}, packet {index}");
        }
        assert_eq!(failed, damaged, "{name}");
    }
}

/// Gives the byte at an index of every message.
type Content = fn(usize) -> usize;

/// The messages in the captures of one operation. They have 14 lengths and one pattern of bytes.
fn messages(mtu: usize, byte: Content) -> Vec<Vec<u8>> {
    let lengths = [
        [0, 1, 2, 3, 4, 5, 8].as_slice(),
        &[64, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 3, 5 * mtu + 7],
    ];
    let message = |len| (0..len).map(|i| byte(i) as u8).collect();
    lengths.concat().into_iter().map(message).collect()
}

#[test]
fn messages_come_out_whole() {
    let (pushed, pulled) = (|i| i % 251, |i| i % 241 + 1);
    // Each entry has the capture, the prefix of opcodes that carry data, the path MTU, and the content.
    let captures: [(&str, &str, usize, Content); 8] = [
        ("rc_write", "RC_WRITE", 1024, pushed),
        ("rc_write_imm", "RC_WRITE", 1024, pushed),
        ("rc_write_imm_ipv6", "RC_WRITE", 1024, pushed),
        ("rc_write_imm_mtu4096", "RC_WRITE", 4096, pushed),
        ("rc_send", "RC_SEND", 1024, pushed),
        ("rc_send_imm", "RC_SEND", 1024, pushed),
        ("rc_read", "RC_READ_RESPONSE", 1024, pulled),
        ("rc_read_mtu4096", "RC_READ_RESPONSE", 4096, pulled),
    ];
    for (name, data_opcodes, mtu, byte) in captures {
        for kernel in ["linux-6.1", "linux-6.12"] {
            let name = format!("{kernel}/{name}");
            let expected = messages(mtu, byte);
            let mut found: Vec<Vec<u8>> = Vec::new();
            let mut psn = Psn::new(0xff_fffa);
            for ip in ip_packets(&name) {
                let datagram = IpDatagram::decode(&ip).unwrap();
                let packet = Packet::decode(datagram.udp_payload).unwrap();
                let bth = packet.headers.bth;
                if !format!("{:?}", bth.opcode).starts_with(data_opcodes) {
                    continue;
                }
                assert_eq!(bth.psn, psn, "{name}");
                psn = psn.add(1);
                if bth.opcode.position().unwrap().begins() {
                    found.push(Vec::new());
                }
                let index = found.len() - 1;
                found[index].extend(packet.payload);
                if let Some(imm) = packet.headers.imm {
                    assert_eq!(u32::from_be_bytes(imm.0), 0xcafe_0000 + index as u32, "{name}");
                }
                if let Some(reth) = packet.headers.reth {
                    assert_eq!(reth.dma_len as usize, expected[index].len(), "{name}");
                }
            }
            assert!(found == expected, "{name}: other bytes than were sent");
        }
    }
}
