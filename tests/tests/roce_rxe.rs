//! Compares Linux rxe's packets in the captures with the packets of Invar's queue pair. The queue pair
//! acts as responder to rxe's requests, and as requester with the same work.

use std::fs;
use std::path::Path;

use invar_core::nic::{Access, Mtu, QpState, RecvWr, SendFlags, SendOpcode, SendWr, Sge, WcStatus};
use invar_core::roce::{Aeth, AtomicEth, Foreign, Headers, IpDatagram, Opcode, Packet, Reth};
use invar_testkit::model::roce::{Attr, Memory, Peer};
use invar_testkit::pcap::Reader;

const KERNELS: [&str; 2] = ["linux-6.1", "linux-6.12"];
/// The size of each side's memory in the captures, and the offset where peers write and read.
const MEMORY_BYTES: usize = 256 * 1024;
const REMOTE_OFFSET: u64 = 65_536;

/// The UDP payloads of a capture that rxe accepted, and whether A sent them.
fn capture(kernel: &str, name: &str) -> Vec<(bool, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures").join(kernel);
    let file = fs::read(path.join(format!("{name}.pcap"))).unwrap();
    let mut packets = Vec::new();
    for frame in Reader::new(&file).unwrap() {
        let ip = frame.unwrap().ip().unwrap();
        match IpDatagram::decode(ip) {
            Ok(datagram) if datagram.verify_icrc(false) && ip_header_is_sound(ip) => {
                let src = datagram.src.ip().to_string();
                let from_a = ["10.77.0.1", "fd77::1"].contains(&src.as_str());
                packets.push((from_a, datagram.udp_payload.to_vec()));
            }
            _ => {}
        }
    }
    packets
}

/// Whether the checksum of the IP header is right. The ICRC does not cover it, but the kernel checks
/// it.
fn ip_header_is_sound(ip: &[u8]) -> bool {
    let header = &ip[..usize::from(ip[0] & 15) * 4];
    let words = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    ip[0] >> 4 == 6 || (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// The parts of a response to compare. In rxe's responses AckReq and the reserved fields are 0, as in
/// Invar's.
type Answer = (Opcode, u32, Option<Aeth>, Vec<u8>);

fn answer(headers: &Headers, payload: &[u8]) -> Answer {
    (headers.bth.opcode, headers.bth.psn.get(), headers.aeth, payload.to_vec())
}

fn decode(bytes: &[u8]) -> Packet<'_> {
    Packet::decode(bytes).unwrap()
}

/// The answers of rxe as B.
fn answers_of_rxe(packets: &[(bool, Vec<u8>)]) -> Vec<Answer> {
    let from_b = packets.iter().filter(|(from_a, _)| !from_a).map(|(_, bytes)| decode(bytes));
    from_b.map(|packet| answer(&packet.headers, packet.payload)).collect()
}

fn attr(packets: &[(bool, Vec<u8>)], mtu: Mtu) -> Attr {
    // In each capture both sides happen to have one QP number.
    let qpn = decode(&packets[0].1).headers.bth.dest_qp;
    Attr { qpns: [qpn; 2], psns: [0xff_fffa, 0x100], mtu, ..Attr::default() }
}

/// B as the capture's requests expect it, with the key that they use.
fn side_b(packets: &[(bool, Vec<u8>)], mtu: Mtu) -> Peer {
    let requests = packets.iter().filter(|(from_a, _)| *from_a).map(|(_, p)| decode(p));
    let reth = requests.filter_map(|packet| packet.headers.reth).next();
    let Reth { va, rkey, .. } = reth.unwrap_or_default();
    // The bytes that READs find, relative to the offset where they read.
    let byte = |i: u64| (i.saturating_sub(REMOTE_OFFSET) % 241 + 1) as u8;
    let bytes = (0..MEMORY_BYTES as u64).map(byte).collect();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let addr = va.saturating_sub(REMOTE_OFFSET);
    Peer::new(&attr(packets, mtu).peer(), vec![Memory { key: rkey, addr, access, bytes }])
}

fn post_receive(peer: &mut Peer, length: u32) {
    let Memory { key, addr, .. } = peer.host.regions[0];
    let sge = Sge { addr: addr + REMOTE_OFFSET, length, lkey: key };
    peer.qp.post_recv(&RecvWr { wr_id: 100, sge, ..RecvWr::default() }, &mut peer.host).unwrap();
}

fn answers_to(peer: &mut Peer, bytes: &[u8]) -> Vec<Answer> {
    peer.qp.handle_packet(0, &decode(bytes), &mut peer.host);
    let answers = peer.transmit_all(0).into_iter();
    answers.map(|(transmit, payload)| answer(&transmit.headers, &payload)).collect()
}

/// Invar's answers to the requests of a capture. `prepare` is called before each request, with its
/// number.
fn our_answers(
    packets: &[(bool, Vec<u8>)],
    side: &mut Peer,
    mut prepare: impl FnMut(&mut Peer, usize),
) -> Vec<Answer> {
    let requests = packets.iter().filter(|(from_a, _)| *from_a);
    let answer_one = |(number, (_, bytes)): (usize, &(bool, Vec<u8>))| {
        prepare(side, number);
        answers_to(side, bytes)
    };
    requests.enumerate().flat_map(answer_one).collect()
}

#[test]
fn answers_to_requests_are_those_of_rxe() {
    // Each entry says whether a receive is posted before each message of the sender.
    let names = [
        "rc_write",
        "rc_write_imm",
        "rc_write_imm_ipv6",
        "rc_send",
        "rc_send_imm",
        "rc_send_tclass",
        "rc_read",
        "rc_read_mtu4096",
        "rc_write_imm_mtu4096",
        "rc_pipeline",
        "rc_pipeline_mtu256",
        "loss_write_imm",
        "reorder_write_imm",
        "duplicate_write_imm",
        "duplicate_pipeline",
        "corrupt_write_imm",
    ];
    for kernel in KERNELS {
        for name in names {
            let packets = capture(kernel, name);
            let mtu = match name {
                _ if name.ends_with("mtu4096") => Mtu::Mtu4096,
                _ if name.ends_with("mtu256") => Mtu::Mtu256,
                _ => Mtu::Mtu1024,
            };
            let mut side = side_b(&packets, mtu);
            for _ in 0..14 {
                post_receive(&mut side, 65_536);
            }
            let (mut ours, mut rxe) =
                (our_answers(&packets, &mut side, |_, _| {}), answers_of_rxe(&packets));
            if name.contains("pipeline") {
                // In this capture a READ reads the bytes of a WRITE that a SEND overwrote. Invar's
                // memory lacks the SEND's bytes.
                ours.iter_mut().chain(&mut rxe).for_each(|(.., payload)| payload.clear());
            }
            assert_eq!(ours, rxe, "{kernel}/{name}");
            assert_eq!(side.qp.state(), QpState::Rts);
        }
    }
}

#[test]
fn results_of_atomics_are_those_of_rxe() {
    let results = |packets: &[(bool, Vec<u8>)]| {
        let from_b = packets.iter().filter(|(from_a, _)| !from_a).map(|(_, bytes)| decode(bytes));
        from_b.map(|packet| packet.headers).collect::<Vec<_>>()
    };
    for kernel in KERNELS {
        for name in ["rc_atomic", "perf_atomic_cs", "perf_atomic_fa"] {
            let packets = capture(kernel, name);
            let rxe = results(&packets);
            let first = decode(&packets[0].1).headers;
            let psns = [0, first.bth.psn.get()];
            let attr = Attr { psns, ..attr(&packets, Mtu::Mtu1024).peer() };
            let mut side = Peer::new(&attr, vec![Memory::open()]);
            let mut ours = Vec::new();
            let requests = packets.iter().filter(|(from_a, _)| *from_a);
            for ((_, bytes), answer) in requests.zip(&rxe) {
                let request = decode(bytes).headers.foreign;
                let (Some(Foreign::Atomic(atomic)), Some(Foreign::AtomicAck(ack))) =
                    (request, answer.foreign)
                else {
                    panic!("{name} has atomics alone");
                };
                // Each atomic finds the word that rxe found.
                let AtomicEth { va: addr, rkey: key, .. } = atomic;
                let bytes_found = ack.0.to_ne_bytes().to_vec();
                side.host.regions =
                    vec![Memory { key, addr, bytes: bytes_found, ..Memory::open() }];
                side.qp.handle_packet(0, &decode(bytes), &mut side.host);
                ours.extend(side.transmit_all(0).into_iter().map(|(transmit, _)| transmit.headers));
            }
            let parts = |headers: &Headers| {
                (headers.bth.opcode, headers.bth.psn, headers.aeth, headers.foreign)
            };
            let (ours, rxe): (Vec<_>, Vec<_>) =
                (ours.iter().map(parts).collect(), rxe.iter().map(parts).collect());
            assert_eq!(ours, rxe, "{kernel}/{name}");
            assert!(rxe.len() >= 5 && side.qp.state() == QpState::Rts);
        }
    }
}

#[test]
fn answers_that_were_lost_are_among_ours() {
    for kernel in KERNELS {
        for name in ["loss_of_acks_write_imm", "loss_of_read_responses"] {
            let packets = capture(kernel, name);
            let mut side = side_b(&packets, Mtu::Mtu1024);
            for _ in 0..14 {
                post_receive(&mut side, 65_536);
            }
            let mut ours = our_answers(&packets, &mut side, |_, _| {}).into_iter();
            for answer in answers_of_rxe(&packets) {
                assert!(ours.any(|other| other == answer), "{kernel}/{name}: {answer:?}");
            }
        }
    }
}

#[test]
fn a_missing_receive_is_answered_as_by_rxe() {
    for kernel in KERNELS {
        for name in ["rc_rnr", "rc_rnr_write_imm"] {
            let packets = capture(kernel, name);
            let mut side = side_b(&packets, Mtu::Mtu1024);
            // In the captures the receive is posted just before the last request.
            let last = packets.iter().filter(|(from_a, _)| *from_a).count() - 1;
            let ours = our_answers(&packets, &mut side, |side, number| {
                if number == last {
                    post_receive(side, 4096);
                }
            });
            assert_eq!(ours, answers_of_rxe(&packets), "{kernel}/{name}");
            assert_eq!(side.host.receives.len(), 1);
            assert_eq!(side.host.receives[0].status, WcStatus::SUCCESS);
        }
    }
}

#[test]
fn refusals_are_those_of_rxe_and_end_the_connection() {
    let cases = [
        ("rc_short_recv", WcStatus::LOC_QP_OP_ERR),
        ("rc_bad_rkey_write", WcStatus::WR_FLUSH_ERR),
        ("rc_bad_rkey_read", WcStatus::WR_FLUSH_ERR),
        ("rc_oob_write", WcStatus::WR_FLUSH_ERR),
    ];
    for kernel in KERNELS {
        for (name, receive_status) in cases {
            let packets = capture(kernel, name);
            let mut side = side_b(&packets, Mtu::Mtu1024);
            match name {
                "rc_bad_rkey_write" | "rc_bad_rkey_read" => side.host.regions[0].key ^= 0x100,
                "rc_oob_write" => {
                    side.host.regions[0].addr -= MEMORY_BYTES as u64 - 8 - REMOTE_OFFSET;
                }
                _ => {}
            }
            post_receive(&mut side, 16);
            let ours = our_answers(&packets, &mut side, |_, _| {});
            assert_eq!(ours, answers_of_rxe(&packets), "{kernel}/{name}");
            assert_eq!(side.qp.state(), QpState::Err);
            let statuses: Vec<_> = side.host.receives.iter().map(|wc| wc.status).collect();
            assert_eq!(statuses, [receive_status], "{kernel}/{name}");
        }
    }
}

/// Posts the work of the capture's program to A, and compares requests and completions.
fn assert_requests(name: &str, ops: &[(SendOpcode, u32)], one_at_a_time: bool, ends: &[WcStatus]) {
    for kernel in KERNELS {
        let packets = capture(kernel, name);
        let mut requests = Vec::new();
        let mut answers = Vec::new();
        for (from_a, bytes) in &packets {
            let packet = decode(bytes);
            if *from_a { requests.push(packet) } else { answers.push(packet) }
        }
        let mtu = if name.ends_with("mtu4096") { Mtu::Mtu4096 } else { Mtu::Mtu1024 };
        let bytes = (0..MEMORY_BYTES).map(|i| (i % 251) as u8).collect();
        let memory = Memory { key: 7, addr: 0x1000, access: Access::LOCAL_WRITE, bytes };
        let mut side = Peer::new(&attr(&packets, mtu), vec![memory]);
        let reths: Vec<_> = requests.iter().filter_map(|packet| packet.headers.reth).collect();
        let mut answers = answers.iter().peekable();
        let mut ours = Vec::new();
        for (number, &(opcode, length)) in ops.iter().enumerate() {
            let reth = reths.get(number).copied().unwrap_or_default();
            let addr = 0x1000 + if opcode == SendOpcode::RdmaRead { 131_072 } else { 0 };
            let wr = SendWr {
                remote_addr: reth.va,
                rkey: reth.rkey,
                sge: Sge { addr, length, lkey: 7 },
                imm_data: u32::from_ne_bytes((0xcafe_0000 + number as u32).to_be_bytes()),
                opcode,
                flags: SendFlags::SIGNALED,
                ..SendWr::default()
            };
            side.qp.post_send(&wr, &mut side.host).unwrap();
            if !one_at_a_time && number + 1 < ops.len() {
                continue;
            }
            ours.extend(side.transmit_all(0));
            while let Some(packet) = answers.next_if(|_| side.host.sends.len() <= number) {
                side.qp.handle_packet(0, packet, &mut side.host);
            }
        }
        // After it hears of the refusal rxe sends no more. Here all packets were sent before the
        // refusal.
        assert!(ours.len() == requests.len() || name == "rc_bad_rkey_write", "{kernel}/{name}");
        for ((transmit, payload), packet) in ours.iter().zip(&requests) {
            let (mut headers, mut rxe) = (transmit.headers, packet.headers);
            // In the middle of a message both request an acknowledge now and then.
            headers.bth.ack_req &= headers.bth.opcode.position().unwrap().ends();
            rxe.bth.ack_req &= rxe.bth.opcode.position().unwrap().ends();
            // rxe sends 0, where IBTA asks for 1.
            rxe.bth.migreq = true;
            assert_eq!(headers, rxe, "{kernel}/{name}");
            assert_eq!(payload, packet.payload, "{kernel}/{name}");
        }
        let statuses: Vec<_> = side.host.sends.iter().map(|wc| wc.status).collect();
        assert_eq!(statuses, ends, "{kernel}/{name}");
    }
}

#[test]
fn requests_are_those_of_rxe() {
    use SendOpcode::{RdmaRead, RdmaWrite, RdmaWriteWithImm, Send, SendWithImm};
    let cases = [
        ("rc_write", RdmaWrite, 1024),
        ("rc_write_imm", RdmaWriteWithImm, 1024),
        ("rc_write_imm_mtu4096", RdmaWriteWithImm, 4096),
        ("rc_send", Send, 1024),
        ("rc_send_imm", SendWithImm, 1024),
        ("rc_read", RdmaRead, 1024),
        ("rc_read_mtu4096", RdmaRead, 4096),
    ];
    for (name, opcode, mtu) in cases {
        let lengths =
            [0, 1, 2, 3, 4, 5, 8, 64, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 3, 5 * mtu + 7];
        let ops = lengths.map(|length| (opcode, length));
        assert_requests(name, &ops, true, &[WcStatus::SUCCESS; 14]);
    }
}

#[test]
fn a_refused_request_completes_as_with_rxe() {
    use SendOpcode::{RdmaRead, RdmaWrite, Send};
    use WcStatus as Status;
    assert_requests("rc_short_recv", &[(Send, 64)], true, &[Status::REM_OP_ERR]);
    assert_requests("rc_bad_rkey_read", &[(RdmaRead, 64)], true, &[Status::REM_ACCESS_ERR]);
    assert_requests("rc_oob_write", &[(RdmaWrite, 64)], true, &[Status::REM_ACCESS_ERR]);
    let statuses = [Status::REM_ACCESS_ERR, Status::WR_FLUSH_ERR];
    let ops = [(RdmaWrite, 1024 + 9), (RdmaWrite, 8)];
    assert_requests("rc_bad_rkey_write", &ops, false, &statuses);
}

#[test]
fn every_packet_has_the_migration_state_of_a_path_that_never_migrates_and_either_is_received() {
    let [mut a, mut b] = Attr::default().pair();
    b.post_receive(9, 2048);
    for (wr_id, opcode) in [(1, SendOpcode::RdmaRead), (2, SendOpcode::Send)] {
        a.post(wr_id, opcode, 2048);
    }
    let requests = a.transmit_all(0);
    requests.iter().for_each(|request| b.receive(0, request));
    let answers = b.transmit_all(0);
    assert_eq!((requests.len(), answers.len()), (3, 3));
    assert!(requests.iter().chain(&answers).all(|(transmit, _)| transmit.headers.bth.migreq));
    for (mut transmit, payload) in answers {
        transmit.headers.bth.migreq = false;
        a.receive(0, &(transmit, payload));
    }
    assert_eq!(a.sends(), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
}
