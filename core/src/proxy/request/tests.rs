//! A rank and the proxy exchange messages over streams that pass any number of bytes at a time.

extern crate std;

use proptest::prelude::*;
use std::boxed::Box;
use std::collections::VecDeque;
use std::string::ToString;
use std::vec::Vec;

use super::wire::{ProxyRequest, Response};
use super::*;
use crate::proxy::{BANK_LEN, BankSlot, Banks, ConnectionId};
use crate::topology::Direction;

/// Memory of at most one bank.
struct OneBank<T>(Option<Box<[T; BANK_LEN]>>);

impl<T: Default> Banks<T> for OneBank<T> {
    fn bank(&self, bank: usize) -> Option<&[T; BANK_LEN]> {
        self.0.as_deref().filter(|_| bank == 0)
    }

    fn bank_mut(&mut self, bank: usize) -> Option<&mut [T; BANK_LEN]> {
        self.0.as_deref_mut().filter(|_| bank == 0)
    }

    fn grow(&mut self) -> bool {
        let first = self.0.is_none();
        self.0.get_or_insert_with(|| Box::new(core::array::from_fn(|_| T::default())));
        first
    }
}

type SmallCalls = Calls<u32, OneBank<Option<Expected<u32>>>>;
type SmallSession = ProxySession<OneBank<Option<Pending>>>;

fn calls() -> SmallCalls {
    Calls::new(OneBank(None))
}

fn session(number: u32) -> SmallSession {
    ProxySession::new(number, OneBank(None))
}

/// Reverses the request's bytes after about as many questions as the first byte says; never if the byte
/// is 254.
#[derive(Default)]
struct Reversing {
    asked: u32,
    closed: Vec<ConnectionId>,
}

impl Reversing {
    fn reverse(&mut self, request: &[u8], response: &mut [u8]) -> Result<bool, &'static str> {
        self.asked += 1;
        match request.first() {
            Some(255) => Err("out of order"),
            Some(254) => Ok(false),
            Some(&wait) if !self.asked.is_multiple_of(u32::from(wait) + 1) => Ok(false),
            _ => {
                response.copy_from_slice(request);
                response.reverse();
                Ok(true)
            }
        }
    }
}

impl Setup for Reversing {
    type Error = &'static str;
    type Fd = u32;

    fn open(&mut self, _: ConnectionId, init: Init) -> Result<Option<u32>, Self::Error> {
        match init.transport {
            0 => Ok(None),
            1 => Ok(Some(77)),
            _ => Err("no such transport"),
        }
    }

    fn setup(&mut self, _: ConnectionId, q: &[u8], a: &mut [u8]) -> Result<bool, Self::Error> {
        self.reverse(q, a)
    }

    fn connect(&mut self, _: ConnectionId, q: &[u8], a: &mut [u8]) -> Result<bool, Self::Error> {
        self.reverse(q, a)
    }

    fn convert_fd(&mut self, _: ConnectionId, handle: u32) -> Result<u32, Self::Error> {
        if handle == 0 { Err("no such handle") } else { Ok(handle + 100) }
    }

    fn close(&mut self, id: ConnectionId) {
        self.closed.push(id);
    }
}

/// A rank, the proxy, and the bytes in flight between them.
struct World {
    calls: SmallCalls,
    session: SmallSession,
    connections: Connections<OneBank<BankSlot<ConnectionEntry>>>,
    setup: Reversing,
    to_proxy: VecDeque<u8>,
    /// Bytes to the rank, and the file descriptor that comes with each byte.
    to_rank: VecDeque<(u8, Option<u32>)>,
    ended: Option<SessionEvent<u32>>,
}

impl World {
    fn new() -> Self {
        World {
            calls: calls(),
            session: session(1),
            connections: Connections::new(OneBank(None)),
            setup: Reversing::default(),
            to_proxy: VecDeque::new(),
            to_rank: VecDeque::new(),
            ended: None,
        }
    }

    fn call(
        &mut self,
        kind: Kind,
        id: u32,
        body: &[u8],
        response_len: usize,
    ) -> Result<CallId, CallError> {
        let (call, header) = self.calls.call(kind, ConnectionId(id), body, response_len)?;
        self.to_proxy.extend(header.iter().chain(body));
        Ok(call)
    }

    fn send(&mut self, reply: Reply<u32>) {
        let bytes = reply.header.iter().chain(&reply.body);
        let mut fd = reply.fd;
        self.to_rank.extend(bytes.map(|byte| (*byte, fd.take())));
    }

    /// Passes at most `n` bytes each way, and asks one pending request.
    fn step(&mut self, n: usize) -> Result<(), std::string::String> {
        let space = self.session.space();
        let n_proxy = n.min(space.len()).min(self.to_proxy.len());
        for (place, byte) in space.iter_mut().zip(self.to_proxy.drain(..n_proxy)) {
            *place = byte;
        }
        let event = self.session.filled(n_proxy, &mut self.connections, &mut self.setup);
        match event.map_err(|error| error.to_string())? {
            Some(SessionEvent::Reply(reply)) => self.send(reply),
            Some(event) => self.ended = Some(event),
            None => {}
        }
        if let Some(reply) = self.session.progress(&mut self.connections, &mut self.setup) {
            self.send(reply);
        }
        let space = self.calls.space();
        let n_rank = n.min(space.len()).min(self.to_rank.len());
        let mut fd = None;
        for (place, (byte, with)) in space.iter_mut().zip(self.to_rank.drain(..n_rank)) {
            *place = byte;
            fd = fd.or(with);
        }
        self.calls.filled(n_rank, fd).map_err(|error| error.to_string())
    }

    /// Runs the world until the response has arrived.
    fn finish(&mut self, call: CallId, response: &mut [u8]) -> Result<Outcome<u32>, CallError> {
        for _ in 0..100_000 {
            self.step(usize::MAX).unwrap();
            if let Some(done) = self.calls.poll(call, response)? {
                return Ok(done);
            }
        }
        panic!("no response");
    }

    fn refusal(&mut self, kind: Kind, id: u32, body: &[u8], len: usize) -> std::string::String {
        let call = self.call(kind, id, body, len).unwrap();
        match self.finish(call, &mut std::vec![0; len]) {
            Ok(Outcome::Refused { text, .. }) => text.to_string(),
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self, transport: u32) -> (u32, Option<u32>) {
        let init = Init { transport, direction: Direction::Send, local_rank: 0 };
        let call = self.call(Kind::Init, 0, &init.to_bytes(), 4).unwrap();
        let mut id = [0; 4];
        match self.finish(call, &mut id).unwrap() {
            Outcome::Done { fd } => (u32::from_le_bytes(id), fd),
            Outcome::Refused { text, .. } => panic!("{text}"),
        }
    }
}

#[test]
fn a_connection_goes_from_nothing_to_connected() {
    let mut world = World::new();
    assert_eq!(world.open(0), (0, None));
    assert_eq!(world.open(1), (1, Some(77)), "with the shared memory");
    let state = |world: &World| world.connections.state(ConnectionId(1)).unwrap();
    assert_eq!(state(&world), State::Initialized);
    for (kind, reached) in [(Kind::Setup, State::SetUp), (Kind::Connect, State::Connected)] {
        let call = world.call(kind, 1, b"\x03abc", 4).unwrap();
        let mut response = [0; 4];
        assert_eq!(world.finish(call, &mut response), Ok(Outcome::Done { fd: None }));
        assert_eq!(&response, b"cba\x03");
        assert_eq!(state(&world), reached);
    }
    let call = world.call(Kind::ConvertFd, 1, &5u32.to_le_bytes(), 0).unwrap();
    assert_eq!(world.finish(call, &mut []), Ok(Outcome::Done { fd: Some(105) }));
}

#[test]
fn what_is_out_of_place_is_refused_and_the_rest_goes_on() {
    let mut world = World::new();
    world.open(0);
    let word = |n: u32| n.to_le_bytes();
    let strange = Init { transport: 9, direction: Direction::Recv, local_rank: 0 }.to_bytes();
    for (kind, id, body, len, why) in [
        (Kind::Init, 0, &strange[..], 4, "no such transport"),
        (Kind::Init, 0, &strange[..9], 4, "its body is not of 16 bytes"),
        (Kind::Init, 0, &strange[..], 5, "has no response of 5 bytes"),
        (Kind::ConvertFd, 7, &word(1)[..], 0, "connection 0-7: not a connection of this rank"),
        (Kind::ConvertFd, 0, &word(1)[..], 1, "has no response of 1 bytes"),
        (Kind::Connect, 0, b"", 0, "not where it is: Initialized"),
        (Kind::ConvertFd, 0, &word(1)[..], 0, "not where it is: Initialized"),
        (Kind::Setup, 0, b"\xff", 1, "connection 0-0: out of order"),
    ] {
        let text = world.refusal(kind, id, body, len);
        assert!(text.ends_with(why), "{kind:?}: {text}");
    }
    let call = world.call(Kind::Setup, 0, b"", 0).unwrap();
    world.finish(call, &mut []).unwrap();
    assert!(world.refusal(Kind::Setup, 0, b"", 0).ends_with("not where it is: SetUp"));
    assert!(world.refusal(Kind::ConvertFd, 0, &word(0), 0).ends_with("no such handle"));
    assert!(world.refusal(Kind::ConvertFd, 0, b"abc", 0).ends_with("its body is not of 4 bytes"));
}

#[test]
fn a_connection_is_worked_on_once_at_a_time_and_by_its_own_rank() {
    let mut world = World::new();
    world.open(0);
    let slow = world.call(Kind::Setup, 0, &[200], 1).unwrap();
    world.step(usize::MAX).unwrap();
    assert!(
        world.refusal(Kind::Setup, 0, b"", 0).ends_with("something else is being done with it")
    );
    world.finish(slow, &mut [0]).unwrap();
    world.session = session(2);
    assert!(world.refusal(Kind::Connect, 0, b"", 0).ends_with("not a connection of this rank"));
}

#[test]
fn requests_that_never_end_keep_no_other_waiting() {
    let mut world = World::new();
    world.open(0);
    world.open(0);
    let stuck = world.call(Kind::Setup, 0, &[254], 1).unwrap();
    let other = world.call(Kind::Setup, 1, &[0, 8], 2).unwrap();
    let mut response = [0; 2];
    world.finish(other, &mut response).unwrap();
    assert_eq!(response, [8, 0]);
    assert_eq!(world.calls.poll(stuck, &mut [0]), Ok(None));
    assert!(world.session.pending() > 0);
}

#[test]
fn as_many_requests_may_take_long_as_there_are_connections() {
    let mut world = World::new();
    let ids: Vec<u32> = (0..BANK_LEN).map(|_| world.open(0).0).collect();
    let stuck: Vec<_> =
        ids[1..].iter().map(|id| world.call(Kind::Setup, *id, &[254], 1).unwrap()).collect();
    let last = world.call(Kind::Setup, ids[0], &[0, 8], 2).unwrap();
    let mut response = [0; 2];
    world.finish(last, &mut response).unwrap();
    assert_eq!(response, [8, 0]);
    assert_eq!(world.session.pending(), stuck.len() as u32);
    assert!(stuck.iter().all(|call| world.calls.poll(*call, &mut [0]) == Ok(None)));
}

#[test]
fn the_end_of_a_session_closes_its_connections_and_no_others() {
    let mut world = World::new();
    world.open(0);
    world.session = session(2);
    for _ in 0..2 {
        world.open(0);
    }
    world.to_proxy.extend(SmallCalls::tell(Kind::Close));
    world.step(usize::MAX).unwrap();
    assert_eq!(world.ended.take(), Some(SessionEvent::Close));
    let ended = core::mem::replace(&mut world.session, session(3));
    ended.end(&mut world.connections, &mut world.setup);
    assert_eq!(world.setup.closed, [ConnectionId(1), ConnectionId(2)]);
    assert_eq!(world.connections.state(ConnectionId(1)), None);
    assert_eq!(world.connections.state(ConnectionId(0)), Some(State::Initialized));
    world.to_proxy.extend(SmallCalls::tell(Kind::Stop));
    world.step(usize::MAX).unwrap();
    assert_eq!(world.ended, Some(SessionEvent::Stop));
}

#[test]
fn connections_end_where_memory_does() {
    let mut world = World::new();
    for id in 0..BANK_LEN as u32 {
        assert_eq!(world.open(0).0, id);
    }
    let init = Init { transport: 0, direction: Direction::Send, local_rank: 0 }.to_bytes();
    assert!(world.refusal(Kind::Init, 0, &init, 4).contains("no memory"));
}

/// Gives a response to the first call of a rank, which expects 3 bytes.
fn answered(response: Response, body: &[u8], fd: Option<u32>) -> Result<(), CallError> {
    let mut calls = calls();
    calls.call(Kind::Setup, ConnectionId(0), b"", 3).unwrap();
    let bytes: Vec<u8> = response.to_bytes().iter().chain(body).copied().collect();
    let mut left = &bytes[..];
    while !left.is_empty() {
        let n = calls.space().len().min(left.len());
        calls.space().copy_from_slice(&left[..n]);
        calls.filled(n, fd.filter(|_| left.len() == bytes.len()))?;
        left = &left[n..];
    }
    Ok(())
}

#[test]
fn responses_that_do_not_fit_are_errors() {
    let kind = Kind::Setup;
    let good = Response { id: 1, refused: false, has_fd: false, len: 3 };
    assert_eq!(answered(good, b"abc", None), Ok(()));
    let error = answered(Response { id: 2, ..good }, b"abc", None);
    assert_eq!(error, Err(CallError::Unexpected(2)));
    let error = answered(Response { len: 2, ..good }, b"ab", None);
    assert_eq!(error, Err(CallError::Mismatch { kind, len: 2, expected: 3 }));
    let error = answered(Response { len: 1025, ..good }, b"", None);
    assert_eq!(error, Err(CallError::Frame(FrameError::Length(1025))));
    let error = answered(Response { has_fd: true, ..good }, b"abc", None);
    assert_eq!(error, Err(CallError::Fd(kind)));
    let error = answered(good, b"abc", Some(3));
    assert_eq!(error, Err(CallError::Fd(kind)));
    let twice: Vec<u8> = b"abc".iter().chain(&good.to_bytes()).chain(b"abc").copied().collect();
    assert_eq!(answered(good, &twice, None), Err(CallError::Twice(kind, 1)));
}

#[test]
fn calls_that_can_not_be_made_are_errors() {
    let mut calls = calls();
    let id = ConnectionId(0);
    let error = calls.call(Kind::Setup, id, &[0; 1025], 0).unwrap_err();
    assert_eq!(error, CallError::TooLong(Kind::Setup, 1025));
    let error = calls.call(Kind::Setup, id, b"", 1025).unwrap_err();
    assert_eq!(error, CallError::TooLong(Kind::Setup, 1025));
    let (call, _) = calls.call(Kind::Setup, id, b"", 2).unwrap();
    for _ in 1..BANK_LEN {
        let _ = calls.call(Kind::Setup, id, b"", 0).unwrap();
    }
    let error = calls.call(Kind::Connect, id, b"", 0).unwrap_err();
    assert_eq!(error, CallError::TooMany(Kind::Connect, BANK_LEN as u32));
    let error = calls.poll(call, &mut [0]).unwrap_err();
    assert_eq!(error, CallError::Room { kind: Kind::Setup, len: 1, expected: 2 });
    assert_eq!(calls.poll(CallId(999), &mut []), Err(CallError::NotUnderWay(999)));
}

proptest! {
    #[test]
    fn responses_come_to_those_who_asked_in_whatever_order(
        waits in prop::collection::vec((0u8..9, prop::collection::vec(any::<u8>(), 0..20)), 1..12),
        steps in prop::collection::vec(1usize..40, 1..50),
    ) {
        let mut world = World::new();
        let ids: Vec<u32> = waits.iter().map(|_| world.open(0).0).collect();
        let mut under_way: Vec<(CallId, Vec<u8>)> = Vec::new();
        let mut rest = ids.iter().zip(&waits);
        let mut next = rest.next();
        for &n in steps.iter().cycle().take(200_000) {
            if let Some((id, (wait, tail))) = next {
                let body: Vec<u8> = core::iter::once(wait).chain(tail).copied().collect();
                match world.call(Kind::Setup, *id, &body, body.len()) {
                    Ok(call) => {
                        under_way.push((call, body));
                        next = rest.next();
                    }
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                }
            }
            world.step(n).unwrap();
            // The latest request is polled first.
            for at in (0..under_way.len()).rev() {
                let (call, body) = &under_way[at];
                let mut response = std::vec![0; body.len()];
                if world.calls.poll(*call, &mut response).unwrap().is_some() {
                    response.reverse();
                    prop_assert_eq!(&response, body);
                    under_way.swap_remove(at);
                }
            }
            if next.is_none() && under_way.is_empty() {
                break;
            }
        }
        prop_assert!(next.is_none() && under_way.is_empty(), "no response");
    }

    #[test]
    fn no_bytes_make_either_end_panic(bytes: Vec<u8>, known in prop::option::of(0u8..10)) {
        let mut world = World::new();
        world.open(0);
        world.call(Kind::Setup, 0, b"", 3).unwrap();
        world.to_proxy.clear();
        // Half of the inputs begin like a request.
        let head = known.map(|kind| [kind, 0, 0, 0]);
        world.to_proxy.extend(head.iter().flatten().chain(&bytes));
        world.to_rank.extend(bytes.iter().map(|byte| (*byte, None)));
        for _ in 0..bytes.len() {
            if world.step(usize::MAX).is_err() {
                break;
            }
        }
    }

    #[test]
    fn a_request_survives_its_bytes(
        kind in prop::sample::select(&[Kind::Init, Kind::Connect, Kind::ConvertFd]),
        words: [u32; 3],
        id: u64,
    ) {
        use crate::inbox::FrameHeader;
        let connection = ConnectionId(words[0]);
        let request = ProxyRequest { kind, connection, id, len: words[1], response_len: words[2] };
        prop_assert_eq!(ProxyRequest::parse(&request.to_bytes()), Ok(request));
    }
}
