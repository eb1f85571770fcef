//! Messages arrive whole and in the right place.

use crate::*;

#[test]
fn messages_of_all_sizes_arrive_in_every_mode() {
    let base = Settings::default();
    let modes = [
        base.clone(),
        base.clone().qps(4),
        base.clone().adaptive_routing(true),
        base.clone().qps(3).adaptive_routing(true).fifo_depth(8),
    ];
    const LONGEST: usize = 300_000;
    for settings in modes {
        let mut pair = Pair::new(&settings, LONGEST);
        for len in [0, 1, 127, 4096, 4097, LONGEST, 8] {
            pair.to.write_at(0, &[0; LONGEST]).unwrap();
            let receive = pair.recv.irecv(&[(&pair.to, 0..LONGEST, 5)]).unwrap().unwrap();
            let send = pair.isend(len, 5);
            let received = pair.recv.wait(&receive, LIMIT).unwrap();
            assert_eq!(received.sizes(), [len], "{settings:?}");
            assert_eq!(pair.send.wait(&send, LIMIT).unwrap(), len);
            assert!(content(&pair.to, len) == pattern(0, len), "{len} bytes, {settings:?}");
            let after = content(&pair.to, LONGEST).split_off(len);
            assert!(after.iter().all(|byte| *byte == 0), "bytes after {len}, {settings:?}");
        }
    }
}

#[test]
fn the_messages_of_a_group_find_their_buffers_by_tag_and_tell_their_sizes() {
    let mut pair = Pair::new(&Settings::default(), 8 * 100);
    let to: Vec<_> = (0..8).map(|_| MemoryRegion::new(&pair.device, 100).unwrap()).collect();
    let bufs: Vec<_> = (0..8).map(|i| (&to[i], 0..100, i as u32)).collect();
    let receive = pair.recv.irecv(&bufs).unwrap().unwrap();
    let sends: Vec<Request> = (0..8).rev().map(|i| pair.isend(10 * i as usize, i)).collect();
    let received = pair.recv.wait(&receive, LIMIT).unwrap();
    assert_eq!(received.sizes(), [0, 10, 20, 30, 40, 50, 60, 70]);
    for (i, region) in to.iter().enumerate() {
        let mut expected = pattern(0, 10 * i);
        expected.resize(100, 0);
        assert_eq!(content(region, 100), expected, "buffer {i}");
    }
    for (send, i) in sends.iter().zip((0..8).rev()) {
        assert_eq!(pair.send.wait(send, LIMIT).unwrap(), 10 * i);
    }
}

#[test]
fn a_comm_carries_as_many_requests_as_it_has_and_then_says_not_yet() {
    let settings = Settings::default().fifo_depth(16);
    let mut pair = Pair::new(&settings, 16);
    for _ in 0..3 {
        let receives: Vec<Request> = (0..16)
            .map(|i| pair.recv.irecv(&[(&pair.to, i..i + 1, 0)]).unwrap().unwrap())
            .collect();
        assert!(pair.recv.irecv(&[(&pair.to, 0..1, 0)]).unwrap().is_none());
        let sends: Vec<Request> = (0..16)
            .map(|i| until("a slot", || pair.send.isend(&pair.from, i..i + 1, 0).unwrap()))
            .collect();
        assert!(pair.send.isend(&pair.from, 0..1, 0).unwrap().is_none());
        for (receive, send) in receives.iter().zip(&sends).rev() {
            assert_eq!(pair.recv.wait(receive, LIMIT).unwrap().sizes(), [1]);
            assert_eq!(pair.send.wait(send, LIMIT).unwrap(), 1);
        }
        assert_eq!(content(&pair.to, 16), pattern(0, 16));
    }
}

#[test]
fn regions_that_are_dropped_stay_until_their_requests_are_done() {
    const BYTES: usize = 1 << 20;
    let mut pair = Pair::new(&Settings::default(), BYTES);
    let to = MemoryRegion::new(&pair.device, BYTES).unwrap();
    let receive = pair.recv.irecv(&[(&to, 0..BYTES, 1), (&pair.to, 0..BYTES, 2)]).unwrap();
    drop(to);
    let first = pair.isend(BYTES, 1);
    let from = std::mem::replace(&mut pair.from, MemoryRegion::new(&pair.device, 1).unwrap());
    let second = until("a slot", || pair.send.isend(&from, 0..BYTES, 2).unwrap());
    drop(from);
    let received = pair.recv.wait(&receive.unwrap(), LIMIT).unwrap();
    assert_eq!(received.sizes(), [BYTES; 2]);
    pair.send.wait(&first, LIMIT).unwrap();
    pair.send.wait(&second, LIMIT).unwrap();
    assert!(content(&pair.to, BYTES) == pattern(0, BYTES));
}

#[test]
fn comms_and_memory_can_go_to_another_thread() {
    let Pair { mut send, mut recv, from, to, .. } = Pair::new(&Settings::default(), 4096);
    let sender = std::thread::spawn(move || send.send(&from, 0..4096, 9, LIMIT));
    assert_eq!(recv.recv(&to, 0..4096, 9, LIMIT).unwrap(), 4096);
    assert_eq!(sender.join().unwrap().unwrap(), 4096);
    assert!(content(&to, 4096) == pattern(0, 4096));
}
