//! Processes that this command starts.

use std::process::Child;
use std::sync::Arc;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use signal_hook::consts::SIGCHLD;

use crate::failure::Failure;

/// Makes this process able to wait for its children. If it inherited an ignored SIGCHLD, Linux would
/// forget how children end (`wait(2)`).
pub(crate) fn await_children() -> Result<(), Failure> {
    signal_hook::flag::register(SIGCHLD, Arc::default())
        .map(drop)
        .map_err(|error| Failure::io("waiting for other processes", &error))
}

/// A process that this one has started. Dropping this value ends it by force.
pub(crate) struct ChildProcess(pub(crate) Child);

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Killing fails only for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ends this process when its parent ends.
pub(crate) fn die_with(parent: u32) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| Failure::io("following the parent process", &errno.into()))?;
    let is_there = getppid().map(Pid::as_raw_nonzero).is_some_and(|pid| pid.get() as u32 == parent);
    if is_there { Ok(()) } else { Err(Failure::new("the parent process has ended already")) }
}
