//! Tests ends that close, and the ends that remain.

use invar_core::conn::StreamError;
use invar_core::error::{Error, ErrorKind};
use invar_testkit::wait::until;

use crate::rig::Pair;

#[test]
fn what_was_sent_arrives_after_the_sender_has_closed() {
    for (lanes, threads) in [(0, 0), (2, 0), (2, 2)] {
        let mut pair = Pair::new(lanes, threads);
        let len = |seed: usize| 1000 * (seed % 70);
        let sends = (0..100).map(|seed| pair.send(seed, len(seed), 0)).collect();
        pair.finish(sends, &[]);
        // Another sender takes its place, so this one closes.
        pair.send = Pair::new(0, 0).send;
        // The receiver posts and announces buffers to a sender that is gone.
        for seed in 0..100 {
            let receives = [pair.recv(&[(70_000, 0)])];
            assert_eq!(pair.finish(vec![], &receives), [[len(seed) as u32]]);
            pair.check(&receives[0], 0, seed, len(seed));
        }
        // The receiver may have noticed the end while the last message came, or notices it now.
        let error = until("the end", || match pair.irecv(&[(1, 0)]) {
            Ok(receive) => pair.recv.test(&receive?.request).err(),
            Err(error) => Some(error),
        });
        assert_eq!(error, Error::PeerClosed(StreamError::Closed));
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert_eq!(pair.irecv(&[(1, 0)]).err(), Some(error), "it stays");
    }
}

#[test]
fn a_sender_notices_that_its_receiver_has_closed() {
    let mut pair = Pair::new(1, 1);
    let done = pair.send(0, 10, 0);
    until("a send", || (pair.send.test(&done) != Ok(None)).then_some(()));
    pair.recv = Pair::new(0, 0).recv;
    let error = until("the end", || pair.send.check_peer().err());
    assert!(matches!(error, Error::PeerClosed(_)), "{error}");
    assert_eq!(pair.isend(0, 1, 0), Err(error));
}

#[test]
fn a_send_under_way_fails_when_the_receiver_closes_and_a_done_one_does_not() {
    for (lanes, threads) in [(0, 0), (1, 0), (1, 1)] {
        let mut pair = Pair::new(lanes, threads);
        let done = pair.send(0, 10, 0);
        let later = pair.send(0, 10, 0);
        until("a send", || (pair.send.test(&done) != Ok(None)).then_some(()));
        let receive = pair.recv(&[(100 << 20, 1)]);
        let long = until("news of the buffer", || {
            assert_eq!(pair.recv.test(&receive.request), Ok(None));
            pair.isend(1, 100 << 20, 1).unwrap()
        });
        assert_eq!(pair.send.test(&long), Ok(None), "more than fits into sockets");
        pair.recv = Pair::new(0, 0).recv;
        let error = until("the end", || pair.send.test(&long).err());
        assert!(matches!(error, Error::PeerClosed(_)), "{error}");
        assert_eq!(pair.send.test(&later), Ok(Some(10)));
    }
}
