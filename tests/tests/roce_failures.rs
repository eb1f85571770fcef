//! Tests how a requester fails, and that it does not fail without need: statuses, times, order.

use invar_core::nic::{QpState, QpTransition, SendOpcode, SendWr, WcStatus};
use invar_core::roce::qp::{RNR_NS_MAX, Tuning, ack_timeout_ns, rnr_timer_ns};
use invar_core::roce::{Aeth, Headers, NakCode, Opcode, Psn, Reth, Syndrome};
use invar_testkit::model::roce::{ACK, ADDR, Attr, KEY, Peer};

/// Runs an end whose peer is silent until nothing is left to happen. Returns the times of its
/// transmissions and of the end.
fn run_alone(peer: &mut Peer) -> (Vec<u64>, u64) {
    let (mut now, mut times) = (0, Vec::new());
    loop {
        times.extend(peer.transmit_all(now).iter().map(|_| now));
        let Some(next) = peer.qp.deadline_ns() else { return (times, now) };
        assert!(next > now, "a deadline that does not move");
        now = next;
        peer.qp.handle_timeout(now, &mut peer.host);
    }
}

#[test]
fn silence_ends_the_connection_after_all_retries_and_flushes_the_rest() {
    for (timeout, retry_cnt) in [(10, 3), (14, 7), (14, 0), (18, 2), (1, 7)] {
        let mut us = Peer::with_memory(&Attr { timeout, retry_cnt, ..Attr::default() });
        us.post(1, SendOpcode::Send, 64);
        let unsignaled = SendWr { wr_id: 2, opcode: SendOpcode::Send, ..SendWr::default() };
        us.qp.post_send(&unsignaled, &mut us.host).unwrap();
        us.post(3, SendOpcode::RdmaRead, 64);
        us.post_receive(4, 64);
        let (_, end) = run_alone(&mut us);
        let retries = u64::from(retry_cnt);
        assert_eq!(end, (1 + retries) * ack_timeout_ns(timeout).unwrap(), "timeout {timeout}");
        assert_eq!(us.qp.state(), QpState::Err);
        let flush = WcStatus::WR_FLUSH_ERR;
        assert_eq!(us.sends(), [(1, WcStatus::RETRY_EXC_ERR), (2, flush), (3, flush)]);
        assert_eq!(us.receives(), [(4, flush)]);
    }
}

#[test]
fn a_short_timeout_sends_as_often_as_rxe_in_rc_no_peer() {
    let mut us = Peer::with_memory(&Attr { timeout: 10, retry_cnt: 3, ..Attr::default() });
    us.post(1, SendOpcode::Send, 64);
    let timeout = ack_timeout_ns(10).unwrap();
    assert_eq!(run_alone(&mut us).0, [0, timeout, 2 * timeout, 3 * timeout]);
}

#[test]
fn probes_come_before_a_long_timeout() {
    let tuning = Tuning { probe_ns: 8_000_000, ..Tuning::default() };
    let mut us = Peer::with_memory(&Attr { timeout: 14, retry_cnt: 0, tuning, ..Attr::default() });
    us.post(1, SendOpcode::Send, 64);
    let (sent, _) = run_alone(&mut us);
    let waits: Vec<u64> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits[0], 8_000_000);
    // Each wait is twice the one before, and up to a quarter longer.
    assert!((16_000_000..20_000_000).contains(&waits[1]), "{waits:?}");
    assert!((32_000_000..40_000_000).contains(&waits[2]), "{waits:?}");
}

#[test]
fn progress_makes_all_retries_good_again() {
    let mut us = Peer::with_memory(&Attr { timeout: 10, retry_cnt: 1, ..Attr::default() });
    us.post(1, SendOpcode::Send, 1);
    us.post(2, SendOpcode::Send, 1);
    let timeout = ack_timeout_ns(10).unwrap();
    us.transmit_all(0);
    us.qp.handle_timeout(timeout, &mut us.host);
    us.transmit_all(timeout);
    us.hear(timeout + 5, 0xff_fffa, ACK);
    us.qp.handle_timeout(2 * timeout + 5, &mut us.host);
    assert_eq!(us.sends(), [(1, WcStatus::SUCCESS)]);
    us.qp.handle_timeout(3 * timeout + 5, &mut us.host);
    assert_eq!(us.sends(), [(1, WcStatus::SUCCESS), (2, WcStatus::RETRY_EXC_ERR)]);
}

#[test]
fn a_receiver_that_is_never_ready_ends_the_connection_after_its_retries() {
    let timer = 12;
    let mut us = Peer::with_memory(&Attr { rnr_retry: 2, ..Attr::default() });
    us.post(1, SendOpcode::Send, 64);
    us.post(2, SendOpcode::Send, 64);
    let mut now = 0;
    for sent in [2, 2, 2] {
        assert_eq!(us.transmit_all(now).len(), sent);
        us.hear(now, 0xff_fffa, Syndrome::RnrNak { timer });
        if us.qp.state() == QpState::Rts {
            assert!(us.transmit_all(now).is_empty());
            assert_eq!(us.qp.deadline_ns(), Some(now + rnr_timer_ns(timer)));
            now += rnr_timer_ns(timer);
            us.qp.handle_timeout(now, &mut us.host);
        }
    }
    let ends = [(1, WcStatus::RNR_RETRY_EXC_ERR), (2, WcStatus::WR_FLUSH_ERR)];
    assert_eq!(us.sends(), ends);
    assert_eq!(us.host.sends[0].vendor_err, 0x2c);
}

/// Answers each packet with an RNR NAK until the queue pair fails. Returns the time of the failure.
fn never_ready(us: &mut Peer, mut now: u64, psn: u32, timer: u8) -> u64 {
    loop {
        us.hear(now, psn, Syndrome::RnrNak { timer });
        let Some(deadline) = us.qp.deadline_ns() else { return now };
        now = deadline;
        us.qp.handle_timeout(now, &mut us.host);
        assert!(!us.transmit_all(now).is_empty());
        assert!(now < 10 * RNR_NS_MAX, "it never ends");
    }
}

#[test]
fn without_a_count_and_a_limit_a_receiver_may_take_its_time() {
    let mut us = Peer::with_memory(&Attr { rnr_retry: 7, ..Attr::default() });
    us.qp.set_tuning(Tuning { rnr_ns_max: u64::MAX, ..Tuning::default() });
    us.post(1, SendOpcode::Send, 64);
    us.transmit_all(0);
    let mut now = 0;
    while now < 100 * RNR_NS_MAX {
        us.hear(now, 0xff_fffa, Syndrome::RnrNak { timer: 0 });
        now = us.qp.deadline_ns().expect("a later retry");
        us.qp.handle_timeout(now, &mut us.host);
        assert!(!us.transmit_all(now).is_empty());
    }
    us.hear(now, 0xff_fffa, ACK);
    assert_eq!(us.sends(), [(1, WcStatus::SUCCESS)]);
}

#[test]
fn without_a_count_of_retries_a_receiver_that_is_never_ready_has_a_minute() {
    for timer in [7, 12, 0] {
        let mut us = Peer::with_memory(&Attr { rnr_retry: 7, ..Attr::default() });
        for wr_id in [1, 2, 3] {
            us.post(wr_id, SendOpcode::Send, 64);
        }
        // A late acknowledge of one message starts the minute again.
        let late = 50_000_000_000;
        us.transmit_all(0);
        us.hear(0, 0xff_fffa, Syndrome::RnrNak { timer });
        us.qp.handle_timeout(late, &mut us.host);
        us.transmit_all(late);
        us.hear(late, 0xff_fffa, ACK);
        let end = never_ready(&mut us, late, 0xff_fffb, timer);
        let least = late + RNR_NS_MAX;
        assert!((least..least + 2 * rnr_timer_ns(timer)).contains(&end), "{end} ns");
        let flush = WcStatus::WR_FLUSH_ERR;
        let rnr = WcStatus::RNR_RETRY_EXC_ERR;
        assert_eq!(us.sends(), [(1, WcStatus::SUCCESS), (2, rnr), (3, flush)]);
    }
}

#[test]
fn each_nak_ends_its_request_with_its_status() {
    let table = [
        (NakCode::InvalidRequest, WcStatus::REM_INV_REQ_ERR),
        (NakCode::RemoteAccessError, WcStatus::REM_ACCESS_ERR),
        (NakCode::RemoteOperationalError, WcStatus::REM_OP_ERR),
        (NakCode::InvalidRdRequest, WcStatus::REM_INV_RD_REQ_ERR),
        (NakCode::Unknown(9), WcStatus::REM_OP_ERR),
    ];
    for (code, status) in table {
        let mut us = Peer::with_memory(&Attr::default());
        for wr_id in [1, 2, 3] {
            us.post(wr_id, SendOpcode::RdmaWrite, 8);
        }
        us.transmit_all(0);
        // The NAK acknowledges the packets before the PSN that it names.
        us.hear(1, 0xff_fffb, Syndrome::Nak(code));
        let flush = WcStatus::WR_FLUSH_ERR;
        assert_eq!(us.sends(), [(1, WcStatus::SUCCESS), (2, status), (3, flush)]);
    }
}

#[test]
fn answers_to_nothing_change_nothing() {
    let mut us = Peer::with_memory(&Attr::default());
    us.post(1, SendOpcode::Send, 3000);
    let answers = [
        ACK,
        Syndrome::Nak(NakCode::InvalidRequest),
        Syndrome::RnrNak { timer: 1 },
        Syndrome::Unknown(0x40),
    ];
    for answer in answers {
        us.hear(0, 0xff_fffa, answer);
    }
    assert_eq!(us.transmit_all(0).len(), 3);
    for psn in [0xff_fff9, 0xff_fffd, 0x7f_fffa] {
        for answer in answers {
            us.hear(1, psn, answer);
        }
        us.take(1, Opcode::READ_RESPONSE_MIDDLE, psn, |_| {}, &[0; 1024]);
    }
    assert_eq!((us.sends(), us.qp.state()), (vec![], QpState::Rts));
    assert!(us.transmit_all(1).is_empty());
    assert_eq!(us.qp.counters().dropped, 4 + 3 * 5);
    us.hear(2, 0xff_fffc, ACK);
    assert_eq!(us.sends(), [(1, WcStatus::SUCCESS)]);
}

#[test]
fn one_acknowledge_completes_all_before_it_up_to_an_unanswered_read() {
    let mut us = Peer::with_memory(&Attr::default());
    us.post(1, SendOpcode::RdmaWrite, 3000);
    us.post(2, SendOpcode::Send, 0);
    us.post(3, SendOpcode::RdmaRead, 2000);
    us.post(4, SendOpcode::Send, 0);
    let sent = us.transmit_all(0);
    assert_eq!(sent.len(), 3 + 1 + 1 + 1);
    // The acknowledge of 4 shows that the responses to 3 were lost.
    us.hear(1, 0x00_0000, ACK);
    assert_eq!(us.sends(), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    let again = us.transmit_all(1);
    assert_eq!(again, sent[4..]);
    // A repeated acknowledge changes nothing.
    us.hear(2, 0x00_0000, ACK);
    assert!(us.transmit_all(2).is_empty());
}

#[test]
fn the_rest_of_a_read_is_asked_for_again() {
    let mut us = Peer::with_memory(&Attr::default());
    us.post(1, SendOpcode::RdmaRead, 3000);
    let request = us.transmit_all(0)[0].0.headers;
    assert_eq!(request.reth, Some(Reth { va: ADDR, rkey: KEY, dma_len: 3000 }));
    let aeth = |headers: &mut Headers| headers.aeth = Some(Aeth { syndrome: ACK, msn: 1 });
    us.take(1, Opcode::READ_RESPONSE_FIRST, 0xff_fffa, aeth, &[1; 1024]);
    us.take(2, Opcode::READ_RESPONSE_LAST, 0xff_fffc, aeth, &[3; 952]);
    let again = us.transmit_all(2)[0].0.headers;
    assert_eq!(again.bth.psn, Psn::new(0xff_fffb));
    assert_eq!(again.reth, Some(Reth { va: ADDR + 1024, rkey: KEY, dma_len: 3000 - 1024 }));
    us.take(3, Opcode::READ_RESPONSE_MIDDLE, 0xff_fffb, |_| {}, &[2; 1024]);
    us.take(4, Opcode::READ_RESPONSE_LAST, 0xff_fffc, aeth, &[3; 952]);
    assert_eq!(us.sends(), [(1, WcStatus::SUCCESS)]);
    let bytes = &us.host.regions[0].bytes;
    assert_eq!((bytes[1023], bytes[1024], bytes[2047], bytes[2048], bytes[3000]), (1, 2, 2, 3, 0));
}

#[test]
fn a_malformed_response_ends_the_connection() {
    let ack = Some(Aeth { syndrome: ACK, msn: 1 });
    let nak = Some(Aeth { syndrome: Syndrome::RnrNak { timer: 0 }, msn: 1 });
    let responses = [
        (Opcode::READ_RESPONSE_FIRST, ack, 1023),
        (Opcode::READ_RESPONSE_FIRST, ack, 1025),
        (Opcode::READ_RESPONSE_ONLY, ack, 1024),
        (Opcode::READ_RESPONSE_FIRST, nak, 1024),
        (Opcode::ATOMIC_ACKNOWLEDGE, ack, 0),
    ];
    for (opcode, aeth, len) in responses {
        let mut us = Peer::with_memory(&Attr::default());
        us.post(1, SendOpcode::RdmaRead, 3000);
        us.transmit_all(0);
        us.take(1, opcode, 0xff_fffa, |headers| headers.aeth = aeth, &vec![9; len]);
        assert_eq!(us.sends(), [(1, WcStatus::BAD_RESP_ERR)], "{opcode:?} {len}");
        assert_eq!(us.host.regions[0].bytes, [0; 16 * 1024]);
    }
    // A READ response arrives where a WRITE waits for its acknowledge.
    let mut us = Peer::with_memory(&Attr::default());
    us.post(1, SendOpcode::RdmaWrite, 3);
    us.transmit_all(0);
    us.take(1, Opcode::READ_RESPONSE_ONLY, 0xff_fffa, |headers| headers.aeth = ack, &[1; 3]);
    assert_eq!(us.sends(), [(1, WcStatus::BAD_RESP_ERR)]);
}

#[test]
fn a_drained_queue_ends_what_it_began_and_begins_nothing() {
    let tuning = Tuning { window_packets_max: 2, ..Tuning::default() };
    let mut us = Peer::with_memory(&Attr { tuning, ..Attr::default() });
    us.post(1, SendOpcode::Send, 3000);
    us.post(2, SendOpcode::Send, 1);
    assert_eq!(us.transmit_all(0).len(), 2);
    us.qp.modify(&QpTransition::Sqd, &mut us.host).unwrap();
    us.hear(1, 0xff_fffb, ACK);
    assert_eq!(us.transmit_all(1).len(), 1);
    us.hear(2, 0xff_fffc, ACK);
    assert_eq!(us.transmit_all(2).len(), 0);
    assert_eq!(us.sends(), [(1, WcStatus::SUCCESS)]);
    us.qp.modify(&QpTransition::Resume, &mut us.host).unwrap();
    assert_eq!(us.transmit_all(3).len(), 1);
}
