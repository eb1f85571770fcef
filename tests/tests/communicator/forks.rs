//! A child of `fork` has a copy of its parent's communicator, and leaves its links alone.

use std::pin::Pin;
use std::sync::{Mutex, mpsc};
use std::task::{Context, Poll, Waker};

use invar::communicator::{Mover, Pending};
use invar::{Communicator, Error, ErrorKind, RedOp};

use crate::rig::{every_way, ranks};

/// A child that hangs is killed after this time.
const CHILD_SECONDS: u32 = 60;

/// Forks. Returns the child's process id, and 0 in the child. The child must call [`exit`].
fn fork() -> libc::pid_t {
    // SAFETY: the child calls nothing that needs a lock of another thread, except for the allocator, which is
    // ready for forks.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: the call only sets a timer, whose signal ends the child.
        unsafe { libc::alarm(CHILD_SECONDS) };
    }
    child
}

/// Ends the child.
fn exit(code: usize) -> ! {
    // SAFETY: the call only ends the process.
    unsafe { libc::_exit(code as i32) }
}

/// Waits until the child has ended, and returns its wait status.
fn status_of(child: libc::pid_t) -> i32 {
    let mut status = -1;
    // SAFETY: the status lives longer than the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| {
        let names_it = error.to_string().contains("from which this one was forked");
        error.kind() == ErrorKind::Usage && names_it
    })
}

/// Makes calls of every kind in a child. Returns the number of the first call that is not refused, from 1, or 0.
fn not_refused(communicator: Communicator, mut started: [Pending<u32>; 2]) -> usize {
    let (mut data, awaited) = ([1_u32; 4], Pin::new(&mut started[0]));
    let awaited = match awaited.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => is_refused(result),
        Poll::Pending => false,
    };
    let [_, waited_for] = started;
    let mut group = communicator.group();
    group.barrier().unwrap();
    // SAFETY: no operation has any memory.
    let posted = unsafe { communicator.post(&[], Mover::Caller) };
    let refused = [
        awaited,
        waited_for.is_done() && is_refused(waited_for.wait()),
        is_refused(group.run()),
        is_refused(communicator.all_reduce_in_place(&mut data, RedOp::Sum)),
        is_refused(communicator.send(&data, 1)),
        is_refused(communicator.recv(&mut data, 1)),
        is_refused(communicator.start_all_reduce(vec![1_u32], RedOp::Sum)),
        is_refused(posted),
        is_refused(communicator.exchange(&[])),
        is_refused(communicator.check()),
    ];
    communicator.abort("by a child");
    drop(communicator);
    refused.iter().position(|refused| !refused).map_or(0, |at| at + 1)
}

#[test]
fn a_child_of_fork_is_refused_and_its_parent_goes_on() {
    for settings in every_way() {
        let (ended, childs_end) = mpsc::channel::<()>();
        let (ended, childs_end) = (Mutex::new(Some(ended)), Mutex::new(childs_end));
        ranks(2, &settings, |communicator| {
            // The links exist before the fork.
            communicator.barrier().unwrap();
            let start = || communicator.start_all_reduce(vec![1_u32; 3000], RedOp::Sum).unwrap();
            let started = if communicator.rank() == 0 {
                // Rank 1 also goes on if this rank panics.
                let _ended = ended.lock().unwrap().take();
                let started = [start(), start()];
                let child = fork();
                if child == 0 {
                    exit(not_refused(communicator, started));
                }
                assert_eq!(status_of(child), 0, "the child's wait status");
                started
            } else {
                let _ = childs_end.lock().unwrap().recv();
                [start(), start()]
            };
            for sum in started {
                assert_eq!(sum.wait().unwrap(), [2; 3000]);
            }
            communicator.barrier().unwrap();
        });
    }
}
