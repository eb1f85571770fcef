//! Tests peers that are gone, strangers, and the end of a communicator.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use invar::Handle;
use invar::net::{LinkAttempt, LinkEnds, NetSettings, Network, wait_for_links};
use invar_core::auth::{SECRET_BYTES, Secret};
use invar_core::conn::Wire;
use invar_linux::abort::Abort;
use invar_testkit::wait::{LIMIT, until};

use crate::rig::{DEVICES, Rank, SLOT_BYTES, open, pair, settings};

/// The number of strangers, which is more than a listener handles at a time.
const STRANGERS: usize = 20;

/// The error that a rank gets in the end if its peer does nothing.
fn error_of(rank: &mut Rank) -> String {
    until("an error", || {
        let sent = rank.sends[0].progress().map(drop);
        Some(sent.and_then(|()| rank.recvs[0].progress()).err()?.to_string())
    })
}

#[test]
fn slots_that_no_memory_has_are_refused() {
    for slot_bytes in [(128 << 20) + 1, 1 << 61, (1 << 61) + 64, usize::MAX] {
        let settings = NetSettings { slot_bytes, ..settings() };
        let opened = Network::open(vec![open("soft IPv4")], &settings, Abort::default());
        let Err(error) = opened else { panic!("{slot_bytes:#x}") };
        assert!(error.to_string().ends_with("for links, of 134217728 at most"), "{error}");
    }
}

#[test]
fn a_rank_whose_peer_is_gone_is_told_which_every_time() {
    for device in DEVICES {
        let [mut zero, one] = pair(device, 1);
        drop(one);
        let text = error_of(&mut zero);
        assert!(text.starts_with("rank 1: ") && text.contains("to peer "), "{device}: {text}");
        assert_eq!(error_of(&mut zero), text);
    }
}

#[test]
fn a_peer_that_goes_amid_a_transfer_ends_it() {
    for device in DEVICES {
        let [mut zero, mut one] = pair(device, 1);
        let text = std::thread::scope(|scope| {
            let transfer = scope.spawn(|| zero.exchange(1, 1 << 40).unwrap_err());
            scope.spawn(|| {
                one.exchange(1, 20).expect(device);
                drop(one);
            });
            transfer.join().unwrap().to_string()
        });
        // The links of the two directions may each have a connection, and so an error, of their own.
        for text in [text, error_of(&mut zero)] {
            assert!(text.starts_with("rank 1: ") && text.contains("to peer "), "{device}: {text}");
        }
    }
}

#[test]
fn abort_ends_a_transfer_and_what_comes_after_it() {
    for device in ["soft IPv4", "socket IPv6"] {
        let [mut zero, one] = pair(device, 1);
        let abort = zero.abort.clone();
        let text = std::thread::scope(|scope| {
            let zero = scope.spawn(|| zero.exchange(1, 1).unwrap_err().to_string());
            abort.set();
            zero.join().unwrap()
        });
        assert_eq!(text, "the communicator was aborted");
        assert!(zero.recvs[0].full().is_err());
        let (mut listening, _) = zero.network.listen(1, 1, 0).unwrap();
        assert_eq!(listening.poll().err().unwrap().to_string(), text);
        drop(one);
    }
}

#[test]
fn what_is_under_way_is_shown_by_rank_and_channel() {
    let shown = |line: &str| format!("ACTIVE LINKS\n{line}\n[X]\n");
    for device in DEVICES {
        let [mut zero, mut one] = pair(device, 1);
        for message in 0..20 {
            assert_eq!(one.recvs[0].full().expect(device), None);
            assert_eq!(one.network.dump(), shown(&format!("[-|{message}| Recv 0R/0]")), "{device}");
            zero.sends[0].publish(5).expect(device);
            until("a slot", || {
                zero.sends[0].progress().expect(device);
                one.recvs[0].full().expect(device).is_some()
            });
            assert_eq!(one.network.dump(), shown(&format!("[-|{message}| Recv 0G/0]")), "{device}");
            one.recvs[0].release();
            assert_eq!(one.network.dump(), "ACTIVE LINKS\n[X]\n", "{device}");
            until("a delivery", || {
                one.recvs[0].progress().expect(device);
                zero.sends[0].has_delivered().expect(device)
            });
            assert_eq!(zero.network.dump(), "ACTIVE LINKS\n[X]\n", "{device}");
            zero.sends[0].free(5).expect(device).expect("a slot is free");
        }
    }
}

#[test]
fn more_bytes_than_a_slot_has_are_refused() {
    let [mut zero, _one] = pair("socket IPv4", 1);
    assert!(zero.sends[0].free(SLOT_BYTES).unwrap().is_some());
    let error = zero.sends[0].free(SLOT_BYTES + 1).unwrap_err().to_string();
    assert_eq!(error, format!("{} bytes for a slot of {SLOT_BYTES}", SLOT_BYTES + 1));
}

/// The error of the first of two attempts that are polled in turns.
fn error_beside(attempt: &mut LinkAttempt, other: &mut LinkAttempt) -> String {
    until("an error", || {
        let error = attempt.poll().err().map(|error| error.to_string());
        assert!(error.is_some() || other.poll().unwrap().is_none());
        error
    })
}

#[test]
fn who_knows_the_handle_and_not_the_key_is_no_sender() {
    for device in DEVICES {
        let keyed = |key| {
            let connections = settings().connections.key(Secret::new([key; SECRET_BYTES]));
            let settings = NetSettings { connections, ..settings() };
            Network::open(vec![open(device)], &settings, Abort::default()).unwrap()
        };
        let (zero, one, stranger) = (keyed(1), keyed(1), keyed(2));
        let (mut listening, handle) = one.listen(0, 0, 0).unwrap();
        let mut refused = stranger.connect(1, 0, 0, &handle).unwrap();
        let error = error_beside(&mut refused, &mut listening);
        assert!(error.contains("the listener hung up before it had proved"), "{error}");
        let turned_away = listening.turned_away();
        assert!(turned_away.contains("turned away"), "{device}: {turned_away}");
        // The rank for which the listener waits now connects.
        let attempts = vec![zero.connect(1, 0, 0, &handle).unwrap(), listening];
        let ends = wait_for_links(attempts, LIMIT).expect(device);
        let [LinkEnds { send, .. }, LinkEnds { recv, .. }] = ends.try_into().ok().unwrap();
        let (mut send, mut recv) = (send.unwrap(), recv.unwrap());
        send.publish(0).unwrap();
        until("a slot", || {
            send.progress().unwrap();
            recv.full().unwrap().is_some()
        });
    }
}

#[test]
fn silent_strangers_keep_no_sender_out() {
    for device in DEVICES {
        let open = || Network::open(vec![open(device)], &settings(), Abort::default()).unwrap();
        let (zero, one) = (open(), open());
        let (listening, handle) = one.listen(0, 0, 0).unwrap();
        let addr = handle.addr(Wire::Invar).unwrap();
        let silent: Vec<_> = (0..STRANGERS).map(|_| TcpStream::connect(addr).unwrap()).collect();
        let sending = zero.connect(1, 0, 0, &handle).unwrap();
        wait_for_links(vec![sending, listening], LIMIT).expect(device);
        drop(silent);
    }
}

#[test]
fn a_peer_that_never_comes_is_named_with_its_rank_the_device_and_the_address() {
    let device = open("soft IPv4");
    let name = device.info().name.clone();
    let one = Network::open(vec![device], &settings(), Abort::default()).unwrap();
    let late = |attempt| wait_for_links(vec![attempt], Duration::from_millis(50)).err().unwrap();

    let (listening, handle) = one.listen(0, 0, 0).unwrap();
    let addr = handle.addr(Wire::Invar).unwrap();
    let sender = late(listening);
    let text = format!(
        "rank 0: no peer connected to {name} at {addr} within 50 ms; does the sender have this listener's \
         handle, and does a firewall let TCP port {} pass?",
        addr.port()
    );
    assert_eq!(sender.to_string(), text);

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = silent.local_addr().unwrap();
    let handle = Handle::new(addr, Wire::Invar, &[1; 16]);
    let listener = late(one.connect(2, 0, 0, &handle).unwrap());
    let text = format!(
        "rank 2: {name} to peer {addr}: the link was not complete within 50 ms: does that rank still \
         run, and does it make its end of the link?"
    );
    assert_eq!(listener.to_string(), text);
    assert_eq!(listener.peer(), Some(addr));

    for (error, rank) in [(sender, 0), (listener, 2)] {
        assert_eq!((error.rank(), error.device()), (Some(rank), Some(name.as_str())));
        assert!(error.is_timeout(), "{error}");
    }
}

#[test]
fn who_waits_in_vain_for_a_sender_is_told_of_other_callers() {
    let one = Network::open(vec![open("soft IPv4")], &settings(), Abort::default()).unwrap();
    let (listening, handle) = one.listen(0, 0, 0).unwrap();
    let mut stranger = TcpStream::connect(handle.addr(Wire::Invar).unwrap()).unwrap();
    stranger.write_all(&[b'/'; 256]).unwrap();
    let error = wait_for_links(vec![listening], Duration::from_millis(500)).err().unwrap();
    let text = error.to_string();
    assert!(error.is_timeout(), "{text}");
    assert!(text.contains(" within 500 ms; a caller from 127.0.0.1:"), "{text}");
}

#[test]
fn a_device_whose_connections_go_one_way_refuses_both() {
    let [zero, _one] = pair("soft IPv4", 1);
    assert!(!zero.network.goes_both_ways(0));
    let error = zero.network.listen_both_ways(1, 1, 0).err().unwrap().to_string();
    assert!(error.contains("go both ways"), "{error}");
}

#[test]
fn a_handle_of_another_wire_is_refused_and_the_links_go_on() {
    let [mut zero, mut one] = pair("soft IPv4", 1);
    let nccl = Handle::new("127.0.0.1:1".parse().unwrap(), Wire::Nccl214, &[0; 16]);
    let error = zero.network.connect(5, 0, 0, &nccl).err().unwrap().to_string();
    assert!(error.starts_with("rank 5: ") && error.contains("not a handle of Invar"), "{error}");
    let error = zero.network.listen(5, 0, 9).err().unwrap().to_string();
    assert!(error.contains("device 9: there are 1"), "{error}");
    std::thread::scope(|scope| {
        scope.spawn(|| zero.exchange(1, 3).unwrap());
        scope.spawn(|| one.exchange(1, 3).unwrap());
    });
}
