//! Tests operations on raw memory.

use std::ptr;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use invar::communicator::{Mover, Operation, Posted, RawOperation};
use invar::{Communicator, DataType, ErrorKind, RedOp};
use invar_testkit::wait::{until, watch};

use crate::rig::{every_way, ranks, settings};

/// An all-reduce of `u32`, in place.
fn sum(data: &mut [u32]) -> RawOperation {
    RawOperation {
        operation: Operation::AllReduce,
        count: data.len(),
        data_type: DataType::U32,
        redop: Some(RedOp::Sum),
        input: data.as_ptr().cast(),
        output: data.as_mut_ptr().cast(),
    }
}

fn post(communicator: &Communicator, operations: &[RawOperation]) -> Posted {
    post_for(communicator, operations, Mover::Caller)
}

fn post_for(communicator: &Communicator, operations: &[RawOperation], mover: Mover) -> Posted {
    // SAFETY: the tests keep the memory until the operations are done.
    unsafe { communicator.post(operations, mover) }.unwrap()
}

/// Tests until there is a result.
fn wait(posted: &Posted) -> Result<(), invar::Error> {
    until("a posted operation", || posted.test())
}

#[test]
fn collectives_are_done_in_order_whichever_is_tested() {
    for settings in every_way() {
        ranks(3, &settings, |communicator| {
            let mut data = [[communicator.rank(); 3000]; 4];
            let posted: Vec<Posted> =
                data.iter_mut().map(|data| post(&communicator, &[sum(data)])).collect();
            wait(&posted[2]).unwrap();
            assert!(posted[0].is_done() && posted[1].is_done(), "they were started before");
            assert!(posted[2].test().is_none(), "a result comes once");
            for earlier_or_later in [3, 0, 1] {
                wait(&posted[earlier_or_later]).unwrap();
            }
            assert_eq!(data, [[3; 3000]; 4]);
        });
    }
}

#[test]
fn a_call_completes_what_was_posted_before_it() {
    ranks(2, &settings(), |communicator| {
        let mut data = [1; 100];
        let mut again = data;
        let posted = post(&communicator, &[sum(&mut data), sum(&mut again)]);
        communicator.barrier().unwrap();
        assert!(posted.is_done());
        wait(&posted).unwrap();
        assert_eq!((data, again), ([2; 100], [2; 100]));
        let pending = communicator.start_all_reduce(vec![1_u32], RedOp::Sum).unwrap();
        let posted = post(&communicator, &[sum(&mut data)]);
        assert_eq!(pending.wait().unwrap(), [2]);
        wait(&posted).unwrap();
        assert_eq!(data, [4; 100]);
    });
}

#[test]
fn what_nobody_tests_goes_on() {
    for settings in every_way() {
        ranks(2, &settings, |communicator| {
            // Ranks that wait long let their thread sleep between two looks.
            for pause in [0, 300] {
                thread::sleep(Duration::from_millis(pause));
                let mut data = vec![1; 1 << 20];
                let posted = post(&communicator, &[sum(&mut data)]);
                watch("an operation that nobody tests", || posted.is_done());
                wait(&posted).unwrap();
                assert_eq!(data, vec![2; 1 << 20]);
            }
        });
    }
}

#[test]
fn an_abort_ends_what_is_posted() {
    ranks(2, &settings(), |communicator| {
        let mut data = [1; 100];
        if communicator.rank() == 1 {
            communicator.abort("enough");
            return;
        }
        // SAFETY: the memory lives as long as the communicator.
        let posted = unsafe { communicator.post(&[sum(&mut data)], Mover::Caller) };
        let error = posted.and_then(|posted| wait(&posted)).unwrap_err();
        assert_eq!((error.kind(), error.rank()), (ErrorKind::Peer, Some(1)), "{error}");
        // SAFETY: the memory lives as long as the communicator.
        let refused = unsafe { communicator.post(&[sum(&mut data)], Mover::Caller) };
        assert_eq!(refused.err().and_then(|error| error.rank()), Some(1));
    });
}

#[test]
fn a_peer_that_is_no_rank_and_a_message_to_oneself_without_its_receive_are_refused() {
    ranks(1, &settings(), |communicator| {
        let mut data = [1; 4];
        for operation in [Operation::Send { peer: 0 }, Operation::Recv { peer: 1 }] {
            let refused = RawOperation { operation, redop: None, ..sum(&mut data) };
            // SAFETY: the communicator refuses it.
            let error = unsafe { communicator.post(&[refused], Mover::Caller) }.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        }
        wait(&post(&communicator, &[sum(&mut data)])).unwrap();
    });
}

#[test]
fn a_reduction_without_an_operation_or_the_other_way_is_refused() {
    ranks(1, &settings(), |communicator| {
        let mut data = [1; 4];
        let all = sum(&mut data);
        let transfer = RawOperation { operation: Operation::Send { peer: 0 }, ..all };
        let gather = RawOperation { operation: Operation::AllGather, ..all };
        let too_many =
            RawOperation { operation: Operation::AllGather, redop: None, count: usize::MAX, ..all };
        for refused in [transfer, gather, RawOperation { redop: None, ..all }] {
            // SAFETY: the communicator refuses it.
            let error = unsafe { communicator.post(&[refused], Mover::Caller) }.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        }
        let posted = post(&communicator, &[too_many]);
        assert_eq!(wait(&posted).unwrap_err().kind(), ErrorKind::Usage);
    });
}

fn bytes(data: &[u32]) -> *const [u8] {
    ptr::slice_from_raw_parts(data.as_ptr().cast(), size_of_val(data))
}

fn bytes_mut(data: &mut [u32]) -> *mut [u8] {
    ptr::slice_from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data))
}

#[test]
fn a_posted_group_has_sends_and_receives_behind_its_collectives() {
    for mover in [Mover::Caller, Mover::Worker] {
        ranks(3, &settings(), |communicator| {
            let (rank, nranks) = (communicator.rank(), communicator.nranks());
            let (mut all, ours, mut theirs) = ([rank; 3000], [rank; 5000], [9; 5000]);
            let raw = |operation, input, output| {
                communicator.raw(operation, None, DataType::U32, input, output).unwrap()
            };
            let (next, previous) = ((rank + 1) % nranks, (rank + nranks - 1) % nranks);
            let group = [
                raw(Operation::Recv { peer: previous }, bytes(&[]), bytes_mut(&mut theirs)),
                sum(&mut all),
                raw(Operation::Send { peer: next }, bytes(&ours), bytes_mut(&mut [])),
            ];
            let posted = post_for(&communicator, &group, mover);
            posted.wait_within(Duration::from_secs(60)).unwrap().unwrap();
            assert!(posted.test().is_none(), "a result comes once");
            assert_eq!((all, theirs), ([3; 3000], [previous; 5000]));
        });
    }
}

#[test]
fn a_wait_ends_with_its_time_and_the_operation_goes_on() {
    for mover in [Mover::Caller, Mover::Worker] {
        let given_up = Barrier::new(2);
        ranks(2, &settings(), |communicator| {
            let mut data = [1; 100];
            if communicator.rank() == 1 {
                given_up.wait();
                communicator.all_reduce_in_place(&mut data, RedOp::Sum).unwrap();
            } else {
                let posted = post_for(&communicator, &[sum(&mut data)], mover);
                assert!(posted.wait_within(Duration::from_millis(20)).is_none());
                assert!(!posted.is_done());
                given_up.wait();
                posted.wait_within(Duration::from_secs(60)).unwrap().unwrap();
            }
            assert_eq!(data, [2; 100]);
        });
    }
}

#[test]
fn raw_memory_of_a_wrong_length_is_refused() {
    ranks(2, &settings(), |communicator| {
        let mut data = [0; 5];
        let gathered =
            |data| communicator.raw_in_place(Operation::AllGather, None, DataType::U32, data);
        assert_eq!(gathered(bytes_mut(&mut data[..4])).unwrap().count, 2);
        let error = gathered(bytes_mut(&mut data)).unwrap_err();
        let want =
            format!("AllGather: data of 5 elements; rank {} of 2 needs 4", communicator.rank());
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Usage, want));
        let odd = ptr::slice_from_raw_parts_mut(data.as_mut_ptr().cast(), 7);
        let error = gathered(odd).unwrap_err().to_string();
        assert_eq!(error, "7 bytes are no whole number of elements of 4 bytes");
        communicator.barrier().unwrap();
    });
}
