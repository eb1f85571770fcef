//! Tests operations that proceed in the background, without their caller.

use std::thread;

use invar::RedOp;

use crate::rig::{ranks, settings};

#[test]
fn operations_that_are_started_are_done_in_order_whoever_waits_for_them() {
    ranks(3, &settings(), |communicator| {
        let rank = communicator.rank();
        let sum = communicator.start_all_reduce(vec![rank; 10_000], RedOp::Sum).unwrap();
        let all = communicator.start_all_gather(vec![rank; 2]).unwrap();
        let mut max = [rank];
        communicator.all_reduce_in_place(&mut max, RedOp::Max).unwrap();
        assert!(sum.is_done() && all.is_done(), "what was started before a call is done before it");
        let blocks = communicator.start_all_to_all(vec![rank; 6]).unwrap();
        assert_eq!(all.wait().unwrap(), [0, 0, 1, 1, 2, 2]);
        assert_eq!(sum.wait().unwrap(), vec![3; 10_000]);
        assert_eq!((max, blocks.wait().unwrap()), ([2], vec![0, 0, 1, 1, 2, 2]));
    });
}

#[test]
fn what_nobody_waits_for_goes_on() {
    ranks(2, &settings(), |communicator| {
        let rank = communicator.rank();
        drop(communicator.start_broadcast(vec![rank; 100_000], 0).unwrap());
        let reduced = communicator.start_reduce(vec![rank + 1], RedOp::Prod, 1).unwrap();
        while !reduced.is_done() {
            thread::yield_now();
        }
        let want = if rank == 1 { 2 } else { 1 };
        assert_eq!(reduced.wait().unwrap(), [want]);
        let share = communicator.start_reduce_scatter(vec![1, 2], RedOp::Sum).unwrap();
        let moved = match rank {
            0 => communicator.start_send(vec![7_u8; 9], 1).unwrap(),
            _ => communicator.start_recv(vec![0_u8; 9], 0).unwrap(),
        };
        assert_eq!(moved.wait().unwrap(), [7; 9]);
        assert_eq!(share.wait().unwrap(), [2 * (rank as i32 + 1)]);
    });
}

#[test]
fn a_result_outlives_its_communicator() {
    ranks(2, &settings(), |communicator| {
        let sum = communicator.start_all_reduce(vec![1.5_f32; 33], RedOp::Sum).unwrap();
        drop(communicator);
        assert_eq!(sum.wait().unwrap(), [3.0; 33]);
    });
}
