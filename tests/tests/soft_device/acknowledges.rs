//! Tests which acknowledges wait, and for what.

use invar_core::nic::{QpOptions, RecvWr, SendOpcode};
use invar_linux::soft::AckDelay;

use super::{carry, connect, deliver, pair, target};

/// Settings under which acknowledges wait for a request to go with.
const WAITS: AckDelay = AckDelay { waits_since_ns: 0, deferred_since_ns: u64::MAX };

#[test]
fn the_acknowledge_of_a_short_message_may_wait_for_a_request_and_that_of_a_long_one_may_not() {
    for (len, waits) in [(1024, true), (1025, false)] {
        let [mut a, mut b] = pair("::1", 2048, QpOptions::empty());
        a.write(a.qpn, len, target(&b));
        a.transmit(0);
        deliver(&mut a, &mut b, 1, |_| false);
        b.device.transmit_urgent(1, WAITS, &mut b.wire);
        assert_eq!((b.wire.trains.is_empty(), b.device.is_ready()), (waits, waits), "{len}");
        // An acknowledge does not wait if a long message follows.
        a.write(a.qpn, 1025, target(&b));
        a.transmit(0);
        deliver(&mut a, &mut b, 1, |_| false);
        b.device.transmit_urgent(1, WAITS, &mut b.wire);
        assert!(!b.device.is_ready());
        carry(&mut b, &mut a, 0, |_| false);
        assert_eq!(a.poll().len(), 2);
    }
    let [mut a, mut b] = pair("::1", 64, QpOptions::empty());
    a.write(a.qpn, 8, target(&b));
    a.transmit(0);
    deliver(&mut a, &mut b, 1, |_| false);
    b.device.transmit_urgent(1, WAITS, &mut b.wire);
    b.write(b.qpn, 8, target(&a));
    b.device.transmit_urgent(1, WAITS, &mut b.wire);
    let trains: Vec<usize> = b.wire.trains.iter().map(|train| train.datagrams.len()).collect();
    assert_eq!((trains, b.device.is_ready()), (vec![2], false));
}

#[test]
fn acknowledges_of_many_queue_pairs_do_not_wait() {
    let [mut a, mut b] = pair("::1", 64, QpOptions::empty());
    for waiting in 1..20 {
        let qpns = [a.create_qp(), b.create_qp()];
        connect([&mut a, &mut b], qpns);
        a.write(qpns[0], 8, target(&b));
        a.transmit(0);
        deliver(&mut a, &mut b, 1, |_| false);
        b.device.transmit_urgent(1, WAITS, &mut b.wire);
        let sent = b.wire.packets().len();
        assert!(waiting - sent <= 8 && (sent == 0 || waiting > 8), "{sent} of {waiting}");
    }
    b.transmit(0);
    assert_eq!(b.wire.packets().len(), 19);
}

/// `a` writes to `b` 12 times, and `b` sends six requests each time. These are more requests than an
/// acknowledge waits for if they leave at once. Returns the packets of each train of `b`, and whether
/// an acknowledge is due afterwards.
fn answers(opcode: SendOpcode, deferred_since_ns: u64) -> (Vec<usize>, bool) {
    let [mut a, mut b] = pair("::1", 64, QpOptions::empty());
    let mut trains = Vec::new();
    for now in 1..=12 {
        // A WRITE without an immediate leaves the receives posted.
        let _ = b.device.post_recv(b.qpn, &RecvWr::default());
        a.post(a.qpn, opcode, 8, target(&b));
        a.transmit(now);
        deliver(&mut a, &mut b, now, |_| false);
        (0..6).for_each(|_| b.write(b.qpn, 8, target(&a)));
        let delay = AckDelay { waits_since_ns: 0, deferred_since_ns };
        b.device.transmit_urgent(now, delay, &mut b.wire);
        trains.extend(b.wire.trains.iter().map(|train| train.datagrams.len()));
        deliver(&mut b, &mut a, now, |_| false);
    }
    let due = b.device.is_ready();
    b.transmit(12);
    deliver(&mut b, &mut a, 12, |_| false);
    assert_eq!(a.poll().len(), 12, "all are acknowledged");
    (trains, due)
}

#[test]
fn the_acknowledge_of_writes_that_nobody_is_told_of_leaves_requests_to_themselves_until_it_is_old()
{
    let write = SendOpcode::RdmaWrite;
    assert_eq!(answers(write, 0), (vec![6; 12], true));
    assert_eq!(answers(write, u64::MAX), (vec![7; 12], false));
    // The messages of times 1 to 5 are old enough for an acknowledge in the next train. From 6 on they
    // are not.
    let trains = [vec![7; 5], vec![6; 7]].concat();
    assert_eq!(answers(write, 5), (trains, true));
}

#[test]
fn the_acknowledge_of_messages_that_somebody_is_told_of_goes_with_the_next_request() {
    assert_eq!(answers(SendOpcode::RdmaWriteWithImm, 0), (vec![7; 12], false));
}
