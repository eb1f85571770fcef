//! Tests connections that are used in both directions.

use invar_core::conn::StreamError;
use invar_core::error::Error;
use invar_core::stall::StallSettings;
use invar_linux::clock::now_ns;
use invar_testkit::wait::until;

use crate::rig::Pair;

const LAYOUTS: [(u16, u16); 3] = [(0, 0), (2, 0), (2, 2)];

/// A pair, and another one in the opposite direction over the same sockets.
fn both_ways(lanes: u16, threads: u16) -> (Pair, Pair) {
    let mut there = Pair::new(lanes, threads);
    let back = Pair::over(there.recv.way_back().unwrap(), there.send.way_back().unwrap());
    (there, back)
}

#[test]
fn messages_of_both_ways_arrive_whole_and_do_not_mix() {
    for (lanes, threads) in LAYOUTS {
        let (mut there, mut back) = both_ways(lanes, threads);
        let len = |seed: usize| [8, 0, 511, 70_000, 200_000][seed % 5] + seed;
        for seed in (0..200).step_by(2) {
            let mut under_way = Vec::new();
            for (seed, pair) in [(seed, &mut there), (seed + 1, &mut back)] {
                let receive = pair.recv(&[(201_000, 0)]);
                under_way.push((pair.send(seed, len(seed), 0), receive));
            }
            let pairs = [(seed, &mut there), (seed + 1, &mut back)];
            for ((seed, pair), (send, receive)) in pairs.into_iter().zip(under_way) {
                pair.arrives(vec![send], receive, seed, len(seed));
            }
        }
    }
}

#[test]
fn the_other_way_goes_on_when_one_ends_and_who_waits_there_notices() {
    for (lanes, threads) in LAYOUTS {
        let (mut there, mut back) = both_ways(lanes, threads);
        let receives = [there.recv(&[(10, 0)])];
        let send = there.send(0, 10, 0);
        there.finish(vec![send], &[]);
        there.send = Pair::new(0, 0).send;
        assert_eq!(there.finish(vec![], &receives), [[10]], "sent before the end");
        let receive = back.recv(&[(100_000, 0)]);
        let send = back.send(1, 100_000, 0);
        back.arrives(vec![send], receive, 1, 100_000);
        let receive = there.recv(&[(10, 0)]);
        let error = until("the end", || there.recv.test(&receive.request).err());
        assert_eq!(error, Error::PeerClosed(StreamError::Closed));
    }
}

#[test]
fn a_message_too_long_for_its_buffer_ends_both_ways() {
    let (mut there, mut back) = both_ways(0, 0);
    let send = there.send(0, 100, 0);
    there.finish(vec![send], &[]);
    let receive = there.recv(&[(99, 0)]);
    let error = until("the error", || there.recv.test(&receive.request).err());
    assert_eq!(error, Error::SizeMismatch { local: 100, remote: 99, tag: 0 });
    let receive = back.recv(&[(8, 0)]);
    let error = until("the end", || back.recv.test(&receive.request).err());
    assert!(matches!(error, Error::PeerClosed(_)), "{error}");
    let send = back.send(1, 8, 0);
    let error = until("the end", || back.send.test(&send).err());
    assert!(matches!(error, Error::PeerClosed(_)), "{error}");
}

#[test]
fn a_view_that_is_on_its_way_when_the_other_way_begins_does_no_harm() {
    let watching = StallSettings { after_ns: 1_000_000_000, ..StallSettings::default() };
    let Pair { send, recv, .. } = Pair::new(0, 0);
    let mut there = Pair::over(send.watching(watching), recv.watching(watching));
    // Each end tells the other its process, and the receiver does not look again.
    there.recv.look_for_stall(now_ns());
    there.send.look_for_stall(now_ns());
    let mut back = Pair::over(there.recv.way_back().unwrap(), there.send.way_back().unwrap());
    for (seed, pair) in [(0, &mut there), (1, &mut back)] {
        let receive = pair.recv(&[(10, 0)]);
        let send = pair.send(seed, 10, 0);
        pair.arrives(vec![send], receive, seed, 10);
    }
    assert_eq!(there.send.room(0).unwrap(), None);
    assert_eq!(back.send.room(0).unwrap(), None);
}
