//! When ranks wait for each other, all of them name the rank at fault.

use std::thread;
use std::time::Duration;

use invar::{Communicator, RedOp};
use invar_testkit::wait::watch;
use invar_testkit::warnings;

use crate::rig::{every_way, ranks, settings};

/// The time after which ranks report a stall.
const STUCK_AFTER: Duration = Duration::from_millis(500);

/// Sleeps until every one of `nranks` ranks has warned with a line that has all these parts.
fn until_all_warn(nranks: u32, parts: &[&str]) {
    let has_warned =
        |rank| !warnings::with(&[parts, &[&format!("rank {rank}: ")]].concat()).is_empty();
    watch(&format!("warnings with {parts:?}"), || (0..nranks).all(has_warned));
}

#[test]
fn a_rank_that_has_not_entered_a_collective_is_named_at_all_ranks() {
    warnings::keep();
    // The counts tell the warnings of the ways apart.
    for (settings, count) in every_way().into_iter().zip([1001, 100_002, 100_003]) {
        ranks(3, &settings.stall_after(STUCK_AFTER), |communicator| {
            let mut data = vec![1.0_f32; count];
            communicator.all_reduce_in_place(&mut data, RedOp::Sum).unwrap();
            if communicator.rank() == 2 {
                let pid = format!("rank 2 (pid {}", std::process::id());
                let operation =
                    format!("has not entered collective 2, all_reduce of {count} F32, Sum");
                until_all_warn(3, &[&pid, &operation, "its last call, collective 1"]);
            }
            communicator.all_reduce_in_place(&mut data, RedOp::Sum).unwrap();
            assert!(data.iter().all(|sum| *sum == 9.0));
        });
    }
}

/// Runs two calls that do not go together, and returns each rank's error.
fn check_error(parts: &[&str], call: impl Fn(&Communicator) -> Result<(), invar::Error> + Sync) {
    warnings::keep();
    let settings = settings().stall_after(STUCK_AFTER).collective_timeout(Duration::from_secs(4));
    let errors = ranks(3, &settings, |communicator| call(&communicator).unwrap_err().to_string());
    until_all_warn(3, parts);
    // The rank that gave up first has the verdict in its error, and the others get this error.
    assert!(errors.iter().all(|error| error.contains("before that: ")), "{errors:?}");
}

#[test]
fn a_rank_that_runs_another_collective_is_named_with_both() {
    let runs = |root| format!("runs collective 1, broadcast of 1000 F32 from rank {root}");
    check_error(&["rank 1 (pid ", &runs(0), &runs(1)], |communicator| {
        let root = u32::from(communicator.rank() != 1);
        communicator.broadcast(&mut [1.0_f32; 1000], root)
    });
}

#[test]
fn who_gives_up_a_rank_that_waits_itself_names_the_rank_at_fault() {
    let settings = settings().stall_after(STUCK_AFTER).collective_timeout(Duration::from_secs(6));
    // The data goes around the ring, so rank 3 waits for rank 2, which waits for rank 1. All of the data fits into
    // the link from rank 0 to rank 1.
    let broadcast =
        |communicator: &Communicator| communicator.broadcast(&mut vec![0_u8; 300 << 10], 0);
    let errors = ranks(4, &settings, |communicator| match communicator.rank() {
        0 | 1 => {
            if communicator.rank() == 0 {
                // On a slow host the others may have given up by now.
                let _ = broadcast(&communicator);
            }
            watch("the others' verdict", || communicator.check().err())
        }
        rank => {
            if rank == 2 {
                // Rank 3 gives up first.
                thread::sleep(Duration::from_millis(300));
            }
            broadcast(&communicator).unwrap_err()
        }
    });
    assert!(errors.iter().all(|error| error.rank() == Some(1)), "{errors:?}");
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let has_reason = |error: &String| error.contains("before that: rank 1 (pid ");
    assert!(errors.iter().all(has_reason), "{errors:?}");
}

#[test]
fn a_rank_whose_count_differs_is_named_at_all_ranks() {
    let [shared, soft, tcp] = every_way();
    let unwatched = shared.clone().stall_after(Duration::ZERO);
    let cases = [
        (&shared, 1001),
        (&unwatched, 300_000),
        (&soft, 1001),
        (&soft, 300_000),
        (&tcp, 1001),
        (&tcp, 300_000),
    ];
    for (settings, count) in cases {
        let errors = ranks(4, settings, |communicator| {
            let rank = communicator.rank();
            let mut data = vec![1.0_f32; count + usize::from(rank == 1)];
            let error = communicator.all_reduce_in_place(&mut data, RedOp::Sum).unwrap_err();
            assert_eq!(error.rank(), Some(1), "{error}");
            error.to_string()
        });
        let (pid, other) = (std::process::id(), count + 1);
        let blame = format!("rank 1 (pid {pid} on ");
        let runs = format!(") runs collective 1, all_reduce of {other} F32, Sum, but rank ");
        let told = |error: &String| {
            // Other ranks than the first to fail name the rank that told them.
            let blames = error.starts_with(&blame) || error.contains(&format!(": {blame}"));
            blames && error.contains(&runs)
        };
        assert!(errors.iter().all(told), "{errors:?}");
    }
}

#[test]
fn a_rank_that_is_to_receive_and_does_not_is_named() {
    let parts = ["rank 2 (pid ", "is in no call, while rank 0 runs send of 300000 F32 to rank 2"];
    let is_over = std::sync::Barrier::new(3);
    warnings::keep();
    let settings = settings().stall_after(STUCK_AFTER);
    ranks(3, &settings, |communicator| {
        let mut data = vec![1.0_f32; 300_000];
        match communicator.rank() {
            0 => communicator.send(&data, 2).unwrap(),
            1 => {}
            _ => {
                until_all_warn(3, &parts);
                communicator.recv(&mut data, 0).unwrap();
            }
        }
        is_over.wait();
    });
}
