//! Tests connecting to peers that do not exist or speak something else.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use invar_core::auth::{AuthError, HELLO_BYTES};
use invar_core::conn::{HANDLE_SECRET_BYTES, Handle, HandleError, StreamError, Wire};
use invar_core::error::{Error, ErrorKind};
use invar_core::param::{AddressFamily, PortRange};
use invar_linux::clock::now_ns;
use invar_linux::socket::{ConnectError, Connecting, Listener, SocketSettings};
use invar_testkit::unused;
use invar_testkit::wait::until;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::rig::{Pair, loopback, settings};

fn hasty() -> SocketSettings {
    SocketSettings { timeout_ns: 50_000_000, ..settings(1, 0) }
}

fn connect_to(addr: SocketAddr, settings: &SocketSettings) -> (Connecting, Error) {
    let device = loopback(AddressFamily::Inet);
    let handle = Handle::new(addr, Wire::Invar, &[1; HANDLE_SECRET_BYTES]);
    let mut connecting = Connecting::start(&device, &handle, settings, now_ns()).unwrap();
    let error = until("an error", || connecting.poll(now_ns()).err());
    assert_eq!(connecting.poll(now_ns()).err(), Some(error), "it stays");
    (connecting, error)
}

#[test]
fn a_port_where_nobody_listens_refuses() {
    let addr = SocketAddr::V4(unused::address());
    let (connecting, error) = connect_to(addr, &hasty());
    assert!(matches!(error, Error::Stream { error: StreamError::Os(111), .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Network);
    let text = connecting.report(error).to_string();
    let told = format!(
        "lo to peer {addr}: connection refused (errno 111) at stage Connect of the handshake; nobody \
         listens there: does the listener's process still run?"
    );
    assert!(text.starts_with(&told), "{text}");
}

#[test]
fn a_listener_that_never_answers_takes_the_time_it_is_given() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_, error) = connect_to(silent.local_addr().unwrap(), &hasty());
    assert!(matches!(error, Error::Timeout { got: 0, .. }), "{error}");
}

#[test]
fn a_listener_that_is_something_else_is_named_by_what_it_says() {
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = web.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = web.accept().unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
        let _ = stream.read(&mut [0]);
    });
    let (_, error) = connect_to(addr, &settings(0, 0));
    assert_eq!(error, Error::Auth(AuthError::Magic(*b"HTTP/1.1")));
    server.join().unwrap();
}

#[test]
fn a_handle_of_another_wire_is_refused() {
    let device = loopback(AddressFamily::Inet);
    let handle = Handle::new("127.0.0.1:1".parse().unwrap(), Wire::Nccl214, &[7; 16]);
    let begin = *handle.as_bytes().first_chunk().unwrap();
    let error = Connecting::start(&device, &handle, &hasty(), now_ns()).err();
    assert_eq!(error, Some(ConnectError::Handle(HandleError::Magic(begin))));
}

#[test]
fn strangers_are_turned_away_and_peers_still_come() {
    let (device, settings) = (loopback(AddressFamily::Inet), hasty());
    let mut listener = Listener::bind(&device, PortRange::ANY, &settings).unwrap();
    let addr = listener.handle().addr(Wire::Invar).unwrap();
    let mut web = TcpStream::connect(addr).unwrap();
    web.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let _silent = TcpStream::connect(addr).unwrap();
    drop(TcpStream::connect(addr).unwrap());
    until("strangers that were turned away", || {
        assert!(matches!(listener.poll(now_ns()), Ok(None)), "no connection");
        (listener.turned_away().count == 2).then_some(())
    });
    let mut pair = Pair::connect(&mut listener, &device, &settings);
    let (send, receive) = (pair.send(0, 10, 0), pair.recv(&[(10, 0)]));
    pair.arrives(vec![send], receive, 0, 10);
}

#[test]
fn senders_may_connect_a_thousand_at_a_time() {
    const SENDERS: u64 = 1024;
    // Each connection has two sockets, both of whose ends are in this process. Other tests have files
    // open too.
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    let may = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    assert!(may >= 5 * SENDERS, "this test needs {} open files: ulimit -n {may}", 5 * SENDERS);
    let (device, settings) = (loopback(AddressFamily::Inet), settings(0, 0));
    let mut listener = Listener::bind(&device, PortRange::ANY, &settings).unwrap();
    let handle = listener.handle();
    let start = |_| Connecting::start(&device, &handle, &settings, now_ns()).unwrap();
    let mut connecting: Vec<Connecting> = (0..SENDERS).map(start).collect();
    let (mut accepted, mut connected) = (Vec::new(), 0);
    until("a thousand connections", || {
        accepted.extend(listener.poll(now_ns()).unwrap());
        let waiting = connecting.len();
        connecting.retain_mut(|one| one.poll(now_ns()).unwrap().is_none());
        connected += waiting - connecting.len();
        (accepted.len() as u64 == SENDERS && connected as u64 == SENDERS).then_some(())
    });
    assert_eq!(listener.turned_away().count, 0);
}
