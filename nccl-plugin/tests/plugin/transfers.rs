//! Tests messages between both ends.

use std::thread;

use super::rig::*;

#[test]
fn no_free_request_is_a_null_request() {
    let pair = Pair::new(64);
    let posted: Vec<_> = (0..256).map(|_| pair.post(&[(0, 8, 0)])).collect();
    assert_eq!(pair.irecv(&[(0, 8, 0)]), (Code::SUCCESS, ptr::null_mut()));
    let sent: Vec<_> = (0..256).map(|_| pair.send(0, 8, 0)).collect();
    wait(&sent);
    wait(&posted);
    let recv = pair.post(&[(0, 8, 0)]);
    let send = pair.send(0, 8, 0);
    wait(&[recv, send]);
}

#[test]
fn a_flush_of_host_memory_is_done_at_once() {
    let pair = Pair::new(64);
    let mut data: *mut c_void = pair.to.as_ptr().cast_mut().cast();
    let (mut size, mut mr, mut request) = (8, pair.to_mr, ptr::dangling_mut());
    // SAFETY: Each array has one entry.
    let code = unsafe { (net.iflush)(pair.recv, 1, &mut data, &mut size, &mut mr, &mut request) };
    assert_eq!((code, request), (Code::SUCCESS, ptr::null_mut()));
}

#[test]
fn comms_may_end_with_requests_under_way() {
    for _ in 0..4 {
        let pair = Pair::new(1 << 20);
        for _ in 0..8 {
            pair.post(&[(0, 1 << 20, 0)]);
        }
        pair.send(0, 1 << 20, 0);
    }
}

#[test]
fn threads_have_their_comms_for_themselves() {
    thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let pairs: Vec<Pair> = (0..4).map(|_| Pair::new(4096)).collect();
                for round in 0..50 {
                    let requests: Vec<_> = pairs
                        .iter()
                        .flat_map(|pair| {
                            let recv = pair.post(&[(0, 4096, round)]);
                            [pair.send(0, 4096, round), recv]
                        })
                        .collect();
                    wait(&requests);
                }
                for pair in &pairs {
                    assert_eq!(pair.to, pair.from, "thread {seed}");
                }
            });
        }
    });
}
