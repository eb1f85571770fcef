//! The alarm of a completion queue.

use std::os::fd::{BorrowedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};

use super::*;

/// Arms the queue of a rig. Returns the descriptors, and whether they tell of all.
fn arm(rig: &Rig, writes: bool) -> (Vec<RawFd>, bool) {
    let mut ready = Vec::new();
    let is_told = rig.nic.arm(&rig.cq, writes, &mut |fd| ready.push(fd));
    (ready, is_told)
}

fn is_readable(fd: RawFd) -> bool {
    // SAFETY: The descriptor is of a queue that exists.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut polled, Some(&Default::default())) == Ok(1)
}

#[test]
fn a_completion_wakes_the_sleeper_once_and_its_event_is_acknowledged() {
    let rig = Rig::on(&WITH_CHANNELS);
    assert!(rig.fake.calls().is_empty(), "nobody sleeps yet");
    let (ready, is_told) = arm(&rig, false);
    let [fd] = ready[..] else { panic!("one descriptor: {ready:?}") };
    assert!(is_told && !is_readable(fd));
    for _ in 0..2 {
        rig.fake.complete();
    }
    assert!(is_readable(fd));
    assert_eq!(arm(&rig, false), (vec![fd], true));
    assert!(!is_readable(fd));
    let [asked, acked] = ["req_notify_cq", "ack_cq_event"];
    let calls = [asked, acked, acked, asked];
    assert_eq!(rig.fake.calls(), calls);
    let Rig { qp, cq, pd, nic, fake } = rig;
    drop((cq, nic, pd, qp));
    let ends = ["destroy_qp", "destroy_cq", "destroy_comp_channel", "dealloc_pd", "close_device"];
    assert_eq!(fake.calls(), [&calls[..], &ends].concat());
}

#[test]
fn nothing_tells_of_a_peers_write() {
    let rig = Rig::on(&WITH_CHANNELS);
    let (ready, is_told) = arm(&rig, true);
    assert_eq!((ready.len(), is_told), (1, false), "completions wake, and the waiter looks too");
}

#[test]
fn a_queue_without_a_channel_has_no_alarm() {
    let sleeps = VerbsConfig::new("fake0");
    let polls = VerbsConfig { channels: false, ..sleeps.clone() };
    for (library, config) in [(&LIBRARY, sleeps), (&WITH_CHANNELS, polls)] {
        let rig = Rig::with(library, &config);
        assert_eq!(arm(&rig, false), (vec![], false));
        let Rig { qp, cq, pd, nic, fake } = rig;
        drop((qp, cq, pd, nic));
        assert!(!fake.calls().contains(&"destroy_comp_channel"));
    }
}

#[test]
fn a_device_that_is_gone_keeps_nobody_awake() {
    let rig = Rig::on(&WITH_CHANNELS);
    rig.fake.unplug();
    assert_eq!(arm(&rig, false), (vec![], false));
    assert!(rig.fake.calls().is_empty());
}

#[test]
fn queues_with_channels_take_the_vectors_of_the_device_in_turn() {
    const ROUNDS: usize = 2;
    let rig = Rig::on(&WITH_CHANNELS);
    let more: Vec<Cq> =
        (1..ROUNDS * VECTORS as usize).map(|_| rig.nic.create_cq(8).unwrap()).collect();
    let mut vectors = rig.fake.vectors();
    assert!(vectors.windows(2).all(|two| two[1] == (two[0] + 1) % VECTORS), "{vectors:?}");
    vectors.sort_unstable();
    let each: Vec<_> = (0..VECTORS).flat_map(|vector| [vector; ROUNDS]).collect();
    assert_eq!(vectors, each);
    drop((more, rig));

    let rig = Rig::new();
    let _second = rig.nic.create_cq(8).unwrap();
    assert_eq!(rig.fake.vectors(), [0, 0], "a queue without a channel raises no interrupts");
}
