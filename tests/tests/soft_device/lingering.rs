//! Tests destroyed queue pairs: their peers learn of every message that arrived.

use invar_core::nic::{QpOptions, WcStatus};
use invar_core::roce::qp::Tuning;

use super::{End, PORTS, carry, deliver, pair, target};

/// The retry time of [`End::start`]: three timeouts of code 14.
const RETRY_TIME_NS: u64 = 3 * (4096 << 14);

/// `a` writes to `b`, and `b` destroys its queue pair before it has sent anything.
fn written_and_destroyed(options: QpOptions) -> [End; 2] {
    let [mut a, mut b] = pair("::1", 8, options);
    a.write(a.qpn, 8, target(&b));
    a.transmit(0);
    deliver(&mut a, &mut b, 0, |_| false);
    b.device.destroy_qp(0, b.qpn);
    [a, b]
}

/// Lets `a` send its request again, and `b` answer it if `b` still does.
fn repeat(a: &mut End, b: &mut End, now: u64) {
    a.device.handle_timers(now);
    a.transmit(now);
    carry(a, b, now, |_| false);
    deliver(b, a, now, |_| false);
}

#[test]
fn the_acknowledge_that_a_destroyed_queue_pair_owes_is_sent() {
    for options in [QpOptions::empty(), QpOptions::ADAPTIVE_ROUTING] {
        let [mut a, mut b] = written_and_destroyed(options);
        b.transmit(0);
        deliver(&mut b, &mut a, 0, |_| false);
        assert_eq!(a.poll()[0].status, WcStatus::SUCCESS, "{options:?}");
    }
}

#[test]
fn a_request_that_is_sent_again_is_acknowledged_after_its_queue_pair_is_gone() {
    for options in [QpOptions::empty(), QpOptions::ADAPTIVE_ROUTING] {
        let [mut a, mut b] = written_and_destroyed(options);
        b.transmit(0);
        deliver(&mut b, &mut a, 0, |_| true);
        repeat(&mut a, &mut b, Tuning::default().probe_ns);
        assert_eq!(a.poll()[0].status, WcStatus::SUCCESS, "{options:?}");
    }
}

#[test]
fn a_request_that_was_not_carried_out_is_not_acknowledged() {
    let [mut a, mut b] = written_and_destroyed(QpOptions::empty());
    a.write(a.qpn, 8, target(&b));
    a.transmit(0);
    carry(&mut a, &mut b, 0, |_| false);
    deliver(&mut b, &mut a, 0, |_| false);
    assert_eq!(a.poll().len(), 1, "the first one only");
    repeat(&mut a, &mut b, Tuning::default().probe_ns);
    assert_eq!(a.poll(), []);
}

#[test]
fn a_queue_pair_answers_no_longer_than_its_peer_may_retry() {
    for (now, answers) in [(RETRY_TIME_NS - 1, 1), (RETRY_TIME_NS, 0)] {
        let [mut a, mut b] = written_and_destroyed(QpOptions::empty());
        b.transmit(0);
        b.wire.trains.clear();
        a.device.handle_timers(Tuning::default().probe_ns);
        a.transmit(Tuning::default().probe_ns);
        carry(&mut a, &mut b, now, |_| false);
        assert_eq!(b.wire.packets().len(), answers);
    }
}

#[test]
fn a_stranger_gets_no_answer_from_a_queue_pair_that_is_gone() {
    let [mut a, mut b] = written_and_destroyed(QpOptions::empty());
    b.transmit(0);
    b.wire.trains.clear();
    a.device.handle_timers(Tuning::default().probe_ns);
    a.transmit(Tuning::default().probe_ns);
    for datagram in a.wire.packets() {
        b.device.handle_datagram(1, ([10, 0, 0, 1], PORTS[0]).into(), &datagram);
    }
    b.transmit(1);
    assert_eq!(b.wire.packets().len(), 0);
    assert_eq!(b.device.counters().wrong_source, 1);
}

#[test]
fn of_very_many_the_oldest_gives_way() {
    let [mut a, mut b] = pair("::1", 8, QpOptions::empty());
    let (peer, qpns) = (a.address(), Vec::from_iter((0..5000).map(|_| b.create_qp())));
    for &qpn in &qpns {
        b.start(qpn, peer, a.qpn, QpOptions::empty());
        b.device.destroy_qp(0, qpn);
    }
    // The device still knows the peer of a queue pair that lingers.
    let mut lingers = |qpn| {
        let again = a.create_qp();
        a.start(again, b.address(), qpn, QpOptions::empty());
        a.write(again, 8, (0, 0));
        a.transmit(0);
        let datagram = a.wire.packets().remove(0);
        a.wire.trains.clear();
        let before = b.device.counters().wrong_source;
        b.device.handle_datagram(0, ([10, 0, 0, 1], PORTS[0]).into(), &datagram);
        b.device.counters().wrong_source > before
    };
    assert_eq!([lingers(qpns[0]), lingers(qpns[4999])], [false, true]);
}
