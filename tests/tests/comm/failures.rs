//! A work request that ends in error ends the comm, and so does a peer that goes. Each later call
//! returns the error, which names both ends and says what to try.

use std::time::Duration;

use invar_core::comm::{Flush, FlushBuf, Request, SendBuf};
use invar_core::conn::{CommSettings, StreamError};
use invar_core::error::{Error, ErrorKind};
use invar_core::nic::{Gid, Nic, PortAttr, PortNotices, PortState, Verb, WcStatus};
use invar_testkit::duo::Duo;

use crate::line::Line;
use crate::meddler::Meddler;
use crate::rig;

/// A connection that ends with the first error.
fn fragile() -> Line {
    Line::new([rig::fragile(); 2])
}

/// The status of an error completion.
fn status(error: Error) -> WcStatus {
    let Error::Completion(completion) = error else { panic!("{error}") };
    completion.status
}

#[test]
fn a_buffer_deregistered_while_receiving_is_a_remote_access_error() {
    let mut line = fragile();
    let _ = line.duo.irecv(&[line.to.room(0, 64, 0)]);
    drop(line.to.mr);
    let message = line.from.message(0, 64);
    let sent = line.duo.isend(&message, 0);
    let error = line.duo.send.test(&sent).expect_err("no such region");
    assert_eq!(status(error), WcStatus::REM_ACCESS_ERR);
    assert_eq!(error.kind(), ErrorKind::Peer);
    for _ in 0..2 {
        assert_eq!(line.duo.send.test(&sent), Err(error));
        assert_eq!(line.duo.send.isend(&message, 0), Err(error));
        assert_eq!(line.duo.send.check_peer(0), Err(error));
    }
    let report = line.duo.send.report(error).to_string();
    let ends = line.duo.send.ends();
    let names = ["null0", "null1", "REM_ACCESS_ERR", "buffer", "registered"].map(str::to_string);
    let numbers = [
        format!("GID {}", ends.gid),
        format!("GID {}", ends.peer_gid),
        format!("QP {:#x}", ends.qpn),
        format!("QP {:#x}", ends.peer_qpn),
        "error 10".to_string(),
    ];
    for part in names.iter().chain(&numbers) {
        assert!(report.contains(part), "{part} in: {report}");
    }
}

#[test]
fn a_local_buffer_that_is_not_registered_is_a_local_protection_error() {
    let mut line = fragile();
    let _ = line.duo.irecv(&[line.to.room(0, 64, 0)]);
    let message = SendBuf { lkey: 0xbad, ..line.from.message(0, 64) };
    let sent = line.duo.isend(&message, 0);
    let error = line.duo.send.test(&sent).expect_err("no such region");
    assert_eq!((status(error), error.kind()), (WcStatus::LOC_PROT_ERR, ErrorKind::Local));
}

#[test]
fn a_receiver_that_is_gone_is_given_up_after_all_retries() {
    let mut line = fragile();
    let (room, message) = (line.to.room(0, 64, 0), line.from.message(0, 64));
    let _ = line.duo.irecv(&[room]);
    let Duo { mut send, recv, .. } = line.duo;
    drop(recv);
    let sent = send.isend(&message, 0).expect("isend").expect("a request");
    let error = send.test(&sent).expect_err("nobody there");
    assert_eq!((status(error), error.kind()), (WcStatus::RETRY_EXC_ERR, ErrorKind::Network));
    let report = send.report(error).to_string();
    for part in ["RETRY_EXC_ERR", "34.4 s (timeout 20, 1 + 7 tries)", "NCCL_IB_TIMEOUT", "4791"] {
        assert!(report.contains(part), "{part} in: {report}");
    }
}

#[test]
fn a_sender_that_is_gone_is_told_on_the_next_receive() {
    let line = fragile();
    let room = line.to.room(0, 64, 0);
    let Duo { send, mut recv, .. } = line.duo;
    drop(send);
    let received = recv.irecv(&[room]).expect("irecv").expect("a request");
    let error = recv.test(&received).expect_err("nobody there");
    assert_eq!(status(error), WcStatus::RETRY_EXC_ERR);
    for _ in 0..2 {
        assert_eq!(recv.irecv(&[room]), Err(error));
        assert_eq!(recv.irecv(&[room, room]), Err(error));
        assert_eq!(recv.iflush(&[]), Err(error));
        assert_eq!(recv.test(&received), Err(error));
    }
}

#[test]
fn what_a_peer_sent_before_it_closed_can_be_collected_and_the_rest_is_an_error() {
    let mut line = fragile();
    let (room, message) = (line.to.room(0, 64, 0), line.from.message(0, 64));
    let mut irecv = || line.duo.irecv(&[room]);
    let (complete, too, waiting) = (irecv(), irecv(), irecv());
    for _ in 0..2 {
        let _ = line.duo.isend(&message, 0);
    }
    let Duo { send, mut recv, .. } = line.duo;
    assert_eq!(recv.check_peer(0), Ok(()));
    drop(send);
    let closed = Error::PeerClosed(StreamError::Closed);
    assert_eq!(recv.check_peer(0), Err(closed));
    assert_eq!(recv.test(&too), Ok(Some(&[64][..])));
    assert_eq!(recv.test(&waiting), Err(closed));
    assert_eq!(recv.test(&complete), Ok(Some(&[64][..])));
    assert_eq!(recv.test(&complete), Err(Error::UnknownRequest(complete.raw())));
    assert_eq!(recv.irecv(&[room]), Err(closed));
    assert_eq!(recv.check_peer(0), Err(closed));
    let report = recv.report(closed).to_string();
    assert!(report.contains("null0") && report.contains("closed"), "{report}");
}

#[test]
fn what_a_peer_sent_before_it_closed_is_flushed_as_ever() {
    let flush = CommSettings { flush: true, ..rig::fragile() };
    let Line { duo: Duo { send, mut recv, .. }, to, .. } = Line::new([rig::fragile(), flush]);
    let buf = |len| FlushBuf { addr: to.addr(0), len, rkey: to.rkey() };
    drop(send);
    let closed = Error::PeerClosed(StreamError::Closed);
    assert_eq!(recv.check_peer(0), Err(closed));
    assert_eq!(recv.iflush(&[buf(0)]), Ok(Flush::NotNeeded));
    let Ok(Flush::Started(request)) = recv.iflush(&[buf(9)]) else { panic!("nothing flushed") };
    assert_eq!(recv.test(&request), Ok(Some(&[][..])));
    assert_eq!(recv.check_peer(0), Err(closed));
}

#[test]
fn a_sender_too_can_collect_what_was_complete_when_its_peer_closed() {
    let mut line = fragile();
    let (room, message) = (line.to.room(0, 64, 0), line.from.message(0, 64));
    let _ = line.duo.irecv(&[room]);
    let sent = line.duo.isend(&message, 0);
    let Duo { mut send, recv, .. } = line.duo;
    drop(recv);
    let closed = Error::PeerClosed(StreamError::Closed);
    assert_eq!(send.check_peer(0), Err(closed));
    assert_eq!(send.test(&sent), Ok(Some(64)));
    assert_eq!(send.isend(&message, 0), Err(closed));
}

#[test]
fn a_verb_that_fails_ends_the_comm() {
    for verb in [Verb::PostRecv, Verb::PostSend, Verb::PollCq] {
        let Line { nics: [_, nic], mut duo, to, .. } = fragile();
        let room = to.room(0, 64, 0);
        let first = duo.irecv(&[room]);
        nic.plan.failing.set(Some(verb));
        let error = match verb {
            Verb::PollCq => duo.recv.test(&first).expect_err("the poll fails"),
            _ => duo.recv.irecv(&[room]).expect_err("the post fails"),
        };
        assert_eq!(error.kind(), ErrorKind::Local);
        assert!(error.to_string().starts_with(verb.name()), "{error}");
        nic.plan.failing.set(None);
        assert_eq!(duo.recv.irecv(&[room]), Err(error), "it stays");
        assert_eq!(duo.recv.test(&first), Err(error), "it stays");
    }
}

/// A connection whose receiver waits for a message, and the receiver's NIC.
fn waiting_receiver() -> (Duo<Meddler>, Request, Meddler) {
    let Line { nics: [_, nic], mut duo, to, .. } = fragile();
    let request = duo.irecv(&[to.room(0, 64, 0)]);
    (duo, request, nic)
}

#[test]
fn an_error_completion_names_what_is_wrong_with_the_own_port() {
    let trouble = |change: fn(PortAttr) -> PortAttr| {
        let (mut duo, request, nic) = waiting_receiver();
        nic.plan.port.set(Some(change(nic.query_port().expect("a port"))));
        nic.complete_with(WcStatus::RETRY_EXC_ERR);
        let error = duo.recv.test(&request).expect_err("the completion is in error");
        (error.kind(), error.to_string())
    };
    let (kind, text) = trouble(|port| PortAttr { state: PortState::Down, ..port });
    assert_eq!(kind, ErrorKind::Local);
    assert!(text.ends_with("look at this end first: the port is down"), "{text}");
    let (kind, text) = trouble(|port| PortAttr { gid: Gid([9; 16]), ..port });
    assert_eq!(kind, ErrorKind::Local);
    assert!(text.contains("look at this end first: its GID is gone"), "{text}");
    let (kind, text) = trouble(|port| port);
    assert_eq!(kind, ErrorKind::Network);
    assert!(!text.contains("this end"), "{text}");
}

#[test]
fn a_device_that_reports_its_end_ends_a_comm_that_waits() {
    let (mut duo, request, nic) = waiting_receiver();
    assert_eq!(duo.recv.check_peer(0), Ok(()));
    nic.plan.event.set(Some((Verb::AsyncEvent, "device fatal")));
    let error = duo.recv.check_peer(0).expect_err("the device is of no use");
    assert_eq!(error.to_string(), "the device (ibv_get_async_event) failed: device fatal");
    assert_eq!(duo.recv.test(&request), Err(error));
}

#[test]
fn what_had_befallen_the_port_is_told_of_any_end_and_stays_as_it_was_then() {
    let ago = |ms| Some(Duration::from_millis(ms));
    let could_not_send = Some(("no route", Duration::from_millis(1600)));
    let (went_down, came_up) = (ago(2100), ago(400));
    let notices = PortNotices { went_down, came_up, could_not_send, ..PortNotices::default() };
    let told = "; the port of null1 went down 2.1 s before, came up 0.4 s before, could not send \
                1.6 s before (no route)";

    let (mut duo, request, nic) = waiting_receiver();
    nic.plan.notices.set(notices);
    nic.complete_with(WcStatus::WR_FLUSH_ERR);
    let error = duo.recv.test(&request).expect_err("the completion is in error");
    let text = duo.recv.report(error).to_string();
    assert!(text.ends_with(told), "{text}");
    nic.plan.notices.set(PortNotices { changed_gids: ago(1), ..notices });
    let error = duo.recv.test(&request).expect_err("it stays");
    assert_eq!(duo.recv.report(error).to_string(), text);

    let (mut duo, _, nic) = waiting_receiver();
    nic.plan.notices.set(notices);
    drop(duo.send);
    let error = duo.recv.check_peer(0).expect_err("the peer is gone");
    assert_eq!(error, Error::PeerClosed(StreamError::Closed));
    let text = duo.recv.report(error).to_string();
    assert!(text.ends_with(told), "{text}");

    let (mut duo, _, _) = waiting_receiver();
    drop(duo.send);
    let error = duo.recv.check_peer(0).expect_err("the peer is gone");
    assert!(!duo.recv.report(error).to_string().contains("the port of"));
}
