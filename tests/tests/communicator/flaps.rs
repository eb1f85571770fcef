//! A cable that is pulled and put back ends no work over the software NIC.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use invar::RedOp;
use invar_testkit::namespaces::Hosts;

use crate::rig::{ranks_on, set};

const COUNT: usize = 1 << 16;
/// The time for which the cable is out: longer than all retries of a queue pair.
const OUTAGE: Duration = Duration::from_millis(900);
const FLAPS: usize = 3;
/// The time limit for all work after the last outage.
const BOUND: Duration = Duration::from_secs(40);

#[test]
fn ranks_work_on_after_their_cable_was_out() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for flap in 0..FLAPS {
                thread::sleep(Duration::from_millis(400));
                hosts.ip(flap % 2, "link set v0 down").unwrap();
                thread::sleep(OUTAGE);
                hosts.ip(flap % 2, "link set v0 up").unwrap();
            }
            over.store(true, Ordering::Release);
        });
        let soft = set(&[("INVAR_TRANSPORT", "soft"), ("NCCL_IB_TIMEOUT", "13")]);
        let rounds = ranks_on(&hosts, &[0, 1], &soft, |communicator| {
            let (mut rounds, mut after) = (0, None);
            // Both ranks must stop after the same round.
            loop {
                let done = over.load(Ordering::Acquire) && rounds > 50;
                let mut data = vec![rounds as f32 + 1.0; COUNT];
                data[0] = if done { 1.0 } else { 0.0 };
                communicator.all_reduce_in_place(&mut data, RedOp::Sum).unwrap();
                assert!(data[1..].iter().all(|sum| *sum == 2.0 * (rounds as f32 + 1.0)));
                rounds += 1;
                if data[0] == 2.0 {
                    return rounds;
                }
                if done {
                    let since: &Instant = after.get_or_insert_with(Instant::now);
                    assert!(since.elapsed() < BOUND, "the other rank does not see the end");
                }
            }
        });
        assert_eq!(rounds[0], rounds[1]);
    });
}

#[test]
fn a_rank_that_leaves_while_its_cable_is_out_delivers_what_it_has_sent() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    thread::scope(|scope| {
        let soft = set(&[("INVAR_TRANSPORT", "soft"), ("NCCL_IB_TIMEOUT", "13")]);
        ranks_on(&hosts, &[0, 1], &soft, |communicator| {
            let mut data = [7_u8; 8];
            communicator.barrier().unwrap();
            if communicator.rank() == 1 {
                data.fill(0);
                communicator.recv(&mut data, 0).unwrap();
                assert_eq!(data, [7; 8]);
                return;
            }
            hosts.ip(0, "link set v0 down").unwrap();
            scope.spawn(|| {
                thread::sleep(5 * OUTAGE);
                hosts.ip(0, "link set v0 up").unwrap();
            });
            communicator.send(&data, 1).unwrap();
        });
    });
}
