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
            let receive = pair.recv(&[(70_000, 0)]);
            pair.arrives(vec![], receive, seed, len(seed));
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
fn a_send_that_is_done_is_settled_once_the_peers_host_has_it_or_is_gone() {
    for (lanes, is_received) in [(0, true), (2, true), (0, false), (2, false)] {
        let mut pair = Pair::new(lanes, 0);
        // The kernel takes this many bytes at once, but not the peer's, as long as nobody reads there.
        let len = 1 << 20;
        let send = pair.send(0, len, 0);
        until("the send", || (pair.send.test(&send) != Ok(None)).then_some(()));
        assert!(!pair.send.is_settled());
        if is_received {
            let receives = [pair.recv(&[(len, 0)])];
            pair.finish(vec![], &receives);
        } else {
            pair.recv = Pair::new(0, 0).recv;
        }
        until("the last acknowledgement", || {
            // The sender looks whether the peer has gone.
            let _ = pair.send.check_peer();
            pair.send.is_settled().then_some(())
        });
    }
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
