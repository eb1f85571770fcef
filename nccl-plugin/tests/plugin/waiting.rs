//! Sends where messages wait for their receives, as on an RDMA device.

use super::rig::*;

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
fn a_send_longer_than_its_receive_is_refused_by_v6_and_cut_since_v7() {
    let pair = Pair::with(4096, connect_v6);
    let recv = pair.post(&[(0, 100, 0)]);
    let code = until("a receive", || match pair.isend(0, 200, 0) {
        (Code::SUCCESS, request) if request.is_null() => None,
        (code, _) => Some(code),
    });
    assert_eq!(code, Code::INVALID_USAGE);
    // The comm goes on.
    let send = pair.send(0, 100, 0);
    wait(&[send, recv]);

    let pair = Pair::new(4096);
    let recv = pair.post(&[(0, 100, 0)]);
    let send = pair.send(0, 200, 0);
    let sizes = wait(&[send, recv]);
    assert_eq!((sizes[0][0], sizes[1][0]), (100, 100));
    assert_eq!(pair.to[..100], pair.from[..100]);
    assert!(pair.to[100..].iter().all(|byte| *byte == 0));
}
