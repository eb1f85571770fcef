//! Tests sends that wait for their receives, as on an RDMA device.

use super::rig::*;
use super::versions::connect_by;

#[test]
fn a_send_waits_for_its_receive() {
    let pair = Pair::new(64);
    for _ in 0..1000 {
        assert_eq!(pair.isend(0, 8, 1), (Code::SUCCESS, ptr::null_mut()));
    }
    let recv = pair.post(&[(0, 8, 1)]);
    let send = pair.send(0, 8, 1);
    wait(&[send, recv]);
}

#[test]
fn a_send_that_v6_refuses_leaves_its_receive_to_the_next() {
    let pair = Pair::with(4096, |handle| connect_by(6, handle));
    let recv = pair.post(&[(0, 100, 0)]);
    let code = until("a receive", || match pair.isend(0, 200, 0) {
        (Code::SUCCESS, request) if request.is_null() => None,
        (code, _) => Some(code),
    });
    assert_eq!(code, Code::INVALID_USAGE);
    let send = pair.send(0, 100, 0);
    wait(&[send, recv]);
}

#[test]
fn requests_that_are_tested_in_turn_are_done_with_their_messages_and_once() {
    let pair = Pair::new(64);
    let tags = [1, 2, 3];
    let recvs = tags.map(|tag| pair.post(&[(8 * tag as usize, 8, tag)]));
    for _ in 0..100 {
        assert!(recvs.iter().all(|recv| test(*recv) == Ok(None)));
    }
    for (i, tag) in tags.into_iter().enumerate() {
        let send = pair.send(8 * tag as usize, 8, tag);
        assert_eq!(wait(&[send, recvs[i]])[1][0], 8);
        assert!(recvs[i + 1..].iter().all(|recv| test(*recv) == Ok(None)));
    }
    assert_eq!(pair.to[8..32], pair.from[8..32]);
    assert!(test(recvs[0]).is_err());
}
