//! Tests when a device asks to be called again, and what it does then.

use invar_core::nic::{QpOptions, WcStatus};
use invar_core::roce::qp::{Tuning, ack_timeout_ns};

use super::{carry, pair, target};

const MS: u64 = 1_000_000;

#[test]
fn a_lost_packet_is_sent_again_when_its_timer_goes_off_and_the_device_tells_when() {
    let [mut a, mut b] = pair("::1", 64, QpOptions::empty());
    a.memory.write_at(0, b"payload!").unwrap();
    a.write(a.qpn, 8, target(&b));
    a.transmit(0);
    carry(&mut a, &mut b, 0, |_| true);
    let deadline = a.device.next_deadline_ns().unwrap();
    assert_eq!(deadline, Tuning::default().probe_ns);
    a.device.handle_timers(deadline - 1);
    a.transmit(deadline - 1);
    assert_eq!(a.wire.trains.len(), 0);
    a.device.handle_timers(deadline);
    a.transmit(deadline);
    carry(&mut a, &mut b, deadline, |_| false);
    carry(&mut b, &mut a, deadline, |_| false);
    assert_eq!(a.poll()[0].status, WcStatus::SUCCESS);
    let mut bytes = [0; 8];
    b.memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"payload!");
    // The rest of the timer does nothing, and then no timer is left.
    while let Some(deadline) = a.device.next_deadline_ns() {
        a.device.handle_timers(deadline);
        a.transmit(deadline);
    }
    assert_eq!(a.wire.trains.len(), 0);
}

#[test]
fn a_timer_that_is_sooner_than_the_one_under_way_is_not_late() {
    let [mut a, mut b] = pair("::1", 4096, QpOptions::ADAPTIVE_ROUTING);
    // The second end waits for an acknowledge.
    b.write(b.qpn, 8, target(&a));
    b.transmit(0);
    b.wire.trains.clear();
    assert_eq!(b.device.next_deadline_ns(), Some(Tuning::default().probe_ns));
    // The second end also sees a hole where the first packet is lost.
    a.write(a.qpn, 3000, target(&b));
    a.transmit(0);
    let mut first = true;
    carry(&mut a, &mut b, 0, |_| std::mem::take(&mut first));
    assert!(b.device.next_deadline_ns() <= Some(Tuning::default().hole_age_ns));
}

#[test]
fn a_peer_that_never_answers_is_given_up_after_all_retries_and_not_before() {
    let [mut a, b] = pair("::1", 64, QpOptions::empty());
    a.write(a.qpn, 8, target(&b));
    a.transmit(5);
    let end = 5 + 3 * ack_timeout_ns(14).unwrap();
    while let Some(deadline) = a.device.next_deadline_ns() {
        assert!(deadline <= end);
        assert!(a.poll().is_empty());
        a.device.handle_timers(deadline);
        a.transmit(deadline);
        if deadline == end {
            break;
        }
    }
    assert_eq!(a.poll()[0].status, WcStatus::RETRY_EXC_ERR);
}

#[test]
fn a_thousand_timers_go_off_in_order_each_at_its_time() {
    let [mut a, b] = pair("::1", 64, QpOptions::empty());
    let peer = b.address();
    let qpns: Vec<u32> = (0..1000).map(|_| a.create_qp()).collect();
    for (i, &qpn) in (0..).zip(&qpns) {
        a.start(qpn, peer, b.qpn, QpOptions::empty());
        // The times are in no order.
        let now = i * 7919 % 1000 * MS / 1000;
        a.write(qpn, 8, target(&b));
        a.transmit(now);
    }
    for &qpn in qpns.iter().step_by(2) {
        a.device.destroy_qp(MS, qpn);
    }
    a.wire.trains.clear();
    let mut last = 0;
    let mut resent = 0;
    let end = MS + Tuning::default().probe_ns;
    while let Some(deadline) = a.device.next_deadline_ns()
        && deadline <= end
    {
        assert!(deadline >= last);
        last = deadline;
        a.device.handle_timers(deadline);
        a.transmit(deadline);
        resent += a.wire.packets().len();
        a.wire.trains.clear();
    }
    assert_eq!(resent, 500);
}
