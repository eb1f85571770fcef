//! Ranks wait for a late rank, and notice a host that is gone.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use invar::{Communicator, RedOp, Settings};
use invar_testkit::namespaces::Hosts;
use invar_testkit::tcp_times::hasten;

use crate::rig::{ranks_on, set};

const COUNT: usize = 1 << 20;
/// The time limit, which is far below the ranks' own.
const BOUND: Duration = Duration::from_secs(30);

fn over_tcp() -> Settings {
    set(&[("INVAR_TRANSPORT", "socket")])
}

/// Lets rank 1 come late to two operations over TCP. The hosts' buffers take only a part of a chunk.
/// `hurry` shortens TCP's time-outs.
fn check_late(hurry: bool, late: Duration) {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    for host in 0..2 {
        let write = || fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 16384 16384");
        hosts.call(host, write).unwrap();
    }
    ranks_on(&hosts, &[0, 1], &over_tcp(), |communicator| {
        let rank = communicator.rank();
        let mut data = vec![1.0_f32; COUNT];
        // The first operation creates the links.
        communicator.all_reduce_in_place(&mut data, RedOp::Sum).unwrap();
        if hurry {
            hasten();
        }
        let be_late = || {
            if rank == 1 {
                thread::sleep(late);
            }
        };
        be_late();
        communicator.all_reduce_in_place(&mut data, RedOp::Sum).unwrap();
        assert!(data.iter().all(|sum| *sum == 4.0));
        be_late();
        match rank {
            0 => communicator.send(&data, 1).unwrap(),
            _ => {
                data.fill(0.0);
                communicator.recv(&mut data, 0).unwrap();
                assert!(data.iter().all(|sent| *sent == 4.0));
            }
        }
        communicator.barrier().unwrap();
    });
}

#[test]
fn a_rank_that_is_late_is_waited_for() {
    check_late(true, Duration::from_secs(3));
}

#[test]
#[ignore = "takes 80 s, without haste"]
fn a_rank_that_is_40_s_late_is_waited_for() {
    check_late(false, Duration::from_secs(40));
}

/// The errors of the ranks on two hosts after the cable between them is cut during `work`.
fn errors_after_the_cut(work: impl Fn(&Communicator) -> Result<(), invar::Error> + Sync) {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let errors = ranks_on(&hosts, &[0, 1], &over_tcp(), |communicator| {
        communicator.barrier().unwrap();
        hasten();
        communicator.barrier().unwrap();
        let start = Instant::now();
        if communicator.rank() == 0 {
            hosts.ip(1, "link set v0 down").unwrap();
        }
        let error = loop {
            if let Err(error) = work(&communicator) {
                break error.to_string();
            }
        };
        assert!(start.elapsed() < BOUND, "after {:?}: {error}", start.elapsed());
        error
    });
    for (rank, error) in errors.iter().enumerate() {
        assert!(error.starts_with(&format!("rank {}: ", 1 - rank)), "{errors:?}");
    }
}

#[test]
fn a_host_that_vanishes_amid_work_over_tcp_is_noticed() {
    errors_after_the_cut(|communicator| {
        communicator.all_reduce_in_place(&mut vec![1.0_f32; COUNT], RedOp::Max)
    });
}

#[test]
fn a_host_that_has_vanished_is_noticed_by_who_waits_for_it_over_tcp() {
    errors_after_the_cut(|communicator| communicator.recv(&mut [0_u8; 8], 1 - communicator.rank()));
}
