//! Delays work requests: each is carried out some polls after it was posted, since a device takes its
//! time.

use std::sync::{Mutex, MutexGuard};

use invar_core::nic::{SendFlags, SendWr};

use crate::fatal;

/// The delayed requests, in the order in which they were posted.
static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

struct Waiting {
    cq: usize,
    qp: usize,
    wr: SendWr,
    /// The polls of the completion queue that this request still waits for.
    polls: u32,
}

/// Delays a request of the queue pair `qp` for `polls` polls of its completion queue.
pub(crate) fn put(qp: usize, cq: usize, wr: SendWr, polls: u32) {
    if wr.flags.contains(SendFlags::INLINE) {
        fatal("inline data is not delayed: leave out NULL_VERBS_DELAY_POLLS or NCCL_IB_USE_INLINE");
    }
    waiting().push(Waiting { cq, qp, wr, polls });
}

/// Counts a poll of `cq`. Returns the requests that have waited long enough, each with its queue pair.
pub(crate) fn take(cq: usize) -> Vec<(usize, SendWr)> {
    let mut waiting = waiting();
    let its = waiting.iter_mut().filter(|waiting| waiting.cq == cq);
    its.for_each(|waiting| waiting.polls -= 1);
    let due = waiting.extract_if(.., |waiting| waiting.polls == 0);
    due.map(|Waiting { qp, wr, .. }| (qp, wr)).collect()
}

/// Drops the delayed requests of a queue pair that is destroyed.
pub(crate) fn forget(qp: usize) {
    waiting().retain(|waiting| waiting.qp != qp);
}

fn waiting() -> MutexGuard<'static, Vec<Waiting>> {
    WAITING.lock().unwrap_or_else(|_| fatal("a call failed before"))
}
