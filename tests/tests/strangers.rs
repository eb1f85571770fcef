//! Sends strangers to every listener of the library. None gets in, keeps a peer out, or costs much.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;
use std::{slice, thread};

use invar::net::{LinkEnds, NetSettings, Network, wait_for_links};
use invar::{Device, Handle, Hub, Listener, MemoryRegion, PortRange, Settings, Wire};
use invar_core::auth::{SECRET_BYTES, Secret, Service};
use invar_core::conn::stage::Side;
use invar_core::conn::{Stream, StreamError};
use invar_linux::abort::Abort;
use invar_linux::clock::now_ns;
use invar_linux::rendezvous::Bootstrap;
use invar_linux::tcp::{AuthListener, OobStream, Proof};
use invar_testkit::library::{connect, content, first_device, settings};
use invar_testkit::strangers::{Door, besiege};
use invar_testkit::unused;
use invar_testkit::wait::{LIMIT, until};

const BYTES: usize = 4096;

fn door(handle: &Handle, service: Service) -> Door {
    let addr = handle.addr(Wire::Invar).unwrap();
    Door { addr, secret: handle.secret(None).unwrap(), service, process: std::process::id() }
}

#[test]
#[should_panic(expected = "reaches nobody")]
fn a_siege_at_which_no_stranger_reaches_the_listener_is_no_success() {
    let (addr, process) = (unused::address().into(), std::process::id());
    let secret = Secret::new([3; SECRET_BYTES]);
    besiege("nobody", || (Door { addr, secret, service: Service::Rdma, process }, || ()));
}

/// Connects a peer to a listener and sends a message. Checks that the message arrives whole and no
/// other byte changes.
fn visit(device: &Device, listener: &Listener, settings: &Settings) {
    let to = MemoryRegion::new(device, BYTES).unwrap();
    to.write_at(0, &[0xa5; BYTES]).unwrap();
    let (mut send, mut recv) = connect(device, listener, settings);
    let from = MemoryRegion::new(device, BYTES).unwrap();
    from.write_at(0, &[7; BYTES]).unwrap();
    let receive = recv.irecv(&[(&to, 0..BYTES / 2, 1)]).unwrap().unwrap();
    let sent = until("a slot", || send.isend(&from, 0..BYTES / 2, 1).unwrap());
    let (mut arrived, mut is_sent) = (false, false);
    until("a message", || {
        // Over TCP bytes move in these calls alone.
        is_sent = is_sent || send.test(&sent).unwrap().is_some();
        arrived = arrived || recv.test(&receive).unwrap().is_some();
        (is_sent && arrived).then_some(())
    });
    let bytes = content(&to, BYTES);
    assert!(bytes[..BYTES / 2] == [7; BYTES / 2] && bytes[BYTES / 2..] == [0xa5; BYTES / 2]);
}

#[test]
fn a_listener_for_the_software_nic_keeps_strangers_off() {
    besiege("the library over the software NIC", || {
        let device = Device::open_at("127.0.0.1:0".parse().unwrap()).unwrap();
        let settings = Settings::default();
        let listener = Listener::bind(&device, &settings).unwrap();
        let door = door(&listener.handle(), Service::Rdma);
        (door, move || visit(&device, &listener, &settings))
    });
}

#[test]
fn a_listener_for_tcp_keeps_strangers_off() {
    let settings = settings(&[
        ("INVAR_TRANSPORT", "socket"),
        ("NCCL_SOCKET_IFNAME", "=lo"),
        ("NCCL_SOCKET_FAMILY", "AF_INET"),
    ]);
    besiege("the library over TCP", || {
        let device = first_device(&settings);
        let listener = Listener::bind(&device, &settings).unwrap();
        let door = door(&listener.handle(), Service::Tcp);
        let settings = settings.clone();
        (door, move || visit(&device, &listener, &settings))
    });
}

#[test]
fn a_link_between_ranks_keeps_strangers_off() {
    let settings = NetSettings { slot_bytes: BYTES, ..Settings::default().into() };
    besiege("a link between ranks", || {
        let open = || {
            let device = Device::open_at("127.0.0.1:0".parse().unwrap()).unwrap();
            Network::open(vec![device], &settings, Abort::default()).unwrap()
        };
        let [zero, one] = [open(), open()];
        let (receiving, handle) = one.listen(0, 0, 0).unwrap();
        let door = door(&handle, Service::Rdma);
        let visit = move || {
            let sending = zero.connect(1, 0, 0, &handle).unwrap();
            let ends = wait_for_links(vec![sending, receiving], LIMIT).unwrap();
            let [LinkEnds { send, .. }, LinkEnds { recv, .. }] = ends.try_into().ok().unwrap();
            let (mut send, mut recv) = (send.unwrap(), recv.unwrap());
            let slot = until("a slot", || send.free(BYTES / 2).unwrap());
            // SAFETY: the slot belongs to this rank until it is published, and has room for these
            // bytes.
            unsafe { slot.write_bytes(7, BYTES / 2) };
            send.publish(BYTES / 2).unwrap();
            let (slot, len) = until("a message", || {
                send.progress().unwrap();
                recv.full().unwrap()
            });
            // SAFETY: the slot has `len` bytes, and belongs to this rank until it is released.
            let bytes = unsafe { slice::from_raw_parts(slot.as_ptr(), len) };
            assert_eq!(bytes, [7; BYTES / 2]);
            recv.release();
            (zero, one, send, recv)
        };
        (door, visit)
    });
}

#[test]
fn a_rendezvous_keeps_strangers_off() {
    let secret = Secret::new([3; SECRET_BYTES]);
    besiege("the rendezvous", || {
        let at = (Ipv4Addr::LOCALHOST, 0).into();
        let hub = Hub::listen(at, PortRange::ANY, 1, Some(secret), LIMIT).unwrap();
        let (addr, process) = (hub.id().addr(), std::process::id());
        let door = Door { addr, secret, service: Service::Rendezvous, process };
        let visit = move || {
            let rank = Bootstrap::join(&hub.id(), (0, 1), LIMIT, LIMIT).unwrap();
            assert_eq!(rank.all_gather(1, b"all there", LIMIT).unwrap(), [b"all there"]);
        };
        (door, visit)
    });
}

/// The two ends of a TCP connection that can be made anew.
fn renewable_pair() -> (Door, [OobStream; 2]) {
    let secret = Secret::new([7; SECRET_BYTES]);
    let proof = Proof::Secret(secret, Service::Rdma);
    let addr = (Ipv4Addr::LOCALHOST, 0).into();
    let mut listener = AuthListener::bind(addr, PortRange::ANY, proof).unwrap();
    let addr = listener.local_addr().unwrap();
    let deadline = Instant::now() + LIMIT;
    thread::scope(|scope| {
        let call = scope.spawn(move || {
            let mut stream = OobStream::connect_by(addr, deadline).unwrap();
            let session = stream.authenticate(secret, Service::Rdma, deadline).unwrap().unwrap();
            (stream, session)
        });
        let (mut answers, session) = until("a caller", || listener.poll(now_ns()).unwrap());
        answers.answer_renewals(PortRange::ANY);
        let port = answers.renewal_port();
        assert!(answers.prepare_renewal(Side::Acceptor, &session, 0));
        let (mut calls, session) = call.join().unwrap();
        assert!(calls.prepare_renewal(Side::Connector, &session, port));
        let (addr, process) = (SocketAddr::new(addr.ip(), port), std::process::id());
        // A stranger knows neither this session nor its secret.
        let door = Door { addr, secret, service: Service::Resume, process };
        (door, [calls, answers])
    })
}

/// Makes a connection anew, at both ends.
fn renew(ends: [&mut OobStream; 2]) {
    let mut ends = ends.map(|end| (end, false));
    until("a new connection", || {
        for (end, is_new) in &mut ends {
            *is_new = *is_new || end.renew().unwrap();
        }
        ends.iter().all(|(_, is_new)| *is_new).then_some(())
    });
}

#[test]
fn a_connection_is_made_anew_at_any_address_of_the_peer() {
    let (_, [mut calls, mut answers]) = renewable_pair();
    let [other, refusing] = [2, 3].map(|last| IpAddr::from([127, 0, 0, last]));
    let port = answers.answer_at(other);
    assert_ne!(port, 0);
    assert_eq!(answers.answer_at(other), port);
    // A firewall may refuse at one address, and the peer still lives.
    calls.call_at((refusing, port).into());
    calls.call_at((other, port).into());
    renew([&mut calls, &mut answers]);
    assert_eq!(calls.peer_addr(), Some((other, port).into()));
    // The address through which the connection went comes last.
    renew([&mut calls, &mut answers]);
    assert_eq!(calls.peer_addr().map(|addr| addr.ip()), Some(Ipv4Addr::LOCALHOST.into()));
}

#[test]
fn a_door_for_lost_connections_keeps_strangers_off() {
    besiege("a door for lost connections", || {
        let (door, [mut calls, mut answers]) = renewable_pair();
        let visit = move || {
            renew([&mut calls, &mut answers]);
            assert_eq!(answers.send(b"again").unwrap(), 5);
            let mut bytes = [0; 5];
            let got = until("bytes", || match calls.recv(&mut bytes).unwrap() {
                0 => None,
                n => Some(n),
            });
            assert_eq!(&bytes[..got], &b"again"[..got]);
        };
        (door, visit)
    });
}

#[test]
fn a_peer_that_has_forgotten_a_connection_is_told_apart_from_one_that_is_out_of_reach() {
    let (_, [mut calls, answers]) = renewable_pair();
    // Another connection of the process keeps the door open.
    let (_, [_, mut other]) = renewable_pair();
    drop(answers);
    until("an answer", || {
        assert_eq!(other.renew(), Ok(false));
        match calls.renew() {
            Ok(false) => None,
            answer => {
                assert_eq!(answer, Err(StreamError::Closed));
                Some(())
            }
        }
    });
}
