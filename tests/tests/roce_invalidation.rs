//! Tests SENDs that invalidate a key of the receiver, and local operations: losses, duplicates and refusals.

use invar_core::nic::{QpState, SendOpcode, WcFlags, WcStatus};
use invar_core::roce::{Foreign, Headers, Ieth, Opcode, Syndrome};
use invar_testkit::model::roce::{Attr, Peer};

/// The key that `Peer::post` names.
const KEY: u32 = 0xcafe;
const S: u64 = 1_000_000_000;

/// Two ends. The second one lets the first invalidate `KEY`.
fn pair() -> [Peer; 2] {
    let attr = Attr { min_rnr_timer: 1, ..Attr::default() };
    let [us, mut peer] = attr.pair();
    peer.host.keys.insert(KEY);
    [us, peer]
}

/// Lets time pass, and all packets arrive, until `us` has `sends` completions.
fn finish(us: &mut Peer, peer: &mut Peer, sends: usize) {
    let mut now = 0;
    while us.host.sends.len() < sends {
        us.pass(now, peer);
        peer.pass(now, us);
        if us.host.sends.len() < sends {
            now = us.qp.deadline_ns().expect("a request is in flight").max(now);
            assert!(now < 100 * S, "not done in time");
            us.qp.handle_timeout(now, &mut us.host);
        }
    }
}

#[test]
fn a_send_invalidates_the_key_that_it_names_and_tells_so() {
    let [mut us, mut peer] = pair();
    peer.host.keys.insert(KEY + 1);
    peer.post_receive(7, 16);
    us.post(1, SendOpcode::SendWithInv, 16);
    finish(&mut us, &mut peer, 1);
    assert_eq!(peer.host.keys, [KEY + 1].into());
    let wc = peer.host.receives[0];
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (7, WcStatus::SUCCESS, 16));
    assert_eq!((wc.flags, wc.imm_data), (WcFlags::WITH_INV, KEY));
}

#[test]
fn a_send_whose_acknowledge_is_lost_does_not_invalidate_a_key_that_was_given_again() {
    for len in [0, 16, 3000] {
        let [mut us, mut peer] = pair();
        peer.post_receive(7, 4096);
        us.post(1, SendOpcode::SendWithInv, len);
        us.pass(0, &mut peer);
        assert!(peer.host.keys.is_empty() && !peer.transmit_all(0).is_empty());
        peer.host.keys.insert(KEY);
        finish(&mut us, &mut peer, 1);
        assert!(us.qp.counters().packets_retransmitted > 0, "{len} bytes");
        assert_eq!(us.sends(), [(1, WcStatus::SUCCESS)]);
        assert_eq!(peer.receives(), [(7, WcStatus::SUCCESS)]);
        assert_eq!(peer.host.keys, [KEY].into(), "{len} bytes");
    }
}

#[test]
fn a_send_invalidates_when_it_is_whole_whatever_packet_is_lost() {
    for lost in 0..3 {
        let [mut us, mut peer] = pair();
        peer.post_receive(7, 4096);
        us.post(1, SendOpcode::SendWithInv, 3000);
        let sent = us.transmit_all(0);
        assert_eq!(sent.len(), 3);
        let arrived = sent.iter().enumerate().filter(|(index, _)| *index != lost);
        arrived.for_each(|(_, packet)| peer.receive(0, packet));
        assert_eq!(peer.host.keys, [KEY].into(), "without packet {lost}");
        finish(&mut us, &mut peer, 1);
        assert_eq!((us.sends().len(), peer.receives().len()), (1, 1));
        assert!(peer.host.keys.is_empty(), "packet {lost} came again");
    }
}

#[test]
fn a_send_that_finds_no_receive_invalidates_nothing_before_there_is_one() {
    let [mut us, mut peer] = pair();
    us.post(1, SendOpcode::SendWithInv, 16);
    us.pass(0, &mut peer);
    let answer = peer.transmit_all(0);
    assert!(matches!(answer[0].0.headers.aeth.unwrap().syndrome, Syndrome::RnrNak { .. }));
    us.receive(0, &answer[0]);
    assert_eq!(peer.host.keys, [KEY].into());
    peer.post_receive(7, 16);
    finish(&mut us, &mut peer, 1);
    assert_eq!(us.sends(), [(1, WcStatus::SUCCESS)]);
    assert!(peer.host.keys.is_empty());
}

#[test]
fn a_peer_that_invalidates_a_key_which_is_not_its_own_loses_the_connection() {
    let [mut us, mut peer] = pair();
    peer.host.keys = [KEY + 1].into();
    peer.post_receive(7, 16);
    peer.post_receive(8, 16);
    us.post(1, SendOpcode::SendWithInv, 16);
    us.post(2, SendOpcode::Send, 16);
    finish(&mut us, &mut peer, 2);
    assert_eq!(us.sends(), [(1, WcStatus::REM_INV_REQ_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    let flushed = [(7, WcStatus::REM_INV_REQ_ERR), (8, WcStatus::WR_FLUSH_ERR)];
    assert_eq!((peer.receives(), peer.qp.state()), (flushed.into(), QpState::Err));
    assert_eq!(peer.host.keys, [KEY + 1].into());
}

#[test]
fn a_message_of_a_hostile_peer_that_does_not_fit_invalidates_nothing() {
    let invalidate = |headers: &mut Headers| headers.foreign = Some(Foreign::Invalidate(Ieth(KEY)));
    let cases: [&[(Opcode, usize)]; 4] = [
        // No message goes on.
        &[(Opcode::SEND_LAST_INV, 4)],
        // The last packet has no byte.
        &[(Opcode::SEND_FIRST, 1024), (Opcode::SEND_LAST_INV, 0)],
        // The message is longer than the receive, or than a packet may be.
        &[(Opcode::SEND_ONLY_INV, 1001)],
        &[(Opcode::SEND_ONLY_INV, 1025)],
    ];
    for case in cases {
        let [_, mut peer] = pair();
        let long = case.len() == 2;
        peer.post_receive(7, if long { 4096 } else { 1000 });
        for (psn, &(opcode, len)) in (Attr::default().psns[0]..).zip(case) {
            peer.take(0, opcode, psn, invalidate, &vec![1; len]);
        }
        let answer = peer.transmit_all(0).pop().unwrap().0.headers.aeth.unwrap().syndrome;
        assert!(matches!(answer, Syndrome::Nak(_)), "{case:?}: {answer:?}");
        assert_eq!((peer.qp.state(), &peer.host.keys), (QpState::Err, &[KEY].into()), "{case:?}");
    }
}

#[test]
fn a_local_operation_waits_for_lost_packets_and_is_carried_out_once() {
    let [mut us, mut peer] = pair();
    us.post(1, SendOpcode::RdmaWrite, 3000);
    us.post_local(2, Ok(()));
    us.post(3, SendOpcode::RdmaWrite, 16);
    let sent = us.transmit_all(0);
    assert_eq!(sent.len(), 3, "nothing behind the operation leaves before it");
    [&sent[0], &sent[2]].iter().for_each(|packet| peer.receive(0, packet));
    peer.pass(0, &mut us);
    assert_eq!(us.host.locals_done, 0);
    us.pass(0, &mut peer);
    peer.pass(0, &mut us);
    // The WRITE behind the operation is lost, and the operation is not repeated with it.
    assert_eq!((us.transmit_all(0).len(), us.host.locals_done), (1, 1));
    finish(&mut us, &mut peer, 3);
    assert_eq!(us.sends(), [1, 2, 3].map(|wr_id| (wr_id, WcStatus::SUCCESS)));
    assert_eq!(us.host.locals_done, 1);
}

#[test]
fn a_local_operation_that_fails_ends_the_queue_pair_and_nothing_behind_it_leaves() {
    let [mut us, mut peer] = pair();
    us.post_local(1, Err(WcStatus::MW_BIND_ERR));
    us.post_local(2, Ok(()));
    us.post(3, SendOpcode::RdmaWrite, 16);
    us.pass(0, &mut peer);
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(us.sends(), [(1, WcStatus::MW_BIND_ERR), (2, flushed), (3, flushed)]);
    assert_eq!((us.host.locals_done, us.qp.state()), (1, QpState::Err));
    assert!(peer.transmit_all(0).is_empty());
}
