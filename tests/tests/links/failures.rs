//! Peers that are gone, strangers, and the end of a communicator.

use std::net::TcpStream;
use std::time::Instant;

use invar::net::{NetProxy, NetSettings};
use invar::{HANDLE_BYTES, Handle};
use invar_core::auth::{SECRET_BYTES, Secret};
use invar_core::conn::Wire;
use invar_linux::proxy::Abort;

use crate::rig::{DEVICES, DIRECT, LIMIT, Moved, Rank, SLOT_BYTES, open, pair, settings};

/// More than are listened to at a time.
const STRANGERS: usize = 20;

/// What a rank is told in the end, whose peer does nothing.
fn error_of(rank: &mut Rank) -> String {
    let start = Instant::now();
    loop {
        let sent = rank.sends[0].progress().map(drop);
        if let Err(error) = sent.and_then(|()| rank.recvs[0].progress()) {
            return error.to_string();
        }
        assert!(start.elapsed() < LIMIT, "{}", rank.proxy.dump());
        std::thread::yield_now();
    }
}

#[test]
fn slots_that_no_memory_has_are_refused() {
    for slot_bytes in [(128 << 20) + 1, 1 << 61, (1 << 61) + 64, usize::MAX] {
        let settings = NetSettings { slot_bytes, ..settings() };
        let started = NetProxy::start(vec![open("soft IPv4")], &settings, Abort::default());
        let Err(error) = started else { panic!("{slot_bytes:#x}") };
        assert!(error.to_string().ends_with("for links, of 134217728 at most"), "{error}");
    }
}

#[test]
fn a_rank_whose_peer_is_gone_is_told_which_and_at_what_ends_and_every_time() {
    for device in DEVICES {
        let [mut zero, one] = pair(device, 1);
        zero.recvs[0].start(1).unwrap();
        drop(one);
        let text = error_of(&mut zero);
        assert!(text.starts_with("rank 1: operation 0x1, Recv with rank 1 on channel 0"), "{text}");
        assert!(text.contains("to peer "), "{text}");
        assert_eq!(zero.recvs[0].progress().unwrap_err().to_string(), text);
        assert_eq!(zero.sends[0].start(1).unwrap_err().to_string(), text);
        assert_eq!(zero.proxy.stop().unwrap_err().to_string(), text);
    }
}

/// A rank whose peer goes amid a transfer, and what it is told.
fn left_amid_a_transfer(device: &str) -> (Rank, String) {
    let [mut zero, mut one] = pair(device, 1);
    let text = std::thread::scope(|scope| {
        let zero = scope.spawn(|| zero.exchange(1, 1 << 40, Moved::ByRank).unwrap_err());
        scope.spawn(|| {
            one.exchange(1, 20, Moved::ByRank).expect(device);
            drop(one);
        });
        zero.join().unwrap().to_string()
    });
    (zero, text)
}

#[test]
fn a_peer_that_goes_amid_a_transfer_ends_it() {
    for device in DEVICES {
        let (_, text) = left_amid_a_transfer(device);
        assert!(text.starts_with("rank 1: operation 0x1, "), "{text}");
    }
}

#[test]
fn a_peer_that_goes_is_named_where_no_proxy_moves_the_link() {
    for device in DIRECT {
        let (mut zero, text) = left_amid_a_transfer(device);
        assert!(text.starts_with("rank 1: ") && text.contains("to peer "), "{text}");
        assert_eq!(error_of(&mut zero), text);
    }
}

#[test]
fn abort_ends_a_transfer_and_what_comes_after_it() {
    for (device, moved) in [("soft IPv4", Moved::ByRank), ("socket IPv6", Moved::ByRank)] {
        let [mut zero, one] = pair(device, 1);
        let abort = zero.abort.clone();
        let text = std::thread::scope(|scope| {
            let zero = scope.spawn(|| zero.exchange(1, 1, moved).unwrap_err().to_string());
            abort.set();
            zero.join().unwrap()
        });
        assert_eq!(text, "the proxy: the communicator was aborted");
        assert!(zero.sends[0].start(1).is_err());
        drop(one);
    }
}

#[test]
fn what_is_under_way_is_shown_by_rank_and_channel() {
    let [mut zero, _one] = pair("soft IPv4", 1);
    assert_eq!(zero.proxy.dump(), "ACTIVE OPS\n[X]\n");
    zero.sends[0].start(3).unwrap();
    while zero.proxy.dump() != "ACTIVE OPS\n[0-0|1| Send 1G/0]\n|\nv\n[X]\n" {
        zero.sends[0].progress().unwrap();
    }
}

#[test]
fn what_ranks_move_themselves_is_shown_as_well() {
    let shown = |line: &str| format!("ACTIVE OPS\n[X]\nWITHOUT PROXY\n{line}\n[X]\n");
    for device in DIRECT {
        let [mut zero, mut one] = pair(device, 1);
        for message in 0..20 {
            assert_eq!(one.recvs[0].full().expect(device), None);
            assert_eq!(one.proxy.dump(), shown(&format!("[-|{message}| Recv 0R/0]")), "{device}");
            zero.sends[0].publish(5).expect(device);
            let start = Instant::now();
            while one.recvs[0].full().expect(device).is_none() {
                zero.sends[0].progress().expect(device);
                assert!(start.elapsed() < LIMIT, "{}", zero.proxy.dump());
            }
            assert_eq!(one.proxy.dump(), shown(&format!("[-|{message}| Recv 0G/0]")), "{device}");
            one.recvs[0].release();
            assert_eq!(one.proxy.dump(), "ACTIVE OPS\n[X]\n", "{device}");
            while !zero.sends[0].has_delivered().expect(device) {
                one.recvs[0].progress().expect(device);
                assert!(start.elapsed() < LIMIT, "{}", zero.proxy.dump());
            }
            assert_eq!(zero.proxy.dump(), "ACTIVE OPS\n[X]\n", "{device}");
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

#[test]
fn who_knows_the_handle_and_not_the_key_is_no_sender() {
    for device in DEVICES {
        let keyed = |key| {
            let connections = settings().connections.key(Secret::new([key; SECRET_BYTES]));
            let settings = NetSettings { connections, ..settings() };
            NetProxy::start(vec![open(device)], &settings, Abort::default()).unwrap()
        };
        let (mut zero, mut one, mut stranger) = (keyed(1), keyed(1), keyed(2));
        let (receiving, handle) = one.listen(0, 0, 0).unwrap();
        let refused = stranger.connect(1, 0, 0, &handle).unwrap();
        let error = stranger.sender(refused).err().expect(device).to_string();
        assert!(error.contains("the listener hung up before it had proved"), "{error}");
        // The one that it is for.
        let sending = zero.connect(1, 0, 0, &handle).unwrap();
        let (mut send, mut recv) =
            (zero.sender(sending).expect(device), one.receiver(receiving).expect(device));
        send.start(1).unwrap();
        recv.start(1).unwrap();
        send.publish(0).unwrap();
        let start = Instant::now();
        while recv.full().unwrap().is_none() {
            send.progress().unwrap();
            recv.progress().unwrap();
            assert!(start.elapsed() < LIMIT);
        }
    }
}

#[test]
fn silent_strangers_keep_no_sender_out() {
    for device in DEVICES {
        let proxy = || NetProxy::start(vec![open(device)], &settings(), Abort::default()).unwrap();
        let (mut zero, mut one) = (proxy(), proxy());
        let (receiving, handle) = one.listen(0, 0, 0).unwrap();
        let addr = handle.addr(Wire::Invar).unwrap();
        let silent: Vec<_> = (0..STRANGERS).map(|_| TcpStream::connect(addr).unwrap()).collect();
        let start = Instant::now();
        let sending = zero.connect(1, 0, 0, &handle).unwrap();
        zero.sender(sending).expect(device);
        one.receiver(receiving).expect(device);
        assert!(start.elapsed() < LIMIT);
        drop(silent);
    }
}

#[test]
fn a_device_whose_connections_go_one_way_refuses_both() {
    let [mut zero, _one] = pair("soft IPv4", 1);
    assert!(!zero.proxy.goes_both_ways(0));
    let error = zero.proxy.listen_both_ways(1, 1, 0).err().unwrap().to_string();
    assert!(error.contains("go both ways"), "{error}");
}

#[test]
fn an_address_that_is_none_is_refused_and_the_proxy_goes_on() {
    let [mut zero, mut one] = pair("soft IPv4", 1);
    let sending = zero.proxy.connect(5, 0, 0, &Handle::from_bytes([0; HANDLE_BYTES])).unwrap();
    let error = zero.proxy.sender(sending).err().unwrap().to_string();
    assert!(error.starts_with("rank 5: ") && error.contains("not a handle of Invar"), "{error}");
    let error = zero.proxy.listen(5, 0, 9).err().unwrap().to_string();
    assert!(error.contains("device 9: there are 1"), "{error}");
    std::thread::scope(|scope| {
        scope.spawn(|| zero.exchange(1, 3, Moved::ByRank).unwrap());
        scope.spawn(|| one.exchange(1, 3, Moved::ByRank).unwrap());
    });
}
