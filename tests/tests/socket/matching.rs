//! Messages meet buffers by tag, in whatever order requests are tested.

use invar_core::comm::SendBuf;
use invar_core::error::{Error, ErrorKind};
use invar_core::socket::{AHEAD_BYTES, AHEAD_MESSAGES};
use invar_testkit::wait::until;

use crate::rig::{Pair, Receive};

#[test]
fn requests_are_done_whatever_the_order_in_which_they_are_tested() {
    for lanes in [0, 3] {
        let mut pair = Pair::new(lanes, 0);
        let lens = [8, 70_000, 1, 200_000];
        let mut receives: Vec<Receive> = lens.iter().map(|&len| pair.recv(&[(len, 0)])).collect();
        let mut sends: Vec<_> =
            lens.iter().enumerate().map(|(seed, &len)| pair.send(seed, len, 0)).collect();
        sends.reverse();
        receives.reverse();
        let sizes = pair.finish(sends, &receives);
        for (seed, len) in lens.into_iter().enumerate() {
            assert_eq!(sizes[3 - seed], [len as u32]);
            pair.check(&receives[3 - seed], 0, seed, len);
        }
    }
}

#[test]
fn groups_of_eight_get_each_its_message_and_size_from_sends_in_any_order() {
    let mut pair = Pair::new(2, 1);
    // There are 32 requests of 8 buffers each before anything is tested.
    let bufs: Vec<(usize, u32)> = (0..8).map(|member| (70_000, 100 + member)).collect();
    let groups: Vec<Receive> = (0..32).map(|_| pair.recv(&bufs)).collect();
    let len = |group: usize, member: usize| [0, 1, 300, 66_000][(group + member) % 4];
    let mut sends = Vec::new();
    // All messages of one tag go before those of the next tag. No group is complete before the last
    // tag.
    for member in [3, 7, 0, 1, 6, 2, 5, 4] {
        for group in 0..32 {
            let send = until("room to send", || {
                assert!(member == 4 || pair.recv.test(&groups[0].request) == Ok(None));
                pair.isend(8 * group + member, len(group, member), 100 + member as u32).unwrap()
            });
            if pair.send.test(&send).unwrap().is_none() {
                sends.push(send);
            }
        }
    }
    let sizes = pair.finish(sends, &groups);
    for (group, sizes) in sizes.iter().enumerate() {
        for (member, size) in sizes.iter().enumerate() {
            assert_eq!(*size, len(group, member) as u32);
            pair.check(&groups[group], member, 8 * group + member, len(group, member));
        }
    }
}

#[test]
fn messages_that_nobody_asked_for_yet_let_others_pass() {
    for (lanes, threads) in [(0, 0), (3, 0), (3, 2)] {
        let mut pair = Pair::new(lanes, threads);
        let early = [pair.send(1, 200_000, 1), pair.send(2, 10, 2)];
        let wanted = pair.send(3, 30_000, 3);
        let receive = pair.recv(&[(30_000, 3)]);
        let mut sends = vec![wanted];
        sends.extend(early);
        pair.arrives(sends, receive, 3, 30_000);
        let receives = [pair.recv(&[(10, 2), (200_000, 1)])];
        assert_eq!(pair.finish(vec![], &receives), [[10, 200_000]]);
        pair.check(&receives[0], 0, 2, 10);
        pair.check(&receives[0], 1, 1, 200_000);
    }
}

#[test]
fn a_sender_goes_ahead_so_far_and_no_farther() {
    let mut pair = Pair::new(0, 0);
    let too_long = AHEAD_BYTES as usize + 1;
    assert_eq!(pair.isend(0, too_long, 0), Ok(None), "without a buffer");
    let sends: Vec<_> = (0..AHEAD_MESSAGES).map(|seed| pair.send(seed, 1, 0)).collect();
    assert_eq!(pair.isend(0, 1, 0), Ok(None));
    until("the sends", || {
        let done = sends.iter().all(|send| pair.send.test(send) != Ok(None));
        done.then_some(())
    });
    assert_eq!(pair.isend(0, 1, 0), Ok(None), "they are done, and not received");
    let receives: Vec<_> = (0..AHEAD_MESSAGES).map(|_| pair.recv(&[(1, 0)])).collect();
    pair.finish(vec![], &receives);
    let last = pair.recv(&[(too_long, 0)]);
    let send = until("news of the buffer", || {
        assert_eq!(pair.recv.test(&last.request), Ok(None));
        pair.isend(9, too_long, 0).unwrap()
    });
    pair.arrives(vec![send], last, 9, too_long);
}

#[test]
fn a_program_that_calls_isend_until_there_is_room_moves_its_earlier_messages() {
    let mut pair = Pair::new(0, 0);
    let send = pair.send(1, 1_000_000, 0);
    let receives = [pair.recv(&[(1_000_000, 0)])];
    let long = vec![0; AHEAD_BYTES as usize + 1];
    let addr = long.as_ptr().expose_provenance() as u64;
    let long_buf = SendBuf { addr, len: long.len() as u32, lkey: 0 };
    until("the first message", || {
        // SAFETY: nobody sends the bytes.
        assert_eq!(unsafe { pair.send.isend(&long_buf, 9) }, Ok(None), "no buffer");
        pair.recv.test(&receives[0].request).unwrap().map(<[u32]>::to_vec)
    });
    let sent = until("the acknowledge", || pair.send.test(&send).unwrap());
    assert_eq!(sent, 1_000_000);
    pair.check(&receives[0], 0, 1, 1_000_000);
}

#[test]
fn what_has_met_its_buffer_is_no_longer_ahead() {
    let mut pair = Pair::new(0, 0);
    let len = AHEAD_BYTES as usize / 4;
    for seed in 0..12 {
        let send = pair.send(seed, len, 0);
        let receive = pair.recv(&[(len, 0)]);
        pair.arrives(vec![send], receive, seed, len);
    }
}

#[test]
fn a_send_longer_than_its_buffer_names_both_sizes_at_both_ends() {
    for lanes in [0, 2] {
        let mut pair = Pair::new(lanes, 0);
        let mismatch = Error::SizeMismatch { local: 100_000, remote: 99_999, tag: 5 };
        assert_eq!(mismatch.kind(), ErrorKind::Usage);
        let send = pair.send(0, 100_000, 5);
        let receive = pair.recv(&[(99_999, 5)]);
        let error = until("the receiver's error", || {
            let _ = pair.send.test(&send);
            pair.recv.test(&receive.request).err()
        });
        assert_eq!(error, mismatch);
        assert_eq!(until("the sender's error", || pair.send.check_peer().err()), mismatch);
        // Both errors stay.
        assert_eq!(pair.irecv(&[(1, 5)]).err(), Some(mismatch));
        assert_eq!(pair.isend(0, 1, 5), Err(mismatch));
        let text = pair.send.ends().report(mismatch).to_string();
        assert!(text.starts_with("lo to peer 127.0.0.1:") && text.contains("(lo): "), "{text}");
        assert!(text.contains("a send of 100000 bytes meets a receive of 99999 bytes"), "{text}");
    }
}

#[test]
fn a_send_longer_than_a_buffer_that_is_known_is_refused_and_others_go_on() {
    let mut pair = Pair::new(0, 0);
    let known = pair.recv(&[((2 << 20) - 1, 5)]);
    let refused = until("news of the buffer", || {
        assert_eq!(pair.recv.test(&known.request), Ok(None));
        pair.send.check_peer().unwrap();
        pair.isend(0, (4 << 20) + 1, 5).err()
    });
    let remote = (2 << 20) - 1;
    assert_eq!(refused, Error::SizeMismatch { local: (4 << 20) + 1, remote, tag: 5 });
    let send = pair.send(1, 1000, 5);
    assert_eq!(pair.finish(vec![send], &[known]), [[1000]]);
}
