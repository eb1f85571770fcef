//! Tests atomics of a queue pair: results, losses, duplicates and refusals.

use invar_core::nic::{Access, Atomic, QpState, WcOpcode, WcStatus};
use invar_core::roce::{AtomicEth, Foreign, Headers, NakCode, Opcode, Psn, Syndrome};
use invar_testkit::model::roce::{ADDR, Attr, KEY, Memory, Peer};

/// The word that the atomics change.
const WORD: usize = 64;
const MS: u64 = 1_000_000;

fn word(peer: &Peer, at: usize) -> u64 {
    u64::from_ne_bytes(peer.host.regions[0].bytes[at..at + 8].try_into().unwrap())
}

fn set_word(peer: &mut Peer, value: u64) {
    peer.host.regions[0].bytes[WORD..WORD + 8].copy_from_slice(&value.to_ne_bytes());
}

#[test]
fn an_atomic_changes_the_word_and_returns_what_was_there() {
    let [mut us, mut peer] = Attr::default().pair();
    set_word(&mut peer, u64::MAX);
    let (right, wrong) = (1, 7);
    let cases = [
        (Atomic::FetchAdd { add: 2 }, u64::MAX, 1, WcOpcode::FETCH_ADD),
        (Atomic::CompareSwap { compare: wrong, swap: 99 }, 1, 1, WcOpcode::COMP_SWAP),
        (Atomic::CompareSwap { compare: right, swap: 5 }, 1, 5, WcOpcode::COMP_SWAP),
    ];
    for (wr_id, (atomic, before, after, opcode)) in (0..).zip(cases) {
        us.post_atomic(wr_id, WORD as u64, atomic);
        us.pass(0, &mut peer);
        peer.pass(0, &mut us);
        assert_eq!((word(&us, 0), word(&peer, WORD)), (before, after), "{atomic:?}");
        let wc = us.host.sends.last().unwrap();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::SUCCESS));
        assert_eq!((wc.opcode, wc.byte_len), (opcode, 8));
    }
}

#[test]
fn an_atomic_whose_answer_is_lost_is_carried_out_once() {
    let [mut us, mut peer] = Attr::default().pair();
    for wr_id in 0..3 {
        us.post_atomic(wr_id, WORD as u64, Atomic::FetchAdd { add: 1 });
    }
    us.pass(0, &mut peer);
    // All answers are lost, and the word changes meanwhile.
    assert_eq!(peer.transmit_all(0).len(), 3);
    assert_eq!(word(&peer, WORD), 3);
    set_word(&mut peer, 1000);
    let mut now = 0;
    while us.host.sends.len() < 3 {
        now = us.qp.deadline_ns().expect("atomics are in flight");
        assert!(now < 10_000 * MS);
        us.qp.handle_timeout(now, &mut us.host);
        us.pass(now, &mut peer);
        peer.pass(now, &mut us);
    }
    assert_eq!(us.sends(), [0, 1, 2].map(|wr_id| (wr_id, WcStatus::SUCCESS)));
    // The last answer has the word that the third atomic found.
    assert_eq!((word(&us, 0), word(&peer, WORD)), (2, 1000), "at {now}");
}

#[test]
fn an_answer_that_is_lost_alone_is_asked_for_again() {
    let [mut us, mut peer] = Attr::default().pair();
    for wr_id in 0..2 {
        us.post_atomic(wr_id, WORD as u64, Atomic::FetchAdd { add: 1 });
    }
    us.pass(0, &mut peer);
    let answers = peer.transmit_all(0);
    us.receive(0, &answers[1]);
    assert_eq!(us.qp.counters().responses_lost, 1);
    us.pass(0, &mut peer);
    peer.pass(0, &mut us);
    assert_eq!(us.sends(), [0, 1].map(|wr_id| (wr_id, WcStatus::SUCCESS)));
    assert_eq!((word(&us, 0), word(&peer, WORD)), (1, 2));
}

#[test]
fn no_more_atomics_are_in_flight_than_agreed() {
    let [mut us, mut peer] = Attr { rd_atomic: 2, ..Attr::default() }.pair();
    for wr_id in 0..5 {
        us.post_atomic(wr_id, WORD as u64, Atomic::FetchAdd { add: 1 });
    }
    for left in [2, 2, 1] {
        let packets = us.transmit_all(0);
        assert_eq!(packets.len(), left);
        packets.iter().for_each(|packet| peer.receive(0, packet));
        peer.pass(0, &mut us);
    }
    assert_eq!((us.host.sends.len(), word(&peer, WORD)), (5, 5));
}

/// The answer to an atomic of the peer, if it is no acknowledge of the atomic.
fn refused(attr: &Attr, regions: Vec<Memory>, va: u64) -> Option<Syndrome> {
    let mut us = Peer::new(attr, regions);
    let atomic = AtomicEth { va, rkey: KEY, swap_or_add: 1, compare: 0 };
    let change = |headers: &mut Headers| headers.foreign = Some(Foreign::Atomic(atomic));
    us.take(0, Opcode::FETCH_ADD, attr.psns[1], change, &[]);
    let (answer, _) = us.transmit_all(0).pop().unwrap();
    if answer.headers.bth.opcode == Opcode::ATOMIC_ACKNOWLEDGE {
        assert_eq!(us.qp.state(), QpState::Rts);
        return None;
    }
    assert_eq!(us.qp.state(), QpState::Err);
    assert_eq!(word(&us, 0), 0, "nothing has changed");
    answer.headers.aeth.map(|aeth| aeth.syndrome)
}

#[test]
fn atomics_out_of_reach_are_refused() {
    let open = || vec![Memory::open()];
    let closed = |access| vec![Memory { access, ..Memory::open() }];
    let no_access = Some(Syndrome::Nak(NakCode::RemoteAccessError));
    let invalid = Some(Syndrome::Nak(NakCode::InvalidRequest));
    let attr = Attr::default();
    assert_eq!(refused(&attr, open(), ADDR), None);
    assert_eq!(refused(&attr, open(), ADDR + 16 * 1024 - 8), None);
    assert_eq!(refused(&attr, open(), ADDR + 16 * 1024), no_access);
    assert_eq!(refused(&attr, open(), ADDR - 8), no_access);
    let access = Memory::open().access - Access::REMOTE_ATOMIC;
    assert_eq!(refused(&attr, closed(access), ADDR), no_access);
    // As in rxe, a misaligned word makes the request invalid.
    assert_eq!(refused(&attr, open(), ADDR + 4), invalid);
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    assert_eq!(refused(&Attr { access, ..attr }, open(), ADDR), invalid);
    assert_eq!(refused(&Attr { rd_atomic: 0, ..attr }, open(), ADDR), invalid);
}

#[test]
fn a_result_that_is_not_known_any_more_is_not_invented() {
    let attr = Attr { rd_atomic: 16, ..Attr::default() };
    let mut us = Peer::with_memory(&attr);
    let atomic = AtomicEth { va: ADDR, rkey: KEY, swap_or_add: 1, compare: 0 };
    let change = |headers: &mut Headers| headers.foreign = Some(Foreign::Atomic(atomic));
    for psn in 0..17 {
        us.take(0, Opcode::FETCH_ADD, attr.psns[1] + psn, change, &[]);
        assert_eq!(us.transmit_all(0).len(), 1);
    }
    let mut repeat = |psn| {
        us.take(0, Opcode::FETCH_ADD, attr.psns[1] + psn, change, &[]);
        us.transmit_all(0).pop().map(|(answer, _)| (answer.headers.bth.psn, answer.headers.foreign))
    };
    assert_eq!(repeat(0), None);
    let Some((psn, Some(Foreign::AtomicAck(ack)))) = repeat(1) else { panic!("no answer") };
    assert_eq!((psn, ack.0), (Psn::new(attr.psns[1] + 1), 1));
    assert_eq!(word(&us, 0), 17);
}
