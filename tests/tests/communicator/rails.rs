//! A communicator over two rails works on while the cable of one of them is out, and takes that rail back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use invar::RedOp;
use invar_testkit::namespaces::Hosts;
use invar_testkit::wait::watch;

use crate::operations::check_type;
use crate::rig::{ranks_on, set};

/// Bytes that show that a rail carries data.
const MANY: u64 = 1 << 20;
/// The time limit for all work, if the cables are not done before.
const BOUND: Duration = Duration::from_secs(120);

#[test]
fn collectives_over_two_rails_go_on_while_a_cable_is_out_and_use_it_again() {
    const RAILS: &str = "soft0+soft1";
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.add_cable("v1", 1500, ["198.51.100.1", "198.51.100.2"]).unwrap();
    let (start, is_over) = (Instant::now(), AtomicBool::new(false));
    let sends_more_over = |link| {
        let sent = || hosts.sent_bytes(1, link).unwrap();
        let before = sent();
        watch(link, || sent() >= before + MANY);
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for host in 0..2 {
                sends_more_over("v1");
                hosts.ip(host, "link set v1 down").unwrap();
                sends_more_over("v0");
                hosts.ip(host, "link set v1 up").unwrap();
            }
            sends_more_over("v1");
            is_over.store(true, Ordering::Release);
        });
        let soft = set(&[("INVAR_TRANSPORT", "soft"), ("INVAR_RAILS", RAILS)]);
        ranks_on(&hosts, &[0, 1], &soft.communicator_nic(RAILS), |communicator| {
            let mut over = [0];
            while over == [0] {
                check_type::<i32>(&communicator, &[50_001], &[RedOp::Sum]);
                // Both ranks must stop after the same round.
                over = [i32::from(is_over.load(Ordering::Acquire) || start.elapsed() > BOUND)];
                communicator.all_reduce_in_place(&mut over, RedOp::Max).unwrap();
            }
        });
    });
}
