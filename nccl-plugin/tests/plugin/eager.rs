//! Tests sends whose messages go ahead of their receives, as over TCP.

use super::rig::*;
use super::versions::connect_by;

#[test]
fn a_send_goes_ahead_of_its_receive() {
    let pair = Pair::new(64);
    let send = pair.send(0, 8, 1);
    wait(&[send]);
    assert_eq!(pair.to, [0; 64]);
    let recv = pair.post(&[(0, 8, 1)]);
    assert_eq!(wait(&[recv])[0][0], 8);
    assert_eq!(pair.to[..8], pair.from[..8]);
}

#[test]
fn a_send_longer_than_its_receive_is_refused_by_v6_where_the_receiver_learns_of_it() {
    let pair = Pair::with(4096, |handle| connect_by(6, handle));
    let send = pair.send(0, 200, 0);
    wait(&[send]);
    let recv = pair.post(&[(0, 100, 0)]);
    let code = until("an error", || test(recv).err());
    assert_eq!(code, Code::INVALID_USAGE);
    assert_eq!(pair.to, [0; 4096]);
}

#[test]
fn a_send_that_went_ahead_is_cut_to_its_receive_since_v7() {
    let pair = Pair::new(4096);
    let sends = [(200, 1), (200, 2), (50, 1)].map(|(len, tag)| pair.send(0, len, tag));
    wait(&sends);
    // The message of tag 1 is parked, because a buffer waits for the message behind it.
    let second = pair.post(&[(1000, 100, 2)]);
    assert_eq!(wait(&[second])[0][0], 100);
    let (first, third) = (pair.post(&[(0, 100, 1)]), pair.post(&[(2000, 60, 1)]));
    let sizes = wait(&[first, third]);
    assert_eq!((sizes[0][0], sizes[1][0]), (100, 50));
    let mut to = vec![0; 4096];
    for (at, len) in [(0, 100), (1000, 100), (2000, 50)] {
        to[at..at + len].copy_from_slice(&pair.from[..len]);
    }
    assert!(pair.to == to);
}
