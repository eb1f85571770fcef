//! Waiting across processes for a list in shared memory.
//!
//! There is no lock that a process could hold when it dies. A process may die after it adds to a list
//! and before it wakes the waiter. So every sleep has a timeout.

use std::time::Duration;

use invar_core::proxy::Head;
use rustix::thread::futex::{self, Flags, Timespec};

/// Sleeps while the list is empty and open, at most for `timeout`. A wake-up ends the sleep, and the
/// function may also return early without a reason.
pub(super) fn wait_while_empty(head: &Head, timeout: Duration) {
    let timeout = Timespec::try_from(timeout).ok();
    // Every error means that the caller checks again. `Flags::PRIVATE` is not set, because the other
    // side is another process.
    let _ = futex::wait(head.word(), Flags::empty(), 0, timeout.as_ref());
}

/// Wakes all threads that sleep on the list.
pub(super) fn wake(head: &Head) {
    // The call fails only if the word is not mapped.
    let _ = futex::wake(head.word(), Flags::empty(), i32::MAX as u32);
}
