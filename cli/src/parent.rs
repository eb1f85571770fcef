//! Processes that this command starts.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::failure::Failure;

/// Ties this process's life to its parent's.
pub(crate) fn die_with(parent: u32) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| Failure::io("following the parent process", &errno.into()))?;
    let is_there = getppid().map(Pid::as_raw_nonzero).is_some_and(|pid| pid.get() as u32 == parent);
    if is_there { Ok(()) } else { Err(Failure::new("the parent process has ended already")) }
}
