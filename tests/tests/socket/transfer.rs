//! Messages arrive whole, over any number of sockets and threads.

use invar_core::param::{AddressFamily, PortRange};
use invar_linux::socket::Listener;
use invar_testkit::wait::until;

use crate::rig::{Pair, loopback, settings};

const LAYOUTS: [(u16, u16); 5] = [(0, 0), (1, 0), (1, 1), (5, 2), (64, 16)];

#[test]
fn messages_of_every_size_arrive_whole_over_every_layout() {
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        for (lanes, threads) in LAYOUTS {
            let mut pair = Pair::of(family, lanes, threads);
            for (seed, len) in
                [0, 1, 8, 4096, 65_536, 65_537, 300_000, (4 << 20) + 1].into_iter().enumerate()
            {
                let receive = pair.recv(&[(len, 7)]);
                let send = until("a buffer", || {
                    // A message that is too long to go ahead waits until the sender knows the buffer.
                    let _ = pair.recv.test(&receive.request).unwrap();
                    pair.isend(seed, len, 7).unwrap()
                });
                pair.arrives(vec![send], receive, seed, len);
            }
        }
    }
}

#[test]
fn many_messages_under_way_keep_their_bytes_and_their_order() {
    for (lanes, threads) in LAYOUTS {
        let mut pair = Pair::new(lanes, threads);
        let len = |seed: usize| [100, 70_000, 0, 200_000, 8][seed % 5] + seed;
        let receives: Vec<_> = (0..60).map(|_| pair.recv(&[(210_000, 0)])).collect();
        let mut sends = Vec::new();
        for seed in 0..60 {
            let send = until("room to send", || {
                // These calls move messages that go ahead of their buffers, and bring news of buffers.
                sends.retain(|send| pair.send.test(send).unwrap().is_none());
                assert_eq!(pair.recv.test(&receives[59].request), Ok(None));
                pair.isend(seed, len(seed), 0).unwrap()
            });
            sends.push(send);
        }
        let sizes = pair.finish(sends, &receives);
        for (seed, (receive, sizes)) in receives.iter().zip(sizes).enumerate() {
            assert_eq!(sizes, [len(seed) as u32]);
            pair.check(receive, 0, seed, len(seed));
        }
    }
}

#[test]
fn a_receive_may_be_larger_than_what_comes_and_keeps_the_rest() {
    let mut pair = Pair::new(2, 0);
    for (seed, (room, len)) in
        [(10, 3), (100_000, 5), (300_000, 70_000), (5, 0)].into_iter().enumerate()
    {
        let receive = pair.recv(&[(room, 1)]);
        let send = pair.send(seed, len, 1);
        pair.arrives(vec![send], receive, seed, len);
    }
}

#[test]
fn a_hundred_connections_of_one_listener_do_not_mix() {
    let (device, settings) = (loopback(AddressFamily::Inet), settings(0, 0));
    let mut listener = Listener::bind(&device, PortRange::ANY, &settings).unwrap();
    let mut pairs: Vec<Pair> =
        (0..100).map(|_| Pair::connect(&mut listener, &device, &settings)).collect();
    let sends: Vec<_> =
        pairs.iter_mut().enumerate().map(|(seed, pair)| pair.send(seed, 5000, 3)).collect();
    for (seed, (pair, send)) in pairs.iter_mut().zip(sends).enumerate() {
        let receive = pair.recv(&[(5000, 3)]);
        pair.arrives(vec![send], receive, seed, 5000);
    }
}
