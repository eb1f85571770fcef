//! Tests adaptive routing: packets of a WRITE arrive in any order, and the responder asks for each
//! hole.

use invar_core::nic::{SendOpcode, WcFlags, WcOpcode, WcStatus};
use invar_core::roce::qp::{Transmit, Tuning, rnr_timer_ns};
use invar_core::roce::{Aeth, NakCode, Opcode, Psn, Reth, Syndrome};
use invar_testkit::model::roce::{ACK, ADDR, Attr, KEY, MISSING, Peer};

const HOLE_AGE: u64 = 200_000;

type Packets = Vec<(Transmit, Vec<u8>)>;

/// Two ends that agreed on adaptive routing. The first one's memory is full of ones.
fn pair() -> [Peer; 2] {
    let tuning = Tuning { hole_age_ns: HOLE_AGE, ..Tuning::default() };
    let attr = Attr { adaptive: true, tuning, ..Attr::default() };
    let mut pair = attr.pair();
    pair[0].host.regions[0].bytes.fill(1);
    pair
}

fn deliver<'a>(to: &mut Peer, packets: impl IntoIterator<Item = &'a (Transmit, Vec<u8>)>) {
    for packet in packets {
        to.receive(0, packet);
    }
}

fn opcodes(packets: &Packets) -> Vec<Opcode> {
    packets.iter().map(|(transmit, _)| transmit.headers.bth.opcode).collect()
}

/// The PSN of each acknowledge, relative to the first end's first PSN, and its syndrome.
fn answers(packets: &Packets) -> Vec<(i32, Syndrome)> {
    let answer = |(transmit, _): &(Transmit, Vec<u8>)| {
        let Aeth { syndrome, .. } = transmit.headers.aeth?;
        Some((transmit.headers.bth.psn.since(Psn::new(0xff_fffa)), syndrome))
    };
    packets.iter().map(|packet| answer(packet).expect("an acknowledge")).collect()
}

#[test]
fn each_packet_of_a_write_names_its_own_memory() {
    let [mut a, _] = pair();
    a.post(1, SendOpcode::RdmaWriteWithImm, 3000);
    let packets = a.transmit_all(0);
    let only = Opcode::WRITE_ONLY;
    assert_eq!(opcodes(&packets), [only, only, Opcode::WRITE_ONLY_IMM]);
    let reths: Vec<_> = packets.iter().map(|(transmit, _)| transmit.headers.reth).collect();
    let own = |va, dma_len| Some(Reth { va, rkey: KEY, dma_len });
    // The last packet of a WRITE_WITH_IMM names the whole message, since the completion needs it.
    assert_eq!(reths, [own(ADDR, 1024), own(ADDR + 1024, 1024), own(ADDR, 3000)]);
    assert!(packets.iter().all(|(transmit, _)| transmit.headers.bth.adaptive));
    let lengths: Vec<_> = packets.iter().map(|(_, payload)| payload.len()).collect();
    assert_eq!(lengths, [1024, 1024, 952]);
}

#[test]
fn packets_are_placed_as_they_come_and_complete_in_order() {
    let [mut a, mut b] = pair();
    for wr_id in [1, 2] {
        a.post(wr_id, SendOpcode::RdmaWriteWithImm, 2000);
        b.post_receive(wr_id, 0);
    }
    let packets = a.transmit_all(0);
    deliver(&mut b, packets[1..].iter().rev());
    assert_eq!(b.host.regions[0].bytes[1024..2000], [1; 976]);
    assert!(b.receives().is_empty());
    deliver(&mut b, &packets[..1]);
    assert_eq!(b.host.regions[0].bytes[..2000], [1; 2000]);
    assert_eq!(b.receives(), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    for wc in &b.host.receives {
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RECV_RDMA_WITH_IMM, 2000));
        assert_eq!((wc.flags, wc.imm_data), (WcFlags::WITH_IMM, 0xcafe));
    }
    let acks = b.transmit_all(0);
    assert_eq!(answers(&acks), [(3, ACK)]);
    deliver(&mut a, &acks);
    assert_eq!(a.sends(), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
}

#[test]
fn just_the_holes_are_asked_for_and_sent_again_once_they_have_aged() {
    let [mut a, mut b] = pair();
    a.post(1, SendOpcode::RdmaWrite, 9 * 1024);
    let packets = a.transmit_all(0);
    for lost_not in [0, 2, 3, 5, 8] {
        deliver(&mut b, &packets[lost_not..=lost_not]);
    }
    // The acknowledge covers the packets before the first hole.
    let acks = b.transmit_all(0);
    assert_eq!(answers(&acks), [(0, ACK)]);
    deliver(&mut a, &acks);
    assert_eq!(b.qp.deadline_ns(), Some(HOLE_AGE));
    b.qp.handle_timeout(HOLE_AGE, &mut b.host);
    let naks = b.transmit_all(HOLE_AGE);
    assert_eq!(answers(&naks), [(1, MISSING)]);
    b.qp.handle_timeout(2 * HOLE_AGE, &mut b.host);
    let more = b.transmit_all(2 * HOLE_AGE);
    assert_eq!(answers(&more), [(4, MISSING), (6, MISSING), (7, MISSING)]);
    deliver(&mut a, naks.iter().chain(&more).chain(&naks));
    let again = a.transmit_all(0);
    let psns: Vec<_> =
        again.iter().map(|(t, _)| t.headers.bth.psn.since(Psn::new(0xff_fffa))).collect();
    assert_eq!(psns, [1, 4, 6, 7]);
    // Each packet may be the last missing one, so each asks for an acknowledge.
    assert!(again.iter().all(|(transmit, _)| transmit.headers.bth.ack_req));
    deliver(&mut b, again.iter().rev());
    let acks = b.transmit_all(0);
    assert_eq!(answers(&acks), [(8, ACK)]);
    deliver(&mut a, &acks);
    assert_eq!(a.sends(), [(1, WcStatus::SUCCESS)]);
    assert_eq!((a.qp.deadline_ns(), b.qp.deadline_ns()), (None, None));
}

#[test]
fn when_nothing_is_heard_the_oldest_and_the_newest_packet_show_what_is_missing() {
    let [mut a, mut b] = pair();
    a.post(1, SendOpcode::RdmaWrite, 5 * 1024);
    a.transmit_all(0);
    let probe = a.qp.deadline_ns().unwrap();
    a.qp.handle_timeout(probe, &mut a.host);
    let again = a.transmit_all(probe);
    deliver(&mut b, &again);
    b.qp.handle_timeout(HOLE_AGE, &mut b.host);
    let answered = answers(&b.transmit_all(HOLE_AGE));
    assert_eq!(answered, [(0, ACK), (1, MISSING), (2, MISSING), (3, MISSING)]);
}

#[test]
fn marked_and_other_packets_are_never_in_flight_together() {
    let [mut a, mut b] = pair();
    b.post_receive(1, 64);
    a.post(1, SendOpcode::RdmaWrite, 2048);
    a.post(2, SendOpcode::Send, 64);
    a.post(3, SendOpcode::RdmaRead, 64);
    a.post(4, SendOpcode::RdmaWrite, 64);
    let mut flights = Vec::new();
    loop {
        let flight = a.transmit_all(0);
        if flight.is_empty() {
            break;
        }
        flights.push(opcodes(&flight));
        deliver(&mut b, &flight);
        let answers = b.transmit_all(0);
        deliver(&mut a, &answers);
    }
    let expected: [&[_]; 3] = [
        &[Opcode::WRITE_ONLY, Opcode::WRITE_ONLY],
        &[Opcode::SEND_ONLY, Opcode::READ_REQUEST],
        &[Opcode::WRITE_ONLY],
    ];
    assert_eq!(flights, expected);
    assert_eq!(a.sends().len(), 4);
}

#[test]
fn duplicates_are_placed_and_completed_once() {
    let [mut a, mut b] = pair();
    b.post_receive(1, 0);
    b.post_receive(2, 0);
    a.post(1, SendOpcode::RdmaWriteWithImm, 2048);
    let packets = a.transmit_all(0);
    deliver(&mut b, [&packets[1], &packets[1], &packets[0]]);
    b.host.regions[0].bytes.fill(9);
    deliver(&mut b, &packets);
    assert_eq!(b.host.regions[0].bytes, [9; 16 * 1024]);
    assert_eq!(b.receives(), [(1, WcStatus::SUCCESS)]);
    assert_eq!(answers(&b.transmit_all(0)), [(1, ACK)]);
    assert_eq!(b.qp.counters().duplicates, 3);
}

#[test]
fn an_immediate_without_a_receive_waits_for_one() {
    let [mut a, mut b] = pair();
    a.post(1, SendOpcode::RdmaWriteWithImm, 2048);
    a.post(2, SendOpcode::RdmaWrite, 64);
    let packets = a.transmit_all(0);
    deliver(&mut b, packets.iter().rev());
    // The data has arrived. The responder tells the peer to repeat the request later.
    let naks = b.transmit_all(0);
    assert_eq!(answers(&naks), [(1, Syndrome::RnrNak { timer: 12 })]);
    deliver(&mut a, &naks);
    assert_eq!(a.qp.deadline_ns(), Some(rnr_timer_ns(12)));
    a.qp.handle_timeout(rnr_timer_ns(12), &mut a.host);
    let again = a.transmit_all(rnr_timer_ns(12));
    assert_eq!(opcodes(&again), [Opcode::WRITE_ONLY_IMM]);
    deliver(&mut b, &again);
    assert_eq!(answers(&b.transmit_all(0)), [(1, Syndrome::RnrNak { timer: 12 })]);
    // A receive completes the message at once.
    b.post_receive(7, 0);
    assert_eq!(b.receives(), [(7, WcStatus::SUCCESS)]);
    let acks = b.transmit_all(0);
    assert_eq!(answers(&acks), [(2, ACK)]);
    deliver(&mut a, &acks);
    assert_eq!(a.sends(), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
}

#[test]
fn what_must_be_refused_is_refused_in_its_turn() {
    let [mut a, mut b] = pair();
    for wr_id in [1, 2, 3] {
        a.post(wr_id, SendOpcode::RdmaWrite, 1024);
    }
    let mut packets = a.transmit_all(0);
    packets[1].0.headers.reth = Some(Reth { va: ADDR, rkey: KEY + 1, dma_len: 1024 });
    deliver(&mut b, packets[1..].iter());
    assert_eq!(answers(&b.transmit_all(0)), [(-1, ACK)]);
    deliver(&mut b, packets[..2].iter());
    let naks = b.transmit_all(0);
    assert_eq!(answers(&naks), [(1, Syndrome::Nak(NakCode::RemoteAccessError))]);
    deliver(&mut a, &naks);
    let (error, flush) = (WcStatus::REM_ACCESS_ERR, WcStatus::WR_FLUSH_ERR);
    assert_eq!(a.sends(), [(1, WcStatus::SUCCESS), (2, error), (3, flush)]);
}

#[test]
fn a_packet_beyond_the_receive_window_leaves_no_trace() {
    let [_, mut b] = pair();
    let reth = Some(Reth { va: ADDR, rkey: KEY, dma_len: 4 });
    for (ahead, taken) in [(1024, false), (1023, true)] {
        let psn = Psn::new(0xff_fffa).add(ahead).get();
        let change = |headers: &mut invar_core::roce::Headers| {
            headers.bth.adaptive = true;
            headers.reth = reth;
        };
        b.take(0, Opcode::WRITE_ONLY, psn, change, &[5; 4]);
        assert_eq!(b.host.regions[0].bytes[0] == 5, taken);
        assert_eq!(b.qp.deadline_ns().is_some(), taken);
    }
}

#[test]
fn the_mark_means_nothing_to_an_end_that_did_not_agree() {
    let attr = Attr::default();
    let [mut a, _] = pair();
    let mut b = Peer::with_memory(&attr.peer());
    a.post(1, SendOpcode::RdmaWrite, 2048);
    let packets = a.transmit_all(0);
    deliver(&mut b, &packets[1..]);
    assert_eq!(answers(&b.transmit_all(0)), [(0, MISSING)]);
    deliver(&mut b, &packets);
    assert_eq!(answers(&b.transmit_all(0)), [(1, ACK)]);
}
