//! Tests messages between both ends.

use std::thread;

use super::rig::*;

#[test]
fn a_message_arrives_with_its_size() {
    let pair = Pair::new(1 << 20);
    for (size, room) in [(0, 0), (0, 8), (8, 8), (1, 4096), (1 << 20, 1 << 20)] {
        let recv = pair.post(&[(0, room, 5)]);
        let send = pair.send(0, size, 5);
        let sizes = wait(&[send, recv]);
        assert_eq!((sizes[0][0], sizes[1][0]), (size as c_int, size as c_int));
        assert_eq!(pair.to[..size], pair.from[..size]);
    }
}

#[test]
fn a_group_has_the_size_of_each_of_its_messages() {
    let pair = Pair::new(8 << 10);
    let room = |i: usize| (i << 10, 1 << 10, i as c_int);
    let recv = pair.post(&(0..8).map(room).collect::<Vec<_>>());
    // The sends come in another order than the receives.
    let sends: Vec<_> =
        [3, 1, 7, 0, 2, 6, 5, 4].map(|i| pair.send(i << 10, 100 * i, i as c_int)).to_vec();
    wait(&sends);
    let sizes = wait(&[recv])[0];
    assert_eq!(sizes, std::array::from_fn(|i| 100 * i as c_int));
    for i in 0..8 {
        let bytes = i << 10..(i << 10) + 100 * i;
        assert_eq!(pair.to[bytes.clone()], pair.from[bytes], "buffer {i}");
    }
}

#[test]
fn thirty_two_receives_of_eight_buffers_go_before_the_first_test() {
    const SIZE: usize = 64;
    let pair = Pair::new(32 * 8 * SIZE);
    let mut requests = Vec::new();
    for row in 0..32 {
        let buf = |i: usize| ((8 * row + i) * SIZE, SIZE, i as c_int);
        requests.push(pair.post(&(0..8).map(buf).collect::<Vec<_>>()));
    }
    for i in 0..32 * 8 {
        requests.push(pair.send(i * SIZE, SIZE, (i % 8) as c_int));
    }
    // The test waits for the last requests first.
    requests.reverse();
    wait(&requests);
    assert_eq!(pair.to, pair.from);
}

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
