//! READs and WRITEs of a peer are served while the process that owns the memory does not poll.

use std::sync::atomic::Ordering;

use invar_core::nic::{Memory, SendOpcode, WcStatus};
use invar_linux::soft::{ImpairmentConfig, SoftConfig, SoftNic};
use invar_testkit::end::{End, Link};
use invar_testkit::wait::until;

fn pair(len: usize) -> [End<SoftNic>; 2] {
    let open = |name| SoftNic::open(&SoftConfig::new(name, "[::1]:0".parse().unwrap())).unwrap();
    End::pair([&open("here"), &open("there")], len, &Link::default())
}

#[test]
fn by_a_target_that_never_polled() {
    let [here, there] = pair(256 << 10);
    let bytes = vec![0x5a; 256 << 10];
    here.buffer.memory.write_at(0, &bytes).unwrap();
    here.post(&here.work(SendOpcode::RdmaWrite, bytes.len(), &there));
    assert_eq!(here.wait().status, WcStatus::SUCCESS);
    assert!(there.buffer.read(0, bytes.len()) == bytes);

    there.buffer.memory.write_at(0, &vec![0xa5; bytes.len()]).unwrap();
    here.post(&here.work(SendOpcode::RdmaRead, bytes.len(), &there));
    assert_eq!(here.wait().status, WcStatus::SUCCESS);
    let read = here.buffer.read(0, bytes.len());
    assert!(read.iter().all(|&byte| byte == 0xa5));
}

#[test]
fn by_a_target_that_polled_and_then_stopped() {
    let [here, there] = pair(64);
    for _ in 0..3 {
        assert!(there.has_none());
        here.post(&here.work(SendOpcode::RdmaRead, 64, &there));
        assert_eq!(here.wait().status, WcStatus::SUCCESS);
    }
}

#[test]
fn when_neither_side_polls_a_write_still_arrives_and_is_seen_whole() {
    let [here, there] = pair(32);
    let target = there.buffer.memory.words();
    for round in 1..=20u64 {
        for (word, value) in here.buffer.memory.words().iter().zip([round, !round, 7, round]) {
            word.store(value, Ordering::Relaxed);
        }
        here.post(&here.work(SendOpcode::RdmaWrite, 32, &there));
        // The last word shows that the others have arrived.
        until("slot", || target[3].load(Ordering::Acquire) == round);
        let seen = [0, 1, 2].map(|i| target[i].load(Ordering::Relaxed));
        assert_eq!(seen, [round, !round, 7]);
    }
}

/// Most packets are lost and nobody polls, so the thread has to notice the timer.
fn is_sent_again(polled_before: bool) {
    let mut config = SoftConfig::new("here", "[::1]:0".parse().unwrap());
    config.impairment =
        Some(ImpairmentConfig { drop_ppm: 900_000, seed: 4, ..ImpairmentConfig::default() });
    let nics =
        [&config, &SoftConfig::new("there", config.address)].map(|c| SoftNic::open(c).unwrap());
    let [here, there] = End::pair([&nics[0], &nics[1]], 8, &Link::default());
    if polled_before {
        assert!(here.has_none());
    }
    here.buffer.memory.words()[0].store(77, Ordering::Relaxed);
    here.post(&here.work(SendOpcode::RdmaWrite, 8, &there));
    let target = &there.buffer.memory.words()[0];
    until("write", || target.load(Ordering::Acquire) == 77);
    assert!(nics[0].counters().device.qps.packets_retransmitted > 0, "packets were lost");
}

#[test]
fn what_nobody_waits_for_is_sent_again_after_loss_by_a_thread_that_slept() {
    is_sent_again(false);
}

#[test]
fn what_nobody_waits_for_is_sent_again_after_loss_by_a_thread_that_stood_by() {
    is_sent_again(true);
}
