//! The sockets of a connection find each other in any order and in pieces of any size. Strangers are
//! refused with a reason.

use invar_core::auth::Session;
use invar_core::conn::stage::Stage;
use invar_core::conn::wire::TIME_BYTES;
use invar_core::conn::{AwaitedStream, Stream, StreamError};
use invar_core::error::{Error, ErrorKind};
use invar_core::peer_clock::PeerClock;
use invar_core::socket::{
    HELLO_BYTES, HandshakeSettings, HelloError, Links, PendingConnections, SocketConnector,
    SocketHello, SocketRefused,
};
use invar_testkit::pipe::Pipe;
use proptest::prelude::*;

const TIMEOUT_NS: u64 = 1000;

fn settings(device: &str) -> HandshakeSettings {
    HandshakeSettings { device: device.try_into().unwrap(), timeout_ns: TIMEOUT_NS, resumes: true }
}

/// The two ends of `sockets` pipes: this side's and the peer's.
fn pipes(sockets: usize, piece_bytes: usize) -> (Vec<Pipe>, Vec<Pipe>) {
    let pair = |_| {
        let (mut here, mut there) = Pipe::pair();
        (here.chunk_bytes_max, there.chunk_bytes_max) = (piece_bytes, piece_bytes);
        (here, there)
    };
    (0..sockets).map(pair).unzip()
}

fn pending() -> PendingConnections<Pipe> {
    PendingConnections::new(settings("eth1"))
}

/// A pending socket whose peer has sent the bytes `said`.
fn caller(pending: &mut PendingConnections<Pipe>, said: &[u8]) -> Pipe {
    let (here, mut there) = Pipe::pair();
    assert_eq!(there.send(said), Ok(said.len()));
    pending.enter(here, Session::UNKNOWN_PEER, 0);
    there
}

fn hello(index: u16, sockets: u16, session: u64) -> [u8; HELLO_BYTES] {
    let device = "eth0".try_into().unwrap();
    SocketHello {
        index,
        sockets,
        session,
        device,
        shares_views: true,
        tells_time: false,
        resumes: false,
        renewal_port: 0,
    }
    .to_bytes()
}

/// A connector whose peer may be anybody.
fn connector(sockets: Vec<Pipe>, session: u64) -> SocketConnector<Pipe> {
    let sockets = sockets.into_iter().map(|socket| (socket, None));
    SocketConnector::new(sockets, session, &settings("eth0"), 0)
}

fn refused(pending: &mut PendingConnections<Pipe>, now_ns: u64) -> SocketRefused {
    pending.poll(now_ns).map(|links| links.map(|_| ())).unwrap_err()
}

/// Checks that each socket of one end is the other end of the same socket at the peer.
fn assert_joined(sender: &Links<Pipe>, receiver: &Links<Pipe>) {
    assert!(sender.main.stream().is_other_end_of(receiver.main.stream()));
    assert_eq!(sender.lanes.len(), receiver.lanes.len());
    let mut lanes = sender.lanes.iter().zip(&receiver.lanes);
    assert!(lanes.all(|(from, to)| from.stream().is_other_end_of(to.stream())));
}

proptest! {
    #[test]
    fn sockets_find_together_in_any_order_and_pieces(
        lanes in 0usize..=64, piece_bytes in 1usize..200, order: u64, both: bool,
    ) {
        let mut pending = pending();
        let (mut connectors, mut theirs) = (Vec::new(), Vec::new());
        for session in 0..=u64::from(both) {
            let (ours, there) = pipes(lanes + 2, piece_bytes);
            connectors.push(connector(ours, session));
            theirs.extend(there);
        }
        // The number decides the order of the sockets.
        let key = |i: usize| (i as u64 + 1).wrapping_mul(order | 1) >> 7;
        let mut numbered: Vec<(u64, Pipe)> =
            theirs.into_iter().enumerate().map(|(i, pipe)| (key(i), pipe)).collect();
        numbered.sort_by_key(|(key, _)| *key);
        numbered.into_iter().for_each(|(_, pipe)| pending.enter(pipe, Session::UNKNOWN_PEER, 0));
        let (mut senders, mut receivers) = (vec![None, None], Vec::new());
        for _ in 0..(HELLO_BYTES + TIME_BYTES) * 2 + 4 {
            for (connector, links) in connectors.iter_mut().zip(&mut senders) {
                if links.is_none() {
                    *links = connector.poll(0).unwrap();
                }
            }
            receivers.extend(pending.poll(0).unwrap());
        }
        prop_assert_eq!(receivers.len(), connectors.len());
        for receiver in receivers {
            prop_assert_eq!(receiver.lanes.len(), lanes);
            prop_assert_eq!(receiver.ends.peer_device.as_str(), "eth0");
            let session = senders.iter().position(|links| links.as_ref().is_some_and(|links| {
                links.control.stream().is_other_end_of(receiver.control.stream())
            }));
            let sender = senders[session.unwrap()].take().unwrap();
            prop_assert_eq!(sender.ends.peer_device.as_str(), "eth1");
            assert_joined(&sender, &receiver);
        }
    }
}

proptest! {
    #[test]
    fn the_acceptors_clock_is_as_far_ahead_as_the_handshake_says(
        ahead_ns in 0..1_u64 << 50, ways_ns: [u8; 2], piece_bytes in 1_usize..200,
    ) {
        let [there_ns, back_ns] = ways_ns.map(u64::from);
        let mut pending = pending();
        let (ours, theirs) = pipes(2, piece_bytes);
        let mut connector = connector(ours, 7);
        theirs.into_iter().for_each(|pipe| pending.enter(pipe, Session::UNKNOWN_PEER, ahead_ns));
        // Short pieces take many calls.
        for _ in 0..HELLO_BYTES {
            prop_assert!(connector.poll(100).unwrap().is_none());
        }
        let mut calls = 0..2 * HELLO_BYTES;
        let receiver = calls.find_map(|_| pending.poll(100 + there_ns + ahead_ns).unwrap());
        let mut calls = 0..2 * HELLO_BYTES;
        let sender = calls.find_map(|_| connector.poll(100 + there_ns + back_ns).unwrap());
        let (sender, receiver) = (sender.unwrap().ends, receiver.unwrap().ends);
        let PeerClock { ahead_ns: told, uncertainty_ns } = sender.peer_clock.expect("a clock");
        prop_assert!(told.abs_diff(ahead_ns as i64) <= uncertainty_ns, "{told} of {ahead_ns}");
        prop_assert!(uncertainty_ns <= (there_ns + back_ns).div_ceil(2));
        prop_assert_eq!((sender.number, receiver.number, receiver.peer_clock), (7, 7, None));
    }
}

#[test]
fn an_odd_caller_is_refused_by_what_it_says_and_others_go_on() {
    let mut pending = pending();
    let _odd = caller(&mut pending, &hello(9, 2, 1));
    let error = refused(&mut pending, 0).error;
    assert_eq!(error, Error::Hello(HelloError::Index(9)));
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    let mut control = caller(&mut pending, &hello(0, 2, 1));
    assert!(pending.poll(0).unwrap().is_none());
    let _main = caller(&mut pending, &hello(1, 2, 1));
    assert!(pending.poll(0).unwrap().is_some());
    assert_eq!(control.recv(&mut [0; 200]), Ok(HELLO_BYTES), "the answer");
}

#[test]
fn a_socket_that_contradicts_the_others_is_refused_and_they_are_not() {
    let mut pending = pending();
    let _control = caller(&mut pending, &hello(0, 3, 1));
    for (index, sockets, error) in [(0, 3, HelloError::Index(0)), (1, 4, HelloError::Sockets(4))] {
        let _stranger = caller(&mut pending, &hello(index, sockets, 1));
        assert_eq!(refused(&mut pending, 0).error, Error::Hello(error));
    }
    let _rest = [1, 2].map(|index| caller(&mut pending, &hello(index, 3, 1)));
    assert_eq!(pending.poll(0).unwrap().unwrap().lanes.len(), 1);
}

#[test]
fn silence_is_refused_when_the_time_is_up() {
    let mut pending = pending();
    let _silent = caller(&mut pending, b"");
    let _halting = caller(&mut pending, &hello(0, 2, 1)[..60]);
    let _alone = caller(&mut pending, &hello(1, 2, 2));
    assert!(pending.poll(TIMEOUT_NS - 1).unwrap().is_none());
    let mut errors: Vec<Error> = (0..3).map(|_| refused(&mut pending, TIMEOUT_NS).error).collect();
    errors.sort_by_key(|error| error.to_string());
    let timeout = |got| Error::Timeout { stage: Stage::Recv, got, want: 80 };
    let missing = Error::Hello(HelloError::Missing { came: 1, of: 2 });
    assert_eq!(errors, [missing, timeout(0), timeout(60)]);
    assert!(pending.poll(TIMEOUT_NS).unwrap().is_none());
}

#[test]
fn a_socket_that_closes_before_its_hello_is_refused() {
    let mut pending = pending();
    drop(caller(&mut pending, &hello(0, 2, 1)[..7]));
    let closed = |got| Error::Stream {
        stage: Stage::Recv,
        error: StreamError::Closed,
        got,
        want: HELLO_BYTES as u16,
    };
    assert_eq!(refused(&mut pending, 0).error, closed(7));
}

#[test]
fn a_peer_that_ends_before_its_connection_is_complete_is_refused_at_once() {
    for ends in 0..2 {
        let mut pending = pending();
        let mut callers = Vec::from([0, 1].map(|i| caller(&mut pending, &hello(i, 3, 1))));
        assert!(pending.poll(0).unwrap().is_none());
        let awaited = pending.awaited();
        assert_eq!(awaited.filter(|of| matches!(of, AwaitedStream::Bytes(_))).count(), 2);
        drop(callers.remove(ends));
        let (got, want) = (HELLO_BYTES as u16, HELLO_BYTES as u16);
        let closed = Error::Stream { stage: Stage::Recv, error: StreamError::Closed, got, want };
        assert_eq!(refused(&mut pending, 0).error, closed);
        assert_eq!(callers[0].recv(&mut [0]), Err(StreamError::Closed), "it hears of it");
        assert_eq!(pending.awaited().count(), 0);
    }
}

#[test]
fn a_socket_that_says_more_than_hello_before_the_answer_is_refused() {
    let mut pending = pending();
    let _control = caller(&mut pending, &[&hello(0, 2, 1)[..], &[7]].concat());
    assert_eq!(refused(&mut pending, 0).error, Error::Unexpected);
}

#[test]
fn a_lobby_takes_no_more_than_it_has_room_for() {
    let mut pending = pending();
    let callers: Vec<Pipe> = (0..2400).map(|_| caller(&mut pending, b"")).collect();
    assert!(!pending.has_room());
    let turned_away =
        callers.into_iter().filter_map(|mut caller| caller.recv(&mut [0]).err()).count();
    assert_eq!(turned_away, 2400 - 2304);
}

#[test]
fn a_connector_judges_the_answer_and_its_error_stays() {
    for (answer, error) in [
        (hello(0, 2, 8).to_vec(), HelloError::Session(8)),
        (hello(0, 3, 7).to_vec(), HelloError::Sockets(3)),
    ] {
        let (ours, mut theirs) = pipes(2, 1 << 10);
        let mut connector = connector(ours, 7);
        assert!(connector.poll(0).unwrap().is_none());
        theirs[0].send(&answer).unwrap();
        for _ in 0..2 {
            assert_eq!(connector.poll(0).unwrap_err(), Error::Hello(error));
        }
    }
    let (ours, theirs) = pipes(2, 1 << 10);
    let mut connector = connector(ours, 7);
    assert!(connector.poll(TIMEOUT_NS - 1).unwrap().is_none());
    let timeout = Error::Timeout { stage: Stage::Connecting, got: 0, want: 80 };
    assert_eq!(connector.poll(TIMEOUT_NS).unwrap_err(), timeout);
    let report = connector.report(timeout).to_string();
    assert!(report.starts_with("eth0 to peer of unknown address: the peer did not"), "{report}");
    drop(theirs);
}

#[test]
fn an_acceptor_that_promises_its_time_and_does_not_tell_it_is_waited_for_so_long() {
    let (ours, mut theirs) = pipes(2, 1 << 10);
    let mut connector = connector(ours, 7);
    assert!(connector.poll(0).unwrap().is_none());
    let answer = SocketHello { tells_time: true, ..SocketHello::parse(&hello(0, 2, 7)).unwrap() };
    theirs[0].send(&answer.to_bytes()).unwrap();
    assert!(connector.poll(TIMEOUT_NS - 1).unwrap().is_none());
    let timeout = Error::Timeout { stage: Stage::Connecting, got: 80, want: 88 };
    assert_eq!(connector.poll(TIMEOUT_NS).unwrap_err(), timeout);
}
