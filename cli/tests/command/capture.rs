//! `invar perf --pcap`.

use invar_core::roce::{IpDatagram, Packet};
use invar_testkit::pcap::Reader;
use invar_testkit::skip::{PROGRAMS, skip};
use tempfile::TempPath;

use crate::*;

/// A capture with messages of every form.
pub(super) struct Captured(TempPath);

impl Captured {
    pub(super) fn new(flags: &[&str]) -> Captured {
        let file =
            Captured(tempfile::Builder::new().suffix(".pcap").tempfile().unwrap().into_temp_path());
        let sizes = ["perf", "-b", "0", "-e", "16K", "-f", "16384", "-n", "3", "--pcap"];
        run(&[&sizes[..], &[file.0.to_str().unwrap()], flags].concat()).ok();
        file
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }
}

/// The IP packets of a capture.
pub(super) fn datagrams(file: &[u8]) -> Vec<IpDatagram<'_>> {
    let frames = Reader::new(file).unwrap().map(|frame| frame.unwrap().ip().unwrap());
    frames.map(|ip| IpDatagram::decode(ip).unwrap()).collect()
}

/// Opcode, queue pair and sequence number.
fn bth(datagram: &IpDatagram<'_>) -> (u8, u32, u32) {
    let bth = Packet::decode(datagram.udp_payload).unwrap().headers.bth;
    (bth.opcode.0, bth.dest_qp, bth.psn.get())
}

#[test]
fn packets_of_both_ways_are_captured_with_their_right_icrc() {
    let file = Captured::new(&[]);
    let bytes = file.bytes();
    let datagrams = datagrams(&bytes);
    assert!(datagrams.iter().all(|datagram| datagram.verify_icrc(true)));
    // WRITE only, and with immediate; ACK.
    for opcode in [10, 11, 17] {
        let dst = |one: &&IpDatagram<'_>| bth(one).0 == opcode;
        let mut ports: Vec<u16> = datagrams.iter().filter(dst).map(|one| one.dst.port()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 2, "opcode {opcode} went to UDP ports {ports:?}");
    }
}

#[test]
fn tshark_reads_a_capture_as_we_do_and_finds_nothing_malformed() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return skip(PROGRAMS, "tshark is not installed");
    }
    let file = Captured::new(&[]);
    let bytes = file.bytes();
    let datagrams = datagrams(&bytes);
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file.0).args(["-T", "fields"]);
    for field in ["bth.opcode", "bth.destqp", "bth.psn"] {
        tshark.args(["-e", &format!("infiniband.{field}")]);
    }
    tshark.args(["-e", "_ws.malformed"]);
    // It would take the payload for whatever that looks like.
    tshark.args(["-o", "infiniband.identify_payload:FALSE"]);
    // Only the port that the standard has is known to it.
    let mut ports: Vec<u16> = datagrams.iter().map(|datagram| datagram.dst.port()).collect();
    ports.sort_unstable();
    ports.dedup();
    for port in ports {
        tshark.args(["-d", &format!("udp.port=={port},infiniband")]);
    }
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let line = |datagram| {
        let (opcode, qp, psn) = bth(datagram);
        format!("{opcode}\t0x{qp:06x}\t{psn}\t")
    };
    let expected: Vec<String> = datagrams.iter().map(line).collect();
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
}
