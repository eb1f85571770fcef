//! Ends over RDMA devices sleep while they wait, and completion channels wake them.

use std::time::Duration;

use invar_testkit::child;
use invar_testkit::sleepers::{pair, round_trips, settings};

const BYTES: usize = 8;
/// The time for which a receive waits in vain.
const WAIT: Duration = Duration::from_secs(1);
const ROUND_TRIPS: usize = 500;
/// If nobody woke the sleepers, each round trip would take 10 ms or more.
const ROUND_TRIPS_WITHIN: Duration = Duration::from_millis(9 * ROUND_TRIPS as u64);

/// Runs a test in a process of its own whose libibverbs is this library.
fn on_the_library<F: FnOnce()>(test: F) {
    let library = std::env::current_exe().unwrap().with_file_name("libinvar_soft_verbs.so");
    child::run(
        |process| {
            process
                .envs([("LD_PRELOAD", library.as_os_str()), ("INVAR_SOFT_DEVICES", "lo".as_ref())]);
        },
        test,
    );
}

#[test]
fn a_receive_that_waits_sleeps_until_a_completion_comes() {
    on_the_library(|| {
        let [sleeping, looking] = [true, false].map(|sleeps| {
            let [mut ours, _theirs] = pair(&settings("ib").sleeps(sleeps), BYTES);
            ours.wait_in_vain(WAIT)
        });
        // A waiter without an alarm looks every millisecond.
        assert!(sleeping * 4 < looking, "{sleeping:?} with an alarm, {looking:?} without");
    });
}

#[test]
fn sleeping_ends_are_woken_by_each_message() {
    on_the_library(|| {
        let took = round_trips(pair(&settings("ib"), BYTES), ROUND_TRIPS);
        assert!(took < ROUND_TRIPS_WITHIN, "{took:?}");
    });
}
