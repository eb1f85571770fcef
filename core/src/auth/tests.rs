//! Tests with two ends in memory, and attacks that strangers may try.

extern crate std;

use core::cell::RefCell;
use core::net::SocketAddr;
use std::collections::VecDeque;
use std::rc::Rc;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::conn::Stream;

#[derive(Default)]
struct Direction {
    bytes: VecDeque<u8>,
    is_closed: bool,
}

/// One end of a stream that moves at most `chunk` bytes in each call.
struct End {
    out: Rc<RefCell<Direction>>,
    into: Rc<RefCell<Direction>>,
    chunk: usize,
}

fn ends(chunk: usize) -> [End; 2] {
    let (a, b) = (Rc::<RefCell<Direction>>::default(), Rc::<RefCell<Direction>>::default());
    [End { out: a.clone(), into: b.clone(), chunk }, End { out: b, into: a, chunk }]
}

impl Stream for End {
    fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn poll_connected(&mut self) -> Result<bool, StreamError> {
        Ok(true)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        let n = bytes.len().min(self.chunk);
        self.out.borrow_mut().bytes.extend(&bytes[..n]);
        Ok(n)
    }

    fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
        let way = &mut *self.into.borrow_mut();
        let n = buf.len().min(self.chunk).min(way.bytes.len());
        if n == 0 && way.is_closed {
            return Err(StreamError::Closed);
        }
        buf.iter_mut().zip(way.bytes.drain(..n)).for_each(|(to, from)| *to = from);
        Ok(n)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.out.borrow_mut().is_closed = true;
    }
}

const OURS: Secret = Secret::new([7; SECRET_BYTES]);
const OTHER: Secret = Secret::new([8; SECRET_BYTES]);

fn calling(secret: Secret) -> Calling {
    Calling::new(secret, Service::Rdma, [1; NONCE_BYTES])
}

/// The results of the caller and of the listener.
fn meet(
    mut calling: Calling,
    secret: Secret,
    service: Service,
    chunk: usize,
) -> [Result<Session, AuthError>; 2] {
    let [mut caller, listener] = ends(chunk);
    let mut listener = Some(listener);
    let mut answering = Answering::new([2; NONCE_BYTES]);
    let (mut called, mut answered) = (None, None);
    for _ in 0..1000 {
        if called.is_none() {
            called = calling.poll(&mut caller).transpose();
        }
        if answered.is_none()
            && let Some(stream) = &mut listener
        {
            answered = answering.poll(&secret, service, stream).transpose();
            if matches!(answered, Some(Err(_))) {
                listener = None;
            }
        }
        if let (Some(called), Some(answered)) = (called, answered) {
            return [called, answered];
        }
    }
    panic!("they wait for each other: {called:?}, {answered:?}");
}

#[test]
fn two_ends_that_know_the_secret_come_to_one_session_whatever_fits_at_a_time() {
    for chunk in 1..=70 {
        let [called, answered] = meet(calling(OURS), OURS, Service::Rdma, chunk);
        assert!(called.is_ok() && called == answered, "{chunk} bytes at a time");
    }
}

#[test]
fn sessions_differ_by_secret_and_nonces_and_give_each_end_and_queue_pair_its_own_psn() {
    let session = |secret, nonce| {
        let calling = Calling::new(secret, Service::Rdma, [nonce; NONCE_BYTES]);
        meet(calling, secret, Service::Rdma, 99)[0].unwrap()
    };
    let sessions = [session(OURS, 1), session(OURS, 3), session(OTHER, 1)];
    let mut psns: Vec<u32> = sessions
        .iter()
        .flat_map(|session| [Side::Connector, Side::Acceptor].map(|side| (session, side)))
        .flat_map(|(session, side)| (0..300).map(move |index| session.first_psn(side, index, 0)))
        .collect();
    assert!(psns.iter().all(|psn| *psn <= Psn::MASK));
    psns.sort_unstable();
    psns.dedup();
    assert!(psns.len() > 1790, "of 1800 numbers of 24 bits hardly two are the same");
    assert_eq!(Session::UNKNOWN_PEER.first_psn(Side::Connector, 0, 0), 0);
    assert_eq!(Session::UNKNOWN_PEER.number(), 0);
}

#[test]
fn who_does_not_know_the_secret_is_refused_and_learns_no_more_than_that() {
    let [called, answered] = meet(calling(OTHER), OURS, Service::Rdma, 99);
    assert_eq!((called, answered), (Err(AuthError::HungUp), Err(AuthError::Secret)));
}

#[test]
fn another_version_or_service_is_named_at_both_ends() {
    let [called, answered] = meet(calling(OURS), OURS, Service::Tcp, 99);
    let (ours, theirs) = (Service::Rdma, Service::Tcp as u16);
    assert_eq!(called, Err(AuthError::Service { ours, theirs }));
    let (ours, theirs) = (Service::Tcp, Service::Rdma as u16);
    assert_eq!(answered, Err(AuthError::Service { ours, theirs }));

    let [mut caller, mut listener] = ends(99);
    let mut hello = Hello::new(Service::Rdma, [1; NONCE_BYTES]).to_bytes();
    hello[8] = 77;
    caller.send(&hello).unwrap();
    let answered = Answering::new([2; NONCE_BYTES]).poll(&OURS, Service::Rdma, &mut listener);
    assert_eq!(answered, Err(AuthError::Version(77)));
    let mut answer = [0; HELLO_BYTES];
    assert_eq!(caller.recv(&mut answer), Ok(HELLO_BYTES));
    assert_eq!(u16::from_le_bytes([answer[8], answer[9]]), VERSION, "it says its own");
}

/// The listener's result for a caller that sends these bytes.
fn says(bytes: &[u8], nonce: u8) -> Result<Option<Session>, AuthError> {
    let [mut caller, mut listener] = ends(usize::MAX);
    caller.send(bytes).unwrap();
    Answering::new([nonce; NONCE_BYTES]).poll(&OURS, Service::Rdma, &mut listener)
}

#[test]
fn what_a_caller_said_once_is_of_no_use_to_whoever_says_it_again() {
    let hello = Hello::new(Service::Rdma, [1; NONCE_BYTES]);
    let challenge = Hello::new(Service::Rdma, [2; NONCE_BYTES]);
    let proof = transcript(&OURS, b"caller", &hello, &challenge);
    let said = [hello.to_bytes(), proof].concat();
    assert!(matches!(says(&said, 2), Ok(Some(_))));
    assert_eq!(says(&said, 3), Err(AuthError::Secret));
}

#[test]
fn a_listener_that_says_the_callers_proof_back_is_no_listener() {
    let [mut caller, mut impostor] = ends(usize::MAX);
    let mut calling = calling(OURS);
    assert_eq!(calling.poll(&mut caller), Ok(None));
    let mut said = [0; HELLO_BYTES];
    impostor.recv(&mut said).unwrap();
    impostor.send(&said).unwrap();
    assert_eq!(calling.poll(&mut caller), Ok(None));
    impostor.recv(&mut said).unwrap();
    impostor.send(&said).unwrap();
    assert_eq!(calling.poll(&mut caller), Err(AuthError::Secret));
}

#[test]
fn a_listener_that_hangs_up_is_told_from_a_network_that_breaks() {
    let [mut caller, listener] = ends(99);
    drop(listener);
    assert_eq!(calling(OURS).poll(&mut caller), Err(AuthError::HungUp));
}

#[test]
fn the_bytes_are_these() {
    let secret = Secret::new(core::array::from_fn(|i| i as u8));
    let caller = Hello::new(Service::Rdma, [0xa1; NONCE_BYTES]);
    let listener = Hello::new(Service::Rdma, [0xb2; NONCE_BYTES]);
    assert_eq!(&caller.to_bytes()[..16], b"\x89INVAR\r\n\x04\0\x01\0\0\0\0\0");
    assert_eq!(Hello::parse(&caller.to_bytes()), Ok(caller));
    // Computed with Python's hmac.
    let golden: [(&[u8], [u8; 8]); 3] = [
        (b"caller", [0xdc, 0xd1, 0x5f, 0xef, 0x75, 0xa2, 0xbe, 0xb4]),
        (b"listener", [0x34, 0x03, 0xea, 0x1b, 0x78, 0x2b, 0xc5, 0xab]),
        (b"session", [0x7f, 0xf6, 0xe7, 0x47, 0x48, 0xf8, 0x09, 0xf2]),
    ];
    for (label, expected) in golden {
        let proof = transcript(&secret, label, &caller, &listener);
        assert_eq!(proof[..8], expected, "{label:?}");
    }
}

/// Lets a caller resume a session at a listener that knows one session and its secret.
fn resume(
    caller: &Resume,
    known: &Resume,
    chunk: usize,
) -> (Result<Session, AuthError>, Result<SessionId, AuthError>) {
    let [mut calls, mut answers] = ends(chunk);
    let mut calling = Calling::resuming(caller, [1; NONCE_BYTES]);
    let mut answering = Answering::new([2; NONCE_BYTES]);
    let secret_of = |id: &SessionId| (*id == known.id).then_some(known.secret);
    let (mut called, mut answered) = (None, None);
    for _ in 0..1000 {
        called = called.or_else(|| calling.poll(&mut calls).transpose());
        answered = answered.or_else(|| {
            let answered = answering.poll_resumed(secret_of, &mut answers).transpose();
            if matches!(answered, Some(Err(_))) {
                answers.out.borrow_mut().is_closed = true;
            }
            answered
        });
        if let (Some(called), Some(answered)) = (called, answered) {
            return (called, answered);
        }
    }
    panic!("they wait for each other: {called:?}, {answered:?}");
}

#[test]
fn a_session_is_resumed_only_by_an_end_that_knows_its_secret() {
    let resume_of = |nonce| {
        let calling = Calling::new(OURS, Service::Rdma, [nonce; NONCE_BYTES]);
        meet(calling, OURS, Service::Rdma, 99)[0].unwrap().resume().unwrap()
    };
    let (ours, other) = (resume_of(1), resume_of(3));
    assert!(Session::UNKNOWN_PEER.resume().is_none());
    for chunk in 1..=70 {
        let (called, answered) = resume(&ours, &ours, chunk);
        assert!(called.is_ok() && answered == Ok(ours.id), "{chunk}: {called:?} {answered:?}");
        let unknown = AuthError::UnknownSession;
        assert_eq!(resume(&other, &ours, chunk), (Err(unknown), Err(unknown)));
        let thief = Resume { id: ours.id, secret: other.secret };
        let (called, answered) = resume(&thief, &ours, chunk);
        assert_eq!((called, answered), (Err(AuthError::HungUp), Err(AuthError::Secret)));
    }
}

proptest! {
    #[test]
    fn no_bytes_get_in_or_make_it_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..100), ours: bool,
    ) {
        if ours && bytes.len() >= 16 {
            bytes[..16].copy_from_slice(&Hello::new(Service::Rdma, [1; 16]).to_bytes()[..16]);
        }
        prop_assert!(!matches!(says(&bytes, 2), Ok(Some(_))));
        let [mut caller, mut listener] = ends(usize::MAX);
        listener.send(&bytes).unwrap();
        prop_assert!(!matches!(calling(OURS).poll(&mut caller), Ok(Some(_))));
    }
}
