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
fn a_send_that_v6_refuses_leaves_its_receive_to_the_next() {
    let pair = Pair::with(4096, connect_v6);
    let recv = pair.post(&[(0, 100, 0)]);
    let code = until("a receive", || match pair.isend(0, 200, 0) {
        (Code::SUCCESS, request) if request.is_null() => None,
        (code, _) => Some(code),
    });
    assert_eq!(code, Code::INVALID_USAGE);
    let send = pair.send(0, 100, 0);
    wait(&[send, recv]);
}
