//! A sender waits for a receiver that exists and does not read. It notices a host that is gone.

use std::time::Duration;

use invar_core::comm::Request;
use invar_core::error::Error;
use invar_core::param::{AddressFamily, PortRange};
use invar_linux::socket::{Connecting, Listener};
use invar_testkit::namespaces::Hosts;
use invar_testkit::tcp_times::hasten;
use invar_testkit::wait::{throughout, until, watch};

use crate::rig::{Pair, Receive, device_on, finish_connecting, settings};

/// The size of a message that does not fit into a connection's buffers.
const LONG: usize = 48 << 20;
/// The number of messages that fit into the sender's buffers, but not into the receiver's.
const MESSAGES: usize = 4;
const BYTES: usize = 500_000;
const LAYOUTS: [(u16, u16); 3] = [(0, 0), (2, 0), (2, 2)];

/// Sends a long message to a posted buffer. The sockets take only a part of it.
fn stuck(pair: &mut Pair, seed: usize) -> (Request, Receive) {
    let receive = pair.recv(&[(LONG, 0)]);
    let send = until("news of the buffer", || {
        assert_eq!(pair.recv.test(&receive.request), Ok(None));
        pair.isend(seed, LONG, 0).unwrap()
    });
    assert_eq!(pair.send.test(&send), Ok(None), "more than fits into the sockets");
    (send, receive)
}

/// Tests the sends while nobody receives.
fn wait_for_nobody(pairs: &mut [(&mut Pair, &Request)], late: Duration) {
    throughout(late, || {
        for (pair, send) in &mut *pairs {
            pair.send.check_peer().unwrap();
            assert_eq!(pair.send.test(send), Ok(None));
        }
    });
}

/// Lets the receivers pause for the time `late`. `hurry` shortens TCP's time-outs.
fn check_late(hurry: bool, late: Duration) {
    let mut pairs = LAYOUTS.map(|(lanes, threads)| Pair::new(lanes, threads));
    let mut work: Vec<_> = pairs.iter_mut().map(|pair| (stuck(pair, 1), pair)).collect();
    if hurry {
        hasten();
    }
    let mut waiting: Vec<_> =
        work.iter_mut().map(|((send, _), pair)| (&mut **pair, &*send)).collect();
    wait_for_nobody(&mut waiting, late);
    for ((send, receive), pair) in work {
        pair.arrives(vec![send], receive, 1, LONG);
    }
}

#[test]
fn a_receiver_that_is_late_is_waited_for() {
    check_late(true, Duration::from_secs(3));
}

#[test]
#[ignore = "takes 40 s, without haste"]
fn a_receiver_that_is_40_s_late_is_waited_for() {
    check_late(false, Duration::from_secs(40));
}

#[test]
fn receivers_of_both_ways_that_are_late_are_waited_for() {
    for (lanes, threads) in LAYOUTS {
        let mut there = Pair::new(lanes, threads);
        let mut back = Pair::over(there.recv.way_back().unwrap(), there.send.way_back().unwrap());
        let (send, receive) = stuck(&mut there, 1);
        let (send_back, receive_back) = stuck(&mut back, 2);
        hasten();
        let mut waiting = [(&mut there, &send), (&mut back, &send_back)];
        wait_for_nobody(&mut waiting, Duration::from_secs(3));
        there.arrives(vec![send], receive, 1, LONG);
        back.arrives(vec![send_back], receive_back, 2, LONG);
    }
}

#[test]
fn a_send_that_is_done_arrives_however_late_it_is_received() {
    for (lanes, threads) in LAYOUTS {
        let mut pair = Pair::new(lanes, threads);
        let sends = (0..MESSAGES).map(|seed| pair.send(seed, BYTES, 0)).collect();
        pair.finish(sends, &[]);
        hasten();
        std::thread::sleep(Duration::from_secs(3));
        for seed in 0..MESSAGES {
            let receive = pair.recv(&[(BYTES, 0)]);
            pair.arrives(vec![], receive, seed, BYTES);
        }
    }
}

/// A connection from the second host to the first.
fn between(hosts: &Hosts, lanes: u16, threads: u16) -> Pair {
    let settings = settings(lanes, threads);
    let device = || device_on("=v0", AddressFamily::Inet);
    let mut listener =
        hosts.call(0, || Listener::bind(&device(), PortRange::ANY, &settings)).unwrap();
    let handle = listener.handle();
    let start = || Connecting::start(&device(), &handle, &settings, invar_linux::clock::now_ns());
    let connecting = hosts.call(1, start).unwrap();
    finish_connecting(connecting, &mut listener)
}

/// Waits for the error of an end, and checks its code. `is_cut` is whether the end's host has lost its link.
fn told(what: &str, is_cut: bool, look: impl FnMut() -> Option<Error>) {
    let error = watch(what, look);
    // The codes are ETIMEDOUT, and EHOSTUNREACH if no neighbour answers. A host without a link has no route
    // (ENETUNREACH).
    let text = error.to_string();
    let has = |code: &str| text.contains(code);
    let is_right = has("(errno 110)") || has("(errno 113)") || is_cut && has("(errno 101)");
    assert!(is_right, "{what}: {text}");
}

/// The messages in flight when the host vanishes.
#[derive(Clone, Copy, Debug)]
enum UnderWay {
    Nothing,
    /// A message that is longer than the receiver's buffers.
    Long,
    /// A message that is sent after the cable is cut, so that it is never acknowledged.
    Unheard,
}

fn check_vanished(under_way: UnderWay, (lanes, threads): (u16, u16), both_ways: bool) {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let mut there = between(&hosts, lanes, threads);
    let mut back = both_ways
        .then(|| Pair::over(there.recv.way_back().unwrap(), there.send.way_back().unwrap()));
    let mut pairs: Vec<&mut Pair> = std::iter::once(&mut there).chain(&mut back).collect();
    let mut work: Vec<_> = pairs
        .iter_mut()
        .map(|pair| matches!(under_way, UnderWay::Long).then(|| stuck(pair, 1)).unzip())
        .collect();
    hasten();
    hosts.ip(1, "link set v0 down").unwrap();
    for (pair, (send, receive)) in pairs.iter_mut().zip(&mut work) {
        if matches!(under_way, UnderWay::Unheard) {
            let unheard = pair.send(1, 100_000, 0);
            *send = Some(unheard).filter(|send| pair.send.test(send) == Ok(None));
        }
        // The receiver announces a long buffer at once, but the sender never hears of it.
        let receive = receive.get_or_insert_with(|| pair.recv(&[(LONG, 0)]));
        assert_eq!(pair.recv.test(&receive.request), Ok(None));
    }
    let name = format!("{under_way:?}, {lanes} lanes, {threads} threads");
    // The sender of the way there is on the host whose link is down, and so is the receiver of the way back.
    for (is_back, (pair, (send, receive))) in
        [false, true].into_iter().zip(pairs.iter_mut().zip(&mut work))
    {
        let receive = receive.as_ref().expect("each has one");
        told(&format!("the receiver: {name}"), is_back, || {
            let tested = pair.recv.test(&receive.request).err();
            tested.or_else(|| pair.recv.check_peer().err())
        });
        told(&format!("the sender: {name}"), !is_back, || {
            if let Some(request) = &send {
                match pair.send.test(request) {
                    Err(error) => return Some(error),
                    // The kernel has taken the message, and nobody acknowledges it.
                    Ok(Some(_)) => *send = None,
                    Ok(None) => {}
                }
            }
            pair.send.check_peer().err()
        });
    }
}

#[test]
fn an_idle_connection_notices_that_the_other_host_has_vanished() {
    check_vanished(UnderWay::Nothing, (2, 2), false);
    check_vanished(UnderWay::Nothing, (0, 0), true);
}

#[test]
fn both_ends_notice_amid_a_message_that_the_other_host_has_vanished() {
    check_vanished(UnderWay::Long, (0, 0), false);
    check_vanished(UnderWay::Long, (2, 2), false);
    check_vanished(UnderWay::Long, (0, 0), true);
}

#[test]
fn both_ends_notice_that_a_host_has_vanished_which_never_acknowledges_what_was_sent() {
    check_vanished(UnderWay::Unheard, (0, 0), false);
    check_vanished(UnderWay::Unheard, (2, 2), true);
}
