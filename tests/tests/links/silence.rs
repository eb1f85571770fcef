//! A rank waits for a peer that does not poll its links for a while.

use std::thread;
use std::time::Duration;

use invar_testkit::tcp_times::hasten;

use crate::rig::{DEVICES, pair};

/// The number of slots, which together are more than the kernel's buffers take.
const STEPS: u64 = 1000;
const LATE: Duration = Duration::from_secs(3);

fn over_tcp() -> impl Iterator<Item = &'static str> {
    DEVICES.into_iter().filter(|device| device.contains("socket"))
}

#[test]
fn a_rank_that_is_late_is_waited_for() {
    let mut ranks: Vec<_> = over_tcp().map(|device| (device, pair(device, 1))).collect();
    assert_eq!(ranks.len(), 3);
    hasten();
    thread::scope(|scope| {
        for (device, [zero, one]) in &mut ranks {
            scope.spawn(|| zero.exchange(1, STEPS).expect(device));
            scope.spawn(|| {
                thread::sleep(LATE);
                one.exchange(1, STEPS).expect(device);
            });
        }
    });
}
