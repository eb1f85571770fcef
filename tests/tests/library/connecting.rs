//! Tests connection setup, and what prevents a connection.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use invar::{ErrorKind, Handle};
use invar_core::conn::{HANDLE_SECRET_BYTES, Wire};

use crate::*;

const SECRET: [u8; HANDLE_SECRET_BYTES] = [1; HANDLE_SECRET_BYTES];

#[test]
fn several_peers_are_accepted_side_by_side() {
    let (device, settings) = (loopback(), Settings::default());
    let listener = Listener::bind(&device, &settings).unwrap();
    let mut connecting: Vec<_> = (0..5)
        .map(|_| SendComm::connect(&device, &listener.handle(), &settings).unwrap())
        .collect();
    let (mut accepting, mut sends, mut recvs) = (Vec::new(), Vec::new(), Vec::new());
    until("connecting", || {
        accepting.extend(listener.accept().unwrap());
        connecting.retain_mut(|one| match one.poll().unwrap() {
            None => true,
            Some(comm) => {
                sends.push(comm);
                false
            }
        });
        accepting.retain_mut(|one| match one.poll().unwrap() {
            None => true,
            Some(comm) => {
                recvs.push(comm);
                false
            }
        });
        (sends.len() == 5 && recvs.len() == 5).then_some(())
    });
    let peers: std::collections::HashSet<u32> =
        recvs.iter().map(|comm| comm.ends().peer_qpn).collect();
    let ours = sends.iter().map(|comm| comm.ends().qpn).collect();
    assert_eq!(peers, ours);
}

#[test]
fn a_handle_survives_as_bytes_and_only_on_its_wire() {
    let device = loopback();
    let settings = Settings::default();
    let listener = Listener::bind(&device, &settings).unwrap();
    let bytes = *listener.handle().as_bytes();
    assert!(SendComm::connect(&device, &Handle::from_bytes(bytes).unwrap(), &settings).is_ok());
    let nccl = Handle::new("[::1]:1".parse().unwrap(), Wire::Nccl214, &SECRET);
    let error = SendComm::connect(&device, &nccl, &settings).err().unwrap();
    let none = invar::Error::from(Handle::from_bytes([0; 128]).unwrap_err());
    for error in [error, none] {
        assert!(error.to_string().starts_with("not a handle of Invar"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}

#[test]
fn a_listener_that_is_gone_is_named_and_it_is_the_networks_fault() {
    let device = loopback();
    let settings = Settings::default().connect_timeout(Duration::from_millis(500));
    let handle = Listener::bind(&device, &settings).unwrap().handle();
    let connecting = SendComm::connect(&device, &handle, &settings);
    let error = connecting.and_then(invar::Connecting::wait).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("to peer [::1]:") && text.contains("connection refused"), "{text}");
    assert_eq!(error.kind(), ErrorKind::Network);
    assert_eq!(error.peer(), Some(handle.addr(Wire::Invar).unwrap()));
    assert!(error.is_connection_lost() && !error.is_timeout(), "{text}");
}

#[test]
fn a_peer_that_never_answers_is_given_up_in_time() {
    let device = loopback();
    let settings = Settings::default().connect_timeout(Duration::from_millis(200));
    let silent = TcpListener::bind("[::1]:0").unwrap();
    let handle = Handle::new(silent.local_addr().unwrap(), Wire::Invar, &SECRET);
    let error = SendComm::connect(&device, &handle, &settings).unwrap().wait().err().unwrap();
    assert!(error.to_string().contains("did not answer in time"), "{error}");
    assert!(error.is_timeout() && error.is_connection_lost(), "{error}");
    assert_eq!(error.peer(), Some(silent.local_addr().unwrap()));

    let listener = Listener::bind(&device, &settings).unwrap();
    let addr = listener.handle().addr(Wire::Invar).unwrap();
    let _caller = TcpStream::connect(addr).unwrap();
    let error = listener.accept_within(Duration::from_millis(20)).err().unwrap();
    let (name, port) = (&device.info().name, addr.port());
    let text = format!(
        "no peer connected to {name} at {addr} within 20 ms; does the sender have this listener's \
         handle, and does a firewall let TCP port {port} pass?"
    );
    assert_eq!(error.to_string(), text);
    assert_eq!(error.device(), Some(name.as_str()));
    assert!(error.is_timeout() && !error.is_connection_lost(), "{error}");
}

#[test]
fn a_caller_that_speaks_something_else_is_refused_and_the_next_is_served() {
    let (device, settings) = (loopback(), Settings::default());
    let listener = Listener::bind(&device, &settings).unwrap();
    let addr = listener.handle().addr(Wire::Invar).unwrap();
    let mut browser = TcpStream::connect(addr).unwrap();
    browser.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let error = listener.accept_within(Duration::from_millis(50)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Network, "{error}");
    let text = error.to_string();
    let named = "within 50 ms; a caller from [::1]:";
    assert!(text.contains(named) && text.contains("which is not Invar's hello"), "{text}");
    // The listener hangs up on the browser.
    let _ = browser.read_to_end(&mut Vec::new());

    let mut connecting = SendComm::connect(&device, &listener.handle(), &settings).unwrap();
    let (mut accepting, mut send, mut recv) = (None, None, None);
    until("the next caller", || {
        send = send.take().or_else(|| connecting.poll().unwrap());
        accepting = accepting.take().or_else(|| listener.accept().unwrap());
        let accepted = accepting.as_mut().and_then(|accepting| accepting.poll().unwrap());
        recv = recv.take().or(accepted);
        (send.is_some() && recv.is_some()).then_some(())
    });
}
