//! A sender over TCP waits for a receiver that does not poll for a while.

use std::thread;

use invar_testkit::tcp_times::hasten;
use invar_testkit::wait::throughout;

use crate::*;

const LONG: usize = 48 << 20;
/// The size of messages that are sent before their receives are posted.
const AHEAD: usize = 500_000;

/// Lets the receiver pause for the time `late`. `hurry` shortens TCP's time-outs.
fn check(hurry: bool, late: Duration) {
    let timeout = late + LIMIT;
    let mut pair = Pair::on(over_tcp(), &Settings::default(), LONG);
    for _ in 0..4 {
        pair.send.send(&pair.from, 0..AHEAD, 1, timeout).unwrap();
    }
    if hurry {
        hasten();
    }
    thread::sleep(late);
    for _ in 0..4 {
        assert_eq!(pair.recv.recv(&pair.to, 0..AHEAD, 1, timeout).unwrap(), AHEAD);
        assert!(content(&pair.to, AHEAD) == pattern(0, AHEAD));
    }

    let receive = pair.recv.irecv(&[(&pair.to, 0..LONG, 2)]).unwrap().unwrap();
    let send = until("a slot", || {
        assert!(pair.recv.test(&receive).unwrap().is_none());
        pair.send.isend(&pair.from, 0..LONG, 2).unwrap()
    });
    throughout(late, || {
        assert!(pair.send.test(&send).unwrap().is_none(), "more than fits into the sockets");
    });
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(pair.send.wait(&send, timeout).unwrap(), LONG));
        assert_eq!(pair.recv.wait(&receive, timeout).unwrap().sizes(), [LONG]);
    });
    assert!(content(&pair.to, LONG) == pattern(0, LONG));
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
