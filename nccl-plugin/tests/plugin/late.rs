//! Tests that the sender waits for a receiver that does not test for a while.

use std::thread;
use std::time::Duration;

use invar_testkit::tcp_times::hasten;
use invar_testkit::wait::throughout;

use super::rig::*;

const LONG: usize = 48 << 20;
/// Number of messages that are sent before the receiver asks for them.
const AHEAD: usize = 500_000;

/// Runs the test; `hurry` says whether TCP's timeouts are shortened.
fn check(hurry: bool, late: Duration) {
    let pair = Pair::new(LONG);
    let sent: Vec<_> = (0..4).map(|i| pair.send(i * AHEAD, AHEAD, 1)).collect();
    wait(&sent);
    if hurry {
        hasten();
    }
    thread::sleep(late);
    let posted: Vec<_> = (0..4).map(|i| pair.post(&[(i * AHEAD, AHEAD, 1)])).collect();
    assert!(wait(&posted).iter().all(|sizes| sizes[0] == AHEAD as c_int));
    assert!(pair.to[..4 * AHEAD] == pair.from[..4 * AHEAD]);

    let recv = pair.post(&[(0, LONG, 2)]);
    let send = until("a receive", || {
        assert_eq!(test(recv), Ok(None));
        let (code, request) = pair.isend(0, LONG, 2);
        assert_eq!(code, Code::SUCCESS);
        (!request.is_null()).then_some(request)
    });
    throughout(late, || assert_eq!(test(send), Ok(None), "more than fits into the sockets"));
    wait(&[send, recv]);
    assert!(pair.to == pair.from);
}

#[test]
fn a_receiver_that_is_late_is_waited_for() {
    check(true, Duration::from_secs(3));
}

#[test]
#[ignore = "takes 80 s, without haste"]
fn a_receiver_that_is_40_s_late_is_waited_for() {
    check(false, Duration::from_secs(40));
}
