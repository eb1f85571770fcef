//! Waiting for a list in shared memory, across processes.
//!
//! There is no lock that a process could die with. A process that dies between putting something
//! in a list and waking leaves somebody asleep, so no sleep is without an end.

use std::time::Duration;

use invar_core::proxy::Head;
use rustix::thread::futex::{self, Flags, Timespec};

/// Sleeps while the list is empty and open, until it is woken, for `timeout` at most. It may also
/// come back for no reason.
pub(super) fn wait_while_empty(head: &Head, timeout: Duration) {
    let timeout = Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // Every error there is means: look again. Not Flags::PRIVATE: the other is another process.
    let _ = futex::wait(head.word(), Flags::empty(), 0, Some(&timeout));
}

/// Wakes all who sleep for the list.
pub(super) fn wake(head: &Head) {
    // It fails only for a word that is not mapped.
    let _ = futex::wake(head.word(), Flags::empty(), i32::MAX as u32);
}
