//! Every operation of the software NIC moves exactly the right bytes, over both IP versions and in both
//! modes.

use invar_core::nic::{Nic, QpOptions, Refusal, SendFlags, SendList, SendOpcode, SendWr, WcStatus};
use invar_linux::soft::{SoftConfig, SoftNic};
use invar_testkit::conformance::{Testbed, check_transfers};
use invar_testkit::end::{End, Link};
use invar_testkit::pattern::pattern;
use invar_testkit::wait::until;

const MTU: usize = 4096;
const SIZES: [usize; 9] = [0, 1, 3, MTU - 1, MTU, MTU + 1, 64 << 10, (64 << 10) + 7, 1 << 20];

fn open(ip: &str) -> SoftNic {
    SoftNic::open(&SoftConfig::new("soft", format!("{ip}:0").parse().unwrap())).unwrap()
}

fn all_operations(ip: &str, options: QpOptions) {
    let nics = [open(ip), open(ip)];
    let link = Link { options, ..Link::default() };
    check_transfers(Testbed::in_real_time(nics.clone()), &link, &SIZES);
    for nic in nics {
        let counters = nic.counters();
        let device = counters.device;
        assert_eq!((counters.send_errors, device.icrc_bad, device.malformed), (0, 0, 0));
        let verifies = ip.contains(':') || options.contains(QpOptions::ICRC_MASKS_IP_ID);
        assert_eq!(device.icrc_unverified > 0, !verifies);
    }
}

#[test]
fn over_ipv6() {
    all_operations("[::1]", QpOptions::ICRC_MASKS_IP_ID);
}

#[test]
fn over_ipv4_with_the_identification_masked() {
    all_operations("127.0.0.1", QpOptions::ICRC_MASKS_IP_ID);
}

#[test]
fn over_ipv4_as_with_a_foreign_peer() {
    all_operations("127.0.0.1", QpOptions::empty());
}

#[test]
fn each_packet_of_a_write_by_itself_over_ipv6() {
    all_operations("[::1]", QpOptions::ADAPTIVE_ROUTING);
}

#[test]
fn each_packet_of_a_write_by_itself_over_ipv4() {
    all_operations("127.0.0.1", QpOptions::ADAPTIVE_ROUTING | QpOptions::ICRC_MASKS_IP_ID);
}

#[test]
fn a_list_of_requests_is_posted_up_to_the_one_that_is_refused() {
    let nics = [open("[::1]"), open("[::1]")];
    let [a, b] = End::pair([&nics[0], &nics[1]], 64, &Link::default());
    let good = a.work(SendOpcode::RdmaWrite, 8, &b);
    let long = SendWr { sge: a.sge(0, 65), flags: SendFlags::INLINE, ..good };
    let error = a.nic.post_send(&a.qp, &[good, good, long, good]).unwrap_err();
    assert_eq!(error.index, 2);
    assert_eq!([a.wait().wr_id, a.wait().wr_id], [good.wr_id; 2]);
    assert!(a.has_none());
}

#[test]
fn what_is_posted_ahead_leaves_in_one_train_and_also_where_no_call_follows() {
    let [a, b] = End::pair([&open("[::1]"), &open("[::1]")], 64, &Link::default());
    let post_ahead = |flags| {
        let wr = SendWr { flags, ..a.work(SendOpcode::RdmaWrite, 64, &b) };
        a.nic.post_list_ahead(&a.qp, &mut SendList::new([wr]), 0, &mut Refusal::default()).unwrap();
    };
    let sent = pattern(1, 64);
    a.buffer.write(0, &sent);
    post_ahead(SendFlags::empty());
    until("a write that nobody hurries", || b.buffer.read(0, 64) == sent);

    let trains = || a.nic.counters().device.trains_sent;
    // The NIC's thread may interfere now and then, so retry.
    until("a train of four", || {
        let before = trains();
        (0..3).for_each(|_| post_ahead(SendFlags::empty()));
        post_ahead(SendFlags::SIGNALED);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        trains() - before == 1
    });
}
