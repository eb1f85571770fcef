//! Tests collectives on raw memory, which move when their caller tests them.

use std::thread;
use std::time::Duration;

use invar::communicator::{Operation, Posted, RawCollective};
use invar::{Communicator, DataType, ErrorKind, RedOp};

use crate::rig::{every_way, ranks, settings};

/// An all-reduce of `u32`, in place.
fn sum(data: &mut [u32]) -> RawCollective {
    RawCollective {
        operation: Operation::AllReduce,
        count: data.len(),
        data_type: DataType::U32,
        redop: Some(RedOp::Sum),
        input: data.as_ptr().cast(),
        output: data.as_mut_ptr().cast(),
    }
}

fn post(communicator: &Communicator, collectives: &[RawCollective]) -> Posted {
    // SAFETY: the tests keep the memory until the collectives are done.
    unsafe { communicator.post(collectives) }.unwrap()
}

/// Tests until there is a result.
fn wait(posted: &Posted) -> Result<(), invar::Error> {
    loop {
        if let Some(result) = posted.test() {
            return result;
        }
        thread::yield_now();
    }
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
                while !posted.is_done() {
                    thread::yield_now();
                }
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
        let posted = unsafe { communicator.post(&[sum(&mut data)]) };
        let error = posted.and_then(|posted| wait(&posted)).unwrap_err();
        assert_eq!((error.kind(), error.rank()), (ErrorKind::Peer, Some(1)), "{error}");
        // SAFETY: the memory lives as long as the communicator.
        let refused = unsafe { communicator.post(&[sum(&mut data)]) };
        assert_eq!(refused.err().and_then(|error| error.rank()), Some(1));
    });
}

#[test]
fn what_is_no_collective_is_refused() {
    ranks(1, &settings(), |communicator| {
        let mut data = [1; 4];
        let all = sum(&mut data);
        let transfer = RawCollective { operation: Operation::Send { peer: 0 }, redop: None, ..all };
        let gather = RawCollective { operation: Operation::AllGather, ..all };
        let too_many = RawCollective {
            operation: Operation::AllGather,
            redop: None,
            count: usize::MAX,
            ..all
        };
        for refused in [transfer, gather, RawCollective { redop: None, ..all }] {
            // SAFETY: the communicator refuses it.
            let error = unsafe { communicator.post(&[refused]) }.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        }
        let posted = post(&communicator, &[too_many]);
        assert_eq!(wait(&posted).unwrap_err().kind(), ErrorKind::Usage);
    });
}
