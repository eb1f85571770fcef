//! Strangers at a listener, who neither get in nor keep others out.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use invar_core::auth::{Calling, HELLO_BYTES, Hello, NONCE_BYTES, SECRET_BYTES};
use socket2::{Domain, Socket, Type};

use super::*;

const SECRET: Secret = Secret::new([7; SECRET_BYTES]);
const RIGHT: Proof = Proof::Secret(SECRET, Service::Rdma);
const POLLS_MAX: usize = 100_000;

fn listener() -> AuthListener {
    listener_for(RIGHT)
}

/// A listener with which those of other tests do not count.
fn listener_for(proof: Proof) -> AuthListener {
    let addr = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = AuthListener::bind(addr, PortRange::ANY, proof).unwrap();
    let count: &AtomicUsize = Box::leak(Box::default());
    AuthListener { process: (count, usize::MAX), ..listener }
}

fn stranger(listener: &AuthListener) -> TcpStream {
    TcpStream::connect(listener.local_addr().unwrap()).unwrap()
}

/// Connects a stranger from another loopback address.
fn stranger_from(listener: &AuthListener, last: u8) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into()).unwrap();
    socket.connect(&listener.local_addr().unwrap().into()).unwrap();
    socket.into()
}

/// A caller that authenticates in the background.
struct Peer {
    stream: OobStream,
    calling: Calling,
}

impl Peer {
    fn new(listener: &AuthListener, secret: Secret) -> Peer {
        let stream = OobStream::connect(listener.local_addr().unwrap()).unwrap();
        Peer { stream, calling: Calling::new(secret, Service::Rdma, [1; NONCE_BYTES]) }
    }

    fn poll(&mut self) -> Result<Option<Session>, AuthError> {
        match self.stream.poll_connected() {
            Ok(true) => self.calling.poll(&mut self.stream),
            Ok(false) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Lets a peer authenticate at a time when no stranger's deadline has passed.
fn get_in(listener: &mut AuthListener, now_ns: u64) {
    get_in_at(listener, |_| now_ns);
}

/// Lets a peer authenticate; `time` returns the time of each poll. Returns the time of the last poll.
fn get_in_at(listener: &mut AuthListener, time: impl Fn(u64) -> u64) -> u64 {
    let mut peer = Peer::new(listener, SECRET);
    let (mut ours, mut theirs) = (None, None);
    for polls in 0..POLLS_MAX as u64 {
        let now_ns = time(polls);
        ours = ours.or_else(|| peer.poll().expect("the listener knows the secret"));
        if theirs.is_none() {
            theirs = listener.poll(now_ns).unwrap();
        }
        if let (Some(ours), Some((_, theirs))) = (&ours, &theirs) {
            assert_eq!(ours, theirs);
            return now_ns;
        }
    }
    panic!("the peer was kept out");
}

fn until_turned_away(listener: &mut AuthListener, count: u64, now_ns: u64) {
    for polls in 0..POLLS_MAX as u64 {
        let now_ns = now_ns + polls * 1_000_000;
        assert!(listener.poll(now_ns).unwrap().is_none(), "a stranger got in");
        if listener.turned_away().count >= count {
            return;
        }
    }
    panic!("{} of {count} were turned away", listener.turned_away().count);
}

#[test]
fn silent_callers_have_ten_seconds_and_keep_nobody_out() {
    let mut listener = listener();
    let _strangers: Vec<_> = (0..100).map(|_| stranger(&listener)).collect();
    get_in(&mut listener, 0);
    for now_ns in (ATTENTION_NS..AUTH_WITHIN_NS).step_by(ATTENTION_NS as usize) {
        assert!(listener.poll(now_ns).unwrap().is_none());
    }
    get_in(&mut listener, AUTH_WITHIN_NS - 1);
    assert_eq!(listener.turned_away().count, 0);
    until_turned_away(&mut listener, 100, AUTH_WITHIN_NS);
    let (_, why) = listener.turned_away().last.unwrap();
    assert_eq!(why, WhyNot::Silent);
    assert!(listener.pending.is_empty() && listener.by_source.is_empty());
}

#[test]
fn a_peer_gets_in_though_the_listener_is_late_each_time() {
    let mut listener = listener();
    let mut peer = Peer::new(&listener, SECRET);
    let mut polls = 0;
    while peer.poll().expect("the listener knows the secret").is_none() {
        listener.wait(Duration::from_secs(1)).unwrap();
        polls += 1;
        assert!(polls < POLLS_MAX as u64, "the peer was kept out");
        let _ = listener.poll(polls * 9 * AUTH_WITHIN_NS).unwrap();
        assert_eq!(listener.turned_away().count, 0, "{}", listener.turned_away());
    }
}

#[test]
fn where_too_many_call_the_oldest_gives_way_of_the_address_that_has_the_most() {
    let mut listener = listener();
    listener.pending_max = 8;
    let mut modest = stranger_from(&listener, 3);
    assert!(listener.poll(0).unwrap().is_none());
    let crowd: Vec<_> = (0..50).map(|_| stranger_from(&listener, 2)).collect();
    for _ in 0..1000 {
        assert!(listener.poll(MOMENT_NS - 1).unwrap().is_none());
    }
    assert_eq!(listener.turned_away().count, 0, "each has had no more than a moment");
    let mut now_ns = MOMENT_NS;
    for _ in 0..10 {
        // A moment passes whenever nothing more happens.
        now_ns = get_in_at(&mut listener, |polls| now_ns + polls / 1000 * MOMENT_NS);
    }
    assert!(listener.pending.len() <= 8);
    let (source, why) = listener.turned_away().last.unwrap();
    assert_eq!((source.ip(), why), (Ipv4Addr::new(127, 0, 0, 2).into(), WhyNot::Crowded));
    modest.set_nonblocking(true).unwrap();
    let still_open = modest.read(&mut [0]).unwrap_err();
    assert_eq!(still_open.kind(), io::ErrorKind::WouldBlock, "one caller is no crowd");
    drop(crowd);
}

#[test]
fn callers_from_many_addresses_give_way_the_oldest_first() {
    for _ in 0..10 {
        let mut listener = listener();
        listener.pending_max = 8;
        let crowd: Vec<_> = (2..10).map(|last| stranger_from(&listener, last)).collect();
        assert!(listener.poll(0).unwrap().is_none());
        assert_eq!(listener.pending.len(), 8);
        // Whoever comes now must not give way, and a peer gets in without a wait.
        let young: Vec<_> = (10..16).map(|last| stranger_from(&listener, last)).collect();
        get_in(&mut listener, MOMENT_NS);
        let is_open = |mut caller: &TcpStream| {
            caller.set_nonblocking(true).unwrap();
            caller.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        assert!(young.iter().all(is_open) && !crowd.iter().all(is_open));
    }
}

#[test]
fn callers_of_all_listeners_count_together_and_each_listener_has_room_for_a_few() {
    const CROWD: usize = PENDING_CROWDED + 6;
    static PROCESS: AtomicUsize = AtomicUsize::new(0);
    let of_process = || AuthListener { process: (&PROCESS, PENDING_CROWDED), ..listener() };
    let mut listeners = [of_process(), of_process(), of_process()];
    let _crowds = listeners.each_mut().map(|listener| {
        let crowd: Vec<_> = (0..CROWD).map(|_| stranger(listener)).collect();
        let is_full = |_| {
            assert!(listener.poll(0).unwrap().is_none());
            listener.is_full()
        };
        assert!((0..POLLS_MAX).any(is_full));
        crowd
    });
    let pending = listeners.each_ref().map(|listener| listener.pending.len());
    assert_eq!(pending, [PENDING_CROWDED, PENDING_CROWDED, PENDING_MIN]);
    for listener in &mut listeners {
        get_in_at(listener, |polls| polls / 1000 * MOMENT_NS);
        assert!(PROCESS.load(Ordering::Relaxed) <= 2 * PENDING_CROWDED + 3 * PENDING_MIN);
    }
    drop(listeners);
    assert_eq!(PROCESS.load(Ordering::Relaxed), 0);
}

#[test]
fn callers_who_are_none_of_ours_are_turned_away_by_name() {
    let hello = Hello::new(Service::Rdma, [1; NONCE_BYTES]).to_bytes();
    let mut other_version = hello;
    other_version[8] = 77;
    let other_service = Hello::new(Service::Tcp, [1; NONCE_BYTES]).to_bytes();
    let guess = [&hello[..], &[0; HELLO_BYTES]].concat();
    for (said, text) in [
        (&b"GET / HTTP/1.1\r\n"[..], "which is not Invar's hello"),
        (&[0; 552], "which is not Invar's hello"),
        (&other_version, "speaks version 77 of Invar's wire"),
        (&other_service, "the peer is for connections over TCP"),
        (&guess, "does not know the secret"),
    ] {
        let mut listener = listener();
        let mut caller = stranger(&listener);
        caller.write_all(said).unwrap();
        until_turned_away(&mut listener, 1, 0);
        let told = listener.turned_away().to_string();
        let from = format!("a caller from {}", caller.local_addr().unwrap());
        assert!(told.starts_with(&from) && told.contains(text), "{told}");
        get_in(&mut listener, 0);
    }
}

#[test]
fn a_caller_who_hangs_up_is_forgotten() {
    let mut listener = listener();
    let hello = Hello::new(Service::Rdma, [1; NONCE_BYTES]).to_bytes();
    for len in [0, 1, 31, 32] {
        let mut caller = stranger(&listener);
        caller.write_all(&hello[..len]).unwrap();
    }
    until_turned_away(&mut listener, 4, 0);
    assert!(listener.pending.is_empty());
}

#[test]
fn a_peer_with_the_secret_of_another_listener_learns_that_it_is_another() {
    let mut listener = listener();
    let mut peer = Peer::new(&listener, Secret::new([8; SECRET_BYTES]));
    let error = loop {
        assert!(listener.poll(0).unwrap().is_none());
        if let Err(error) = peer.poll() {
            break error;
        }
    };
    assert_eq!(error, AuthError::HungUp);
}

#[test]
fn a_caller_may_say_its_part_byte_by_byte() {
    let mut listener = listener();
    let mut caller = stranger(&listener);
    for byte in Hello::new(Service::Rdma, [1; NONCE_BYTES]).to_bytes() {
        caller.write_all(&[byte]).unwrap();
        assert!(listener.poll(0).unwrap().is_none());
    }
    let mut answer = [0; HELLO_BYTES];
    for _ in 0..10 {
        assert!(listener.poll(0).unwrap().is_none());
    }
    caller.read_exact(&mut answer).unwrap();
    assert!(Hello::parse(&answer).is_ok());
}

#[test]
fn on_the_wire_of_nccl_a_caller_is_given_out_once_its_message_is_there() {
    let mut listener = listener_for(Proof::NcclHello);
    let mut silent = Vec::from_iter((0..20).map(|_| stranger(&listener)));
    let mut caller = stranger(&listener);
    caller.write_all(&[1; QP_INFO_BYTES - 1]).unwrap();
    for _ in 0..100 {
        assert!(listener.poll(0).unwrap().is_none());
    }
    caller.write_all(&[1]).unwrap();
    let (mut stream, session) = (0..POLLS_MAX).find_map(|_| listener.poll(0).unwrap()).unwrap();
    assert_eq!(session, Session::UNKNOWN_PEER);
    let mut said = [0; QP_INFO_BYTES];
    assert_eq!(stream.recv(&mut said), Ok(QP_INFO_BYTES));
    until_turned_away(&mut listener, 20, 2 * AUTH_WITHIN_NS);
    silent.clear();
}

/// Polls a listener that has no caller, and returns an interest as a waiter arms it.
fn armed(listener: &mut AuthListener) -> Interest {
    assert!(listener.poll(0).unwrap().is_none());
    let mut interest = Interest::default();
    listener.arm(&mut interest);
    interest
}

#[test]
fn a_waiter_sleeps_until_a_caller_comes_or_another_waiter_calls() {
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);
    let mut listener = listener();
    let mut waiting = armed(&mut listener);
    assert!(!waiting.sleep(SHORT));
    listener.call_waiters();
    assert!(waiting.sleep(LONG));
    waiting = armed(&mut listener);
    assert!(!waiting.sleep(SHORT), "one call ends one sleep");
    let _stranger = stranger(&listener);
    assert!(waiting.sleep(LONG));
}

#[test]
fn callers_for_whom_there_is_no_room_do_not_end_every_sleep() {
    let mut listener = listener();
    listener.pending_max = 1;
    let _strangers = [stranger(&listener), stranger(&listener)];
    assert!((0..POLLS_MAX).any(|_| armed(&mut listener).is_blind()));
    assert_eq!(listener.pending.len(), 1);
}
