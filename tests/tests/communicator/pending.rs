//! Tests operations that proceed in the background, without their caller.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use invar::{Communicator, ErrorKind, RedOp};
use invar_testkit::wait::watch;

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
        watch("a reduce that nobody waits for", || reduced.is_done());
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

#[test]
fn a_rank_has_left_though_somebody_keeps_a_handle_of_its_operation() {
    let over = AtomicBool::new(false);
    ranks(2, &settings(), |communicator| {
        let sum = communicator.start_all_reduce(vec![1_u8], RedOp::Sum).unwrap();
        if communicator.rank() == 0 {
            drop(communicator);
            watch("the other rank's error", || over.load(Ordering::Acquire));
        } else {
            let error = communicator.recv(&mut [0_u8], 0).unwrap_err().to_string();
            over.store(true, Ordering::Release);
            assert!(error.contains("it has left the communicator"), "{error}");
        }
        assert_eq!(sum.wait().unwrap(), [2]);
    });
}

/// A task that goes on at once where it is woken, with another operation.
struct AtOnce {
    communicator: Mutex<Option<Communicator>>,
    over: Sender<()>,
}

impl Wake for AtOnce {
    fn wake(self: Arc<Self>) {
        // The last handle goes here too.
        let communicator = self.communicator.lock().unwrap().take().unwrap();
        communicator.barrier().unwrap();
        drop(communicator);
        self.over.send(()).unwrap();
    }
}

#[test]
fn a_task_that_is_woken_may_use_and_drop_its_communicator_at_once() {
    ranks(2, &settings(), |communicator| {
        // The other rank begins late, so that the operation is not done at the first poll.
        if communicator.rank() == 1 {
            thread::sleep(Duration::from_millis(300));
        }
        let mut sum = communicator.start_all_reduce(vec![2_u8], RedOp::Sum).unwrap();
        let (over, is_over) = channel();
        let task = Arc::new(AtOnce { communicator: Mutex::new(Some(communicator)), over });
        let waker = Waker::from(Arc::clone(&task));
        match Future::poll(Pin::new(&mut sum), &mut Context::from_waker(&waker)) {
            Poll::Ready(sum) => assert_eq!((sum.unwrap(), task.wake()), (vec![4], ())),
            Poll::Pending => {}
        }
        is_over.recv_timeout(Duration::from_secs(60)).expect("the task has gone on");
    });
}

/// A task that says when it is woken.
struct Tells(Sender<()>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

#[test]
fn a_task_is_woken_though_the_next_operation_waits_for_it() {
    let has_heard = AtomicBool::new(false);
    ranks(2, &settings(), |communicator| {
        if communicator.rank() == 1 {
            // The other rank polls before this one begins.
            thread::sleep(Duration::from_millis(300));
            communicator.all_reduce_in_place(&mut [1_u8], RedOp::Sum).unwrap();
            watch("the other rank's result", || has_heard.load(Ordering::Acquire));
            return communicator.send(&[7_u8], 0).unwrap();
        }
        let mut sum = communicator.start_all_reduce(vec![1_u8], RedOp::Sum).unwrap();
        let message = communicator.start_recv(vec![0_u8], 1).unwrap();
        let (tells, is_told) = channel();
        let waker = Waker::from(Arc::new(Tells(tells)));
        let mut context = Context::from_waker(&waker);
        if Future::poll(Pin::new(&mut sum), &mut context).is_pending() {
            is_told.recv_timeout(Duration::from_secs(60)).expect("it is done");
        }
        has_heard.store(true, Ordering::Release);
        assert_eq!(message.wait().unwrap(), [7]);
    });
}

#[test]
fn a_wait_ends_with_its_own_operation() {
    let has_heard = AtomicBool::new(false);
    ranks(2, &settings(), |communicator| {
        if communicator.rank() == 1 {
            communicator.all_reduce_in_place(&mut [1_u8], RedOp::Sum).unwrap();
            watch("the other rank's result", || has_heard.load(Ordering::Acquire));
            return communicator.send(&[7_u8], 0).unwrap();
        }
        let sum = communicator.start_all_reduce(vec![1_u8], RedOp::Sum).unwrap();
        let message = communicator.start_recv(vec![0_u8], 1).unwrap();
        assert_eq!(sum.wait().unwrap(), [2]);
        has_heard.store(true, Ordering::Release);
        assert_eq!(message.wait().unwrap(), [7]);
    });
}

#[test]
fn a_wait_for_a_result_that_has_come_out_is_refused() {
    ranks(2, &settings(), |communicator| {
        let mut sum = communicator.start_all_reduce(vec![1_u8], RedOp::Sum).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let result = watch("the result", || match Future::poll(Pin::new(&mut sum), &mut context) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        });
        assert_eq!(result.unwrap(), [2]);
        let error = sum.wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(error.to_string(), "the result has come out already");
        communicator.barrier().unwrap();
    });
}
