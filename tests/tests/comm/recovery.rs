//! Queue pairs that fail are replaced, and every message arrives once.

use invar_core::comm::{Flush, FlushBuf, RecoveryStage, RecvBuf, Request};
use invar_core::conn::CommSettings;
use invar_core::error::{Error, ErrorKind};
use invar_core::nic::{QpTransition, SendWr, Sge, Verb, Wc, WcStatus};
use invar_testkit::duo::{Buffer, Duo};

use crate::line::Line;
use crate::raw_peer::RawSlot;
use crate::rig;

const SECOND: u64 = 1_000_000_000;

impl Line {
    /// Breaks the receiver's end while `pending` waits, and lets both ends recover.
    fn break_and_recover(&mut self, pending: &Request) {
        self.nics[1].complete_with(WcStatus::RETRY_EXC_ERR);
        assert_eq!(self.duo.recv.test(pending), Ok(None));
        self.pass(5).expect("a recovery");
    }

    /// Sends the message of `place`, which `received` awaits.
    fn carry(&mut self, place: usize, received: &Request) {
        let sent = self.isend(place);
        self.check_arrived(&sent, received);
    }
}

#[test]
fn messages_under_way_arrive_after_either_end_has_failed() {
    for (end, qps) in [(0, 1), (1, 1), (0, 4), (1, 4)] {
        let settings = CommSettings { qps, ..CommSettings::default() };
        let mut line = Line::new([settings; 2]);
        line.hold(true);
        let received: Vec<Request> = (0..4).map(|i| line.irecv(i)).collect();
        let sent: Vec<Request> = (0..2).map(|i| line.isend(i)).collect();
        line.nics[end].complete_with(WcStatus::RETRY_EXC_ERR);
        let tested = match end {
            0 => line.duo.send.test(&sent[1]).map(|_| ()),
            _ => line.duo.recv.test(&received[3]).map(|_| ()),
        };
        assert_eq!(tested, Ok(()));
        line.hold(false);
        assert_eq!(line.stages()[end], Some(RecoveryStage::Suspected));
        line.pass(5).expect("a recovery");
        assert_eq!(line.attempts(), [1, 1]);
        let late: Vec<Request> = (2..4).map(|i| line.isend(i)).collect();
        for request in sent.iter().chain(&late) {
            assert_eq!(line.duo.send.test(request), Ok(Some(64)));
        }
        for (place, request) in received.iter().enumerate() {
            assert_eq!(line.duo.recv.test(request).map(|sizes| sizes.is_some()), Ok(true));
            assert_eq!(line.to.read(64 * place, 64), [place as u8 + 1; 64]);
        }
    }
}

#[test]
fn a_row_that_the_peer_changes_never_sends_buffers_that_their_owner_has_back() {
    let settings = CommSettings { fifo_depth: 8, ..CommSettings::default() };
    let mut line = Line::new([settings; 2]);
    let buf = |line: &Line, place: usize| line.to.room(64 * place, 64, 0);
    // The first row has eight messages, and each further one has one.
    for messages in [8, 1, 1, 1, 1, 1, 1, 1] {
        let bufs: Vec<RecvBuf> = (0..messages).map(|place| buf(&line, place)).collect();
        let received = line.duo.irecv(&bufs);
        let sent: Vec<_> = (0..messages).map(|i| line.isend(i)).collect();
        for request in &sent {
            assert_eq!(line.duo.send.test(request), Ok(Some(64)));
        }
        assert_eq!(line.duo.recv.test(&received).map(|sizes| sizes.is_some()), Ok(true));
    }
    let (_, first_row) = line.nics[1].plan.posted.borrow()[0];
    // The next row takes the place of the first. Its message is under way when the peer writes eight slots
    // over the row, and says that nothing has arrived.
    let _ = line.irecv(0);
    line.hold(true);
    let sent = line.isend(0);
    let forged = Buffer::new(&line.nics[1], &line.duo.recv_pd, 256);
    for place in 0..8 {
        let RecvBuf { addr, rkey, .. } = buf(&line, place);
        let slot = RawSlot { addr, size: 64, rkey, nreqs: 8, tag: 0, idx: 9 };
        forged.write(32 * place, &slot.bytes());
    }
    let sge = Sge { addr: forged.addr(0), length: 256, lkey: forged.lkey() };
    let SendWr { remote_addr, rkey, .. } = first_row;
    line.nics[1].plan.rider.set(Some(SendWr { remote_addr, rkey, sge, ..SendWr::default() }));
    let _ = line.irecv(1);
    line.nics[0].complete_with(WcStatus::RETRY_EXC_ERR);
    assert_eq!(line.duo.send.test(&sent), Ok(None));
    // The receiver gives up its drain after the sender, and only then reports.
    assert_eq!(line.pass(4000), Err(Error::Unexpected));
    assert_eq!(line.duo.send.test(&sent), Err(Error::Unexpected));
}

#[test]
fn a_connection_that_has_worked_meanwhile_gets_the_whole_time_again() {
    let mut line = Line::new([CommSettings::default(); 2]);
    let first = line.irecv(0);
    // The second recovery finds no more rows than the first.
    line.break_and_recover(&first);
    line.break_and_recover(&first);
    line.carry(0, &first);
    line.pass(70_000).expect("a connection at rest");
    let next = line.irecv(1);
    line.break_and_recover(&next);
    line.carry(1, &next);
}

#[test]
fn calls_made_meanwhile_find_nothing_to_do() {
    let mut line = Line::new([CommSettings::default(); 2]);
    let received = line.irecv(0);
    line.nics[1].complete_with(WcStatus::WR_FLUSH_ERR);
    assert_eq!(line.duo.recv.test(&received), Ok(None));
    assert_eq!(line.duo.recv.test(&received), Ok(None));
    assert_eq!(line.duo.recv.irecv(&[line.to.room(64, 64, 0)]), Ok(None));
    line.pass(5).expect("a recovery");
    let _ = line.irecv(1);
}

#[test]
fn queue_pairs_of_an_attempt_share_no_sequence_numbers_with_earlier_ones() {
    let mut line = Line::new([CommSettings::default(); 2]);
    let stopped = |line: &Line| {
        let moves = line.nics.each_ref().map(|nic| nic.plan.moves.take());
        moves.iter().flatten().filter(|to| **to == QpTransition::Err).count()
    };
    assert_eq!(stopped(&line), 0);
    line.nics[0].complete_with(WcStatus::RETRY_EXC_ERR);
    let received = line.irecv(0);
    let sent = line.isend(0);
    let _ = line.duo.send.test(&sent);
    let before: Vec<u32> = line.duo.send.qpns().chain(line.duo.recv.qpns()).collect();
    line.pass(5).expect("a recovery");
    assert!(stopped(&line) >= 2, "each end stops its queue pair");
    let after: Vec<u32> = line.duo.send.qpns().chain(line.duo.recv.qpns()).collect();
    assert!(before.iter().all(|qpn| !after.contains(qpn)), "{before:?} {after:?}");
    assert_eq!(line.duo.recv.test(&received).map(|sizes| sizes.is_some()), Ok(true));
}

#[test]
fn a_port_that_stays_down_is_named_after_the_time_that_is_set() {
    let settings = CommSettings { recovery_timeout_ns: 3 * SECOND, ..CommSettings::default() };
    let mut line = Line::new([settings; 2]);
    let received = line.irecv(0);
    line.nics[1].set_down(true);
    line.nics[1].complete_with(WcStatus::RETRY_EXC_ERR);
    assert_eq!(line.duo.recv.test(&received), Ok(None));
    line.pass(2900).expect("there is time left");
    let error = line.pass(1200).expect_err("too long");
    let Error::Recovery(recovery) = error else { panic!("{error}") };
    assert_eq!(error.kind(), ErrorKind::Network);
    assert_eq!((recovery.verb, recovery.trouble), (Verb::QueryPort, "the port is down"));
    assert!((3000..4100).contains(&recovery.waited_ms), "{recovery:?}");
    let text = error.to_string();
    for part in [
        "RETRY_EXC_ERR",
        "over 3",
        "the port is down",
        "the peer was heard of last 3.",
        "INVAR_RECOVERY_TIMEOUT_MS",
    ] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    // The other end learns it too.
    line.now_ns += SECOND;
    assert_eq!(line.duo.send.check_peer(line.now_ns), Err(Error::PeerFailed));
}

#[test]
fn ends_that_agree_on_attempts_but_can_start_none_give_up_after_the_time_that_is_set() {
    // With this timeout each attempt is so much later than the last message that it could count as the
    // first of a new recovery.
    let recovery_timeout_ns = 3 * SECOND;
    let settings = CommSettings { recovery_timeout_ns, timeout: 10, ..CommSettings::default() };
    for refusing in [[true, false], [false, true], [true, true]] {
        let mut line = Line::new([settings; 2]);
        for (nic, refuses) in line.nics.iter().zip(refusing) {
            nic.plan.refuses_peers.set(refuses);
        }
        let received = line.irecv(0);
        line.nics[1].complete_with(WcStatus::RETRY_EXC_ERR);
        assert_eq!(line.duo.recv.test(&received), Ok(None));
        line.pass(2900).expect("there is time left");
        let error = line.pass(2200).expect_err("too long");
        let Error::Recovery(recovery) = error else { panic!("{refusing:?}: {error}") };
        assert!((3000..5100).contains(&recovery.waited_ms), "{refusing:?}: {recovery:?}");
        assert!(recovery.attempts > 2, "{refusing:?}: {recovery:?}");
    }
}

#[test]
fn a_port_that_comes_up_again_carries_the_messages() {
    let mut line = Line::new([CommSettings::default(); 2]);
    let received = line.irecv(0);
    line.nics[0].set_down(true);
    line.hold(true);
    let sent = line.isend(0);
    line.nics[0].complete_with(WcStatus::RETRY_EXC_ERR);
    assert_eq!(line.duo.send.test(&sent), Ok(None));
    line.hold(false);
    line.pass(20_000).expect("there is time left");
    assert_eq!(line.duo.send.recovery_stage(), Some(RecoveryStage::Stopped));
    line.nics[0].set_down(false);
    line.pass(1100).expect("a recovery");
    line.check_arrived(&sent, &received);
}

#[test]
fn an_error_that_no_queue_pair_can_mend_ends_both_ends_at_once() {
    let mut line = Line::new([CommSettings::default(); 2]);
    let _received = line.irecv(0);
    line.nics[0].complete_with(WcStatus::REM_ACCESS_ERR);
    let sent = line.isend(0);
    let error = line.duo.send.test(&sent).expect_err("an access error");
    assert!(matches!(error, Error::Completion(error) if error.status == WcStatus::REM_ACCESS_ERR));
    assert_eq!(line.duo.recv.check_peer(line.now_ns), Err(Error::PeerFailed));
}

#[test]
fn a_refusal_of_a_nic_begins_attempts_until_it_has_repeated_itself() {
    let refusals = [WcStatus::LOC_QP_OP_ERR, WcStatus::REM_INV_REQ_ERR];
    for (end, status) in (0..2).flat_map(|end| refusals.map(|status| (end, status))) {
        let mut line = Line::new([CommSettings::default(); 2]);
        for place in 0..8 {
            let received = line.irecv(place);
            line.hold(true);
            let sent = line.isend(place);
            line.nics[end].complete_with(status);
            line.pass(1).expect("an attempt");
            line.hold(false);
            line.pass(5).expect("a recovery");
            line.check_arrived(&sent, &received);
        }
        assert_eq!(line.attempts(), [8, 8]);
        let error = (0..8).find_map(|_| {
            line.nics[end].complete_with(status);
            line.pass(5).err()
        });
        assert!(matches!(error, Some(Error::Completion(_) | Error::PeerFailed)), "{error:?}");
    }
}

#[test]
fn a_queue_pair_that_the_device_reports_as_failed_is_replaced() {
    for end in 0..2 {
        let mut line = Line::new([CommSettings::default(); 2]);
        let received = line.irecv(0);
        line.hold(true);
        let sent = line.isend(0);
        line.nics[end].plan.event.set(Some((Verb::QpEvent, "QP fatal")));
        line.pass(1).expect("an attempt");
        line.hold(false);
        line.pass(5).expect("a recovery");
        assert_eq!(line.attempts(), [1, 1]);
        line.check_arrived(&sent, &received);
        // Queue pairs that all fail are no accident.
        line.nics[end].plan.keeps_event.set(true);
        line.nics[end].plan.event.set(Some((Verb::QpEvent, "QP fatal")));
        let error = line.pass(100).expect_err("no queue pair works");
        assert!(matches!(error, Error::Nic(_) | Error::PeerFailed), "{error:?}");
    }
}

#[test]
fn a_completion_explains_a_failure_before_the_event_of_its_queue_pair() {
    let mut line = Line::new([CommSettings::default(); 2]);
    // After a few events alone the connection ends, since each of its queue pairs fails.
    for _ in 0..8 {
        line.nics[0].complete_with(WcStatus::RETRY_EXC_ERR);
        line.nics[0].plan.event.set(Some((Verb::QpEvent, "local access violation")));
        line.pass(5).expect("a recovery");
    }
}

#[test]
fn a_connection_with_an_end_that_does_not_recover_fails_at_once() {
    for settings in
        [[CommSettings::default(), rig::fragile()], [rig::fragile(), CommSettings::default()]]
    {
        let mut line = Line::new(settings);
        let received = line.irecv(0);
        line.nics[1].complete_with(WcStatus::WR_FLUSH_ERR);
        assert!(line.duo.recv.test(&received).is_err());
    }
}

#[test]
fn a_flush_whose_queue_pair_has_failed_is_done_with_a_new_one() {
    let flush = CommSettings { flush: true, ..CommSettings::default() };
    let mut line = Line::new([CommSettings::default(), flush]);
    let (addr, rkey) = (line.to.addr(0), line.to.rkey());
    let buf = FlushBuf { addr, len: 8, rkey };
    line.hold(true);
    let Flush::Started(early) = line.duo.recv.iflush(&[buf]).unwrap() else { panic!("started") };
    // The queue pair of the flushes is the only one on which this end has posted.
    let [(qpn, read)] = line.nics[1].plan.posted.take()[..] else { panic!("one READ") };
    let (status, wr_id) = (WcStatus::RETRY_EXC_ERR, read.wr_id);
    let wc = Wc { wr_id, status, qp_num: qpn, ..Wc::default() };
    line.nics[1].plan.made_up.borrow_mut().push(wc);
    assert_eq!(line.duo.recv.test(&early), Ok(None));
    let Flush::Started(late) = line.duo.recv.iflush(&[buf]).unwrap() else { panic!("started") };
    assert!(line.nics[1].plan.posted.take().is_empty(), "it waits for the new queue pair");
    line.hold(false);
    line.pass(5).expect("a recovery");
    for request in [early, late] {
        assert_eq!(line.duo.recv.test(&request).map(|sizes| sizes.is_some()), Ok(true));
    }
}

#[test]
fn a_peer_that_makes_no_calls_is_not_waited_for_for_ever() {
    let settings = CommSettings { recovery_timeout_ns: 3 * SECOND, ..CommSettings::default() };
    let mut line = Line::new([settings; 2]);
    let received = line.irecv(0);
    line.nics[1].complete_with(WcStatus::WR_FLUSH_ERR);
    assert_eq!(line.duo.recv.test(&received), Ok(None));
    let mut wait = |ms: u64| {
        (0..ms).try_for_each(|_| {
            line.now_ns += 1_000_000;
            line.duo.recv.check_peer(line.now_ns)
        })
    };
    wait(2900).expect("there is time left");
    let error = wait(200).expect_err("too long");
    assert!(error.to_string().contains("has made no new queue pairs"), "{error}");
}

#[test]
fn messages_that_do_not_arrive_though_the_peer_answers_are_sent_again_within_a_second() {
    let mut line = Line::new([CommSettings::default(); 2]);
    let received = line.irecv(0);
    line.hold(true);
    let sent = line.isend(0);
    line.pass(400).expect("there is time left");
    assert_eq!(line.attempts(), [0, 0]);
    line.pass(550).expect("a recovery");
    assert!(line.duo.send.attempts() > 0 || line.duo.send.recovery_stage().is_some());
    line.hold(false);
    line.pass(1100).expect("a recovery");
    assert_eq!(line.duo.send.attempts(), line.duo.recv.attempts());
    line.check_arrived(&sent, &received);
}

#[test]
fn a_peer_that_is_stopped_is_no_reason_to_replace_queue_pairs() {
    let mut line = Line::new([CommSettings::default(); 2]);
    let received = line.irecv(0);
    line.hold(true);
    let sent = line.isend(0);
    for _ in 0..20_000 {
        line.now_ns += 1_000_000;
        line.duo.send.check_peer(line.now_ns).expect("the peer is there");
        assert_eq!(line.duo.send.recovery_stage(), None);
    }
    line.hold(false);
    line.pass(10).expect("it goes on");
    assert_eq!(line.attempts(), [0, 0]);
    line.check_arrived(&sent, &received);
}

#[test]
fn receives_for_which_nobody_sends_are_no_reason_to_replace_queue_pairs() {
    let mut line = Line::new([CommSettings::default(); 2]);
    let received = line.irecv(0);
    line.pass(20_000).expect("nothing has failed");
    assert_eq!(line.attempts(), [0, 0]);
    let sent = line.isend(0);
    line.check_arrived(&sent, &received);
}

#[test]
fn an_end_whose_stream_stays_lost_says_so_with_the_time() {
    for (end, ends, text) in [
        (0, [true, false], "no call reached the peer's host in 3"),
        (1, [false, true], "the peer has not called again in 3"),
    ] {
        let settings = CommSettings { recovery_timeout_ns: 3 * SECOND, ..CommSettings::default() };
        let mut line = Line::new([settings; 2]);
        line.duo.cable.cut(ends);
        line.duo.cable.set_out(true);
        line.pass(2900).expect("there is time left");
        let error = line.pass(300).expect_err("too long").to_string();
        assert!(error.contains("was lost (connection timed out (errno 110))"), "{end}: {error}");
        assert!(error.contains(text), "{end}: {error}");
        assert!(error.contains("INVAR_RECOVERY_TIMEOUT_MS"), "{end}: {error}");
    }
}

#[test]
fn a_peer_that_is_gone_when_it_is_called_again_is_an_error_at_once() {
    let line = Line::new([CommSettings::default(); 2]);
    let Line { duo: Duo { mut send, recv, cable, .. }, now_ns, .. } = line;
    cable.cut([true; 2]);
    drop(recv);
    let error = (1..5).find_map(|ms| send.check_peer(now_ns + ms * 1_000_000).err());
    assert!(matches!(error, Some(Error::PeerClosed(_))), "{error:?}");
}

#[test]
fn an_end_that_has_failed_while_the_stream_was_lost_refuses_the_next_call() {
    let mut line = Line::new([CommSettings::default(); 2]);
    line.duo.cable.cut([true; 2]);
    let received = line.irecv(0);
    line.nics[1].complete_with(WcStatus::REM_ACCESS_ERR);
    line.duo.recv.test(&received).expect_err("an access error");
    let (now_ns, send) = (line.now_ns, &mut line.duo.send);
    let error = (1..5).find_map(|ms| send.check_peer(now_ns + ms * 1_000_000).err());
    assert!(matches!(error, Some(Error::PeerClosed(_))), "{error:?}");
}
