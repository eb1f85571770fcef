//! Calls that wait sleep, and are woken in time.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use invar::Settings;
use invar_testkit::library::two_ranks;
use invar_testkit::sleepers::{self, processor_time, settings};

const BYTES: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(60);
/// The time for which a test waits.
const WAIT: Duration = Duration::from_secs(1);
/// The most processor time that such a wait may take: a tenth.
const BUSY_MAX: Duration = Duration::from_millis(100);
/// The round trips of a test, and the most time that they may take together. If nobody woke the sleepers, each
/// round trip would take 10 ms or more.
const ROUND_TRIPS: usize = 2000;
const ROUND_TRIPS_WITHIN: Duration = Duration::from_secs(18);

#[test]
fn a_receive_that_waits_takes_little_processor_time() {
    for transport in ["socket", "soft"] {
        let [mut ours, _theirs] = sleepers::pair(&settings(transport), BYTES);
        let busy = ours.wait_in_vain(WAIT);
        assert!(busy < BUSY_MAX, "{transport}: {busy:?} of {WAIT:?}");
    }
}

#[test]
fn sleeping_ends_are_woken_by_each_message_and_each_posted_receive() {
    for transport in ["socket", "soft"] {
        let took = sleepers::round_trips(sleepers::pair(&settings(transport), BYTES), ROUND_TRIPS);
        assert!(took < ROUND_TRIPS_WITHIN, "{transport}: {took:?}");
    }
}

/// Lets the peer of a receive go while the receive sleeps for two seconds. Returns the time until the receive ends.
fn time_until_the_peer_is_missed(transport: &str) -> Duration {
    let [mut ours, theirs] = sleepers::pair(&settings(transport), BYTES);
    thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let error = ours.recv.recv(&ours.region, 0..BYTES, 1, TIMEOUT).unwrap_err();
            assert!(error.is_connection_lost(), "{error}");
            Instant::now()
        });
        // The sleeps before took 850 ms.
        thread::sleep(Duration::from_millis(1200));
        let gone = Instant::now();
        drop(theirs);
        waiting.join().unwrap().saturating_duration_since(gone)
    })
}

#[test]
fn a_receive_that_sleeps_hears_at_once_that_its_peer_has_gone() {
    for transport in ["socket", "soft"] {
        // Another program may keep the processors once, but not each time.
        let times: Vec<Duration> =
            (0..3).map(|_| time_until_the_peer_is_missed(transport)).collect();
        let least = times.iter().min().unwrap();
        assert!(*least < Duration::from_secs(1), "{transport}: {times:?}");
    }
}

#[test]
fn a_long_message_behind_many_short_ones_wakes_both_ends() {
    // So many bytes went ahead of their buffers that the long message may not.
    const SHORT: usize = 32 << 10;
    const LONG: usize = 15 << 18;
    for transport in ["socket", "soft"] {
        let [mut ours, mut theirs] = sleepers::pair(&settings(transport), LONG);
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..15 {
                    theirs.recv.recv(&theirs.region, 0..16, 1, TIMEOUT).unwrap();
                    theirs.recv.recv(&theirs.region, 0..SHORT, 1, TIMEOUT).unwrap();
                }
                theirs.recv.recv(&theirs.region, 0..16, 1, TIMEOUT).unwrap();
                theirs.recv.recv(&theirs.region, 0..LONG, 1, TIMEOUT).unwrap();
            });
            for _ in 0..15 {
                ours.send.send(&ours.region, 0..16, 1, TIMEOUT).unwrap();
                ours.send.send(&ours.region, 0..SHORT, 1, TIMEOUT).unwrap();
            }
            ours.send.send(&ours.region, 0..16, 1, TIMEOUT).unwrap();
            ours.send.send(&ours.region, 0..LONG, 1, TIMEOUT).unwrap();
        });
        let took = start.elapsed();
        assert!(took < ROUND_TRIPS_WITHIN, "{transport}: {took:?}");
    }
}

/// Settings for ranks that share memory, or that go over a network.
fn every_way() -> [Settings; 3] {
    let network = |transport| settings(transport).shared_memory(false);
    [settings("auto"), network("socket"), network("soft")]
}

#[test]
fn a_rank_that_waits_takes_little_processor_time() {
    for settings in every_way() {
        let (went, comes): (Sender<()>, Receiver<()>) = channel();
        let comes = std::sync::Mutex::new(comes);
        let [_, busy] = two_ranks(&settings, |communicator| {
            communicator.barrier().unwrap();
            if communicator.rank() == 0 {
                // The other rank has begun to wait.
                comes.lock().unwrap().recv().unwrap();
                thread::sleep(WAIT);
                communicator.barrier().unwrap();
                return Duration::ZERO;
            }
            went.send(()).unwrap();
            let before = processor_time();
            communicator.barrier().unwrap();
            processor_time() - before
        });
        assert!(busy < BUSY_MAX, "{busy:?} of {WAIT:?}");
    }
}

#[test]
fn sleeping_ranks_are_woken_by_each_message() {
    for settings in every_way() {
        let start = Instant::now();
        two_ranks(&settings, |communicator| {
            for _ in 0..ROUND_TRIPS {
                communicator.barrier().unwrap();
            }
        });
        let took = start.elapsed();
        assert!(took < ROUND_TRIPS_WITHIN, "{}: {took:?}", settings.transport().as_str());
    }
}
