//! Tests which packets are sent again after a loss, and which are not.

use invar_core::nic::{QpState, SendOpcode, WcStatus};
use invar_core::roce::qp::{Transmit, Tuning};
use invar_core::roce::{Headers, NakCode, Opcode, Packet, Psn, Reth, Syndrome};
use invar_testkit::model::roce::{ACK, Attr, MISSING, Peer};

const FIRST: Psn = Psn::new(0xff_fffa);

type Packets = Vec<(Transmit, Vec<u8>)>;

fn pair(adaptive: bool) -> [Peer; 2] {
    Attr { adaptive, ..Attr::default() }.pair()
}

/// The PSNs, relative to the first one.
fn psns(packets: &Packets) -> Vec<i32> {
    packets.iter().map(|(transmit, _)| transmit.headers.bth.psn.since(FIRST)).collect()
}

fn syndromes(packets: &Packets) -> Vec<Syndrome> {
    packets.iter().filter_map(|(transmit, _)| Some(transmit.headers.aeth?.syndrome)).collect()
}

#[test]
fn all_from_the_missing_packet_on_is_sent_again_once() {
    let [mut a, mut b] = pair(false);
    a.post(1, SendOpcode::RdmaWrite, 5 * 1024);
    let sent = a.transmit_all(0);
    for packet in [&sent[0], &sent[2], &sent[3], &sent[4]] {
        b.receive(0, packet);
    }
    let naks = b.transmit_all(0);
    assert_eq!((psns(&naks), syndromes(&naks)), (vec![1], vec![MISSING]));
    // A repeated NAK does not repeat the packets.
    a.receive(0, &naks[0]);
    a.receive(0, &naks[0]);
    let again = a.transmit_all(0);
    assert_eq!(psns(&again), [1, 2, 3, 4]);
    a.receive(0, &naks[0]);
    assert!(a.transmit_all(0).is_empty());
    again.iter().for_each(|packet| b.receive(0, packet));
    let acks = b.transmit_all(0);
    assert_eq!((psns(&acks), syndromes(&acks)), (vec![4], vec![ACK]));
    a.receive(0, &acks[0]);
    assert_eq!(a.sends(), [(1, WcStatus::SUCCESS)]);
}

#[test]
fn a_gap_that_closes_before_it_is_told_of_is_not() {
    let [mut a, mut b] = pair(false);
    a.post(1, SendOpcode::RdmaWrite, 2 * 1024);
    let sent = a.transmit_all(0);
    for packet in [&sent[1], &sent[0], &sent[1]] {
        b.receive(0, packet);
    }
    assert_eq!(syndromes(&b.transmit_all(0)), [ACK]);
}

#[test]
fn what_was_dropped_before_a_gap_closed_is_asked_for() {
    let [mut a, mut b] = pair(false);
    a.post(1, SendOpcode::RdmaWrite, 3 * 1024);
    let sent = a.transmit_all(0);
    for packet in [&sent[2], &sent[1], &sent[0]] {
        b.receive(0, packet);
    }
    let naks = b.transmit_all(0);
    assert_eq!((psns(&naks), syndromes(&naks)), (vec![1], vec![MISSING]));
    a.receive(0, &naks[0]);
    a.pass(0, &mut b);
    b.pass(0, &mut a);
    assert_eq!(a.sends(), [(1, WcStatus::SUCCESS)]);
}

#[test]
fn an_acknowledge_never_names_a_read() {
    let [mut a, mut b] = pair(false);
    a.post(1, SendOpcode::RdmaWrite, 1024);
    a.post(2, SendOpcode::RdmaRead, 1024);
    let sent = a.transmit_all(0);
    for packet in &sent {
        b.receive(0, packet);
        // The answer is lost.
        assert!(!b.transmit_all(0).is_empty());
    }
    b.receive(0, &sent[0]);
    let acks = b.transmit_all(0);
    assert_eq!((psns(&acks), syndromes(&acks)), (vec![0], vec![ACK]));
    let mut lingering = b.qp.lingering().expect("it has a peer");
    assert!(lingering.handle_packet(&Packet {
        headers: sent[0].0.headers,
        payload: &sent[0].1,
        trailer: &[]
    }));
    let ack = lingering.poll_transmit().expect("an acknowledge");
    assert_eq!(ack.headers.bth.psn.since(FIRST), 0);
}

#[test]
fn a_duplicate_does_not_hide_a_complaint() {
    let [mut a, mut b] = pair(false);
    a.post(1, SendOpcode::RdmaWrite, 3 * 1024);
    let sent = a.transmit_all(0);
    for packet in [&sent[0], &sent[2], &sent[0]] {
        b.receive(0, packet);
    }
    assert_eq!(syndromes(&b.transmit_all(0)), [MISSING]);
}

#[test]
fn a_read_is_answered_once_while_it_waits_and_again_when_asked_again() {
    let [mut a, mut b] = pair(false);
    a.post(1, SendOpcode::RdmaRead, 2048);
    let request = a.transmit_all(0);
    b.receive(0, &request[0]);
    b.receive(0, &request[0]);
    let responses = b.transmit_all(0);
    assert_eq!(psns(&responses), [0, 1]);
    b.receive(0, &request[0]);
    assert_eq!(b.transmit_all(0), responses);
}

#[test]
fn a_packet_that_came_after_all_is_not_sent_again() {
    let [mut a, mut b] = pair(true);
    a.post(1, SendOpcode::RdmaWrite, 2 * 1024);
    let sent = a.transmit_all(0);
    a.hear(0, FIRST.get(), MISSING);
    sent.iter().for_each(|packet| b.receive(0, packet));
    b.pass(0, &mut a);
    assert_eq!(a.sends(), [(1, WcStatus::SUCCESS)]);
    // A packet that takes this one's place a receive window later is not sent again either.
    for wr_id in 0..1100 {
        a.post(wr_id, SendOpcode::RdmaWrite, 4);
        let sent = a.transmit_all(0);
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].0.headers.bth.opcode, Opcode::WRITE_ONLY);
        b.receive(0, &sent[0]);
        b.pass(0, &mut a);
    }
    assert_eq!(a.qp.counters().packets_retransmitted, 0);
}

#[test]
fn reads_that_are_asked_for_again_are_answered_in_order() {
    let [mut a, mut b] = pair(false);
    a.post(1, SendOpcode::RdmaRead, 2048);
    a.post(2, SendOpcode::RdmaRead, 1024);
    let requests = a.transmit_all(0);
    requests.iter().for_each(|request| b.receive(0, request));
    assert_eq!(psns(&b.transmit_all(0)), [0, 1, 2]);
    requests.iter().rev().for_each(|request| b.receive(0, request));
    assert_eq!(psns(&b.transmit_all(0)), [0, 1, 2]);
}

/// Two ends, of which `a` may have one READ unanswered. `a` reads eight packets. It asks for the last seven
/// again, after `b` has sent four.
fn read_asked_for_again() -> [Peer; 2] {
    let [mut a, mut b] = Attr { rd_atomic: 1, ..Attr::default() }.pair();
    a.post(1, SendOpcode::RdmaRead, 8 * 1024);
    a.pass(0, &mut b);
    for number in 0..4 {
        let response = b.transmit(0).expect("the READ is not answered yet");
        if number != 1 {
            a.receive(0, &response);
        }
    }
    let again = a.transmit_all(0);
    assert_eq!(psns(&again), [1]);
    b.receive(0, &again[0]);
    [a, b]
}

/// Carries the seven responses of [`read_asked_for_again`] that end the READ.
fn finish_read([a, b]: &mut [Peer; 2]) {
    let responses: Packets = (0..7).map_while(|_| b.transmit(0)).collect();
    assert_eq!(psns(&responses), [1, 2, 3, 4, 5, 6, 7]);
    responses.iter().for_each(|response| a.receive(0, response));
    assert_eq!(a.sends(), [(1, WcStatus::SUCCESS)]);
}

#[test]
fn a_half_answered_read_that_is_asked_for_again_leaves_room_for_the_next_once_it_is_answered() {
    let mut ends = read_asked_for_again();
    finish_read(&mut ends);
    let [mut a, mut b] = ends;
    a.post(2, SendOpcode::RdmaRead, 1024);
    a.pass(0, &mut b);
    let responses = b.transmit_all(0);
    assert_eq!(psns(&responses), [8]);
    responses.iter().for_each(|response| a.receive(0, response));
    assert_eq!(a.sends(), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
}

#[test]
fn a_half_answered_read_that_is_asked_for_again_needs_its_memory_only_until_it_is_answered() {
    let mut ends = read_asked_for_again();
    finish_read(&mut ends);
    let [_, mut b] = ends;
    b.host.regions.clear();
    assert!(b.transmit_all(0).is_empty());
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn a_half_answered_read_that_is_asked_for_again_is_unanswered_until_its_end() {
    let [_, mut b] = read_asked_for_again();
    let reth = Reth { va: b.host.regions[0].addr, rkey: b.host.regions[0].key, dma_len: 4 };
    let read = |headers: &mut Headers| headers.reth = Some(reth);
    b.take(0, Opcode::READ_REQUEST, FIRST.add(8).get(), read, &[]);
    let last = b.transmit_all(0).pop().expect("a NAK");
    assert_eq!(syndromes(&vec![last]), [Syndrome::Nak(NakCode::InvalidRequest)]);
}

#[test]
fn an_acknowledge_is_asked_for_several_times_a_window() {
    for (window_packets_max, stretch) in [(1, 1), (7, 1), (8, 2), (32, 8), (1024, 8)] {
        let tuning = Tuning { window_packets_max, ..Tuning::default() };
        let mut a = Peer::with_memory(&Attr { psns: [0, 0], tuning, ..Attr::default() });
        a.post(1, SendOpcode::RdmaWrite, 16 * 1024);
        let sent = a.transmit_all(0);
        let asking = sent.iter().filter(|(transmit, _)| transmit.headers.bth.ack_req);
        assert_eq!(asking.count(), sent.len() / stretch, "window {window_packets_max}");
    }
}
