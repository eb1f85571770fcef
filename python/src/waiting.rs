//! Waits that leave the interpreter to other threads, and that Ctrl-C ends.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// A waiting thread asks Python this often whether a signal has come.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Runs a function that blocks in a thread of its own, and waits for its result. If a signal's handler
/// raises an exception meanwhile, the call returns this exception, and the result is dropped once it comes.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    function: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().name("invar-python".to_owned());
    // Without a receiver nobody wants the result.
    thread.spawn(move || drop(sender.send(function())))?;
    loop {
        let received;
        (received, receiver) = py.detach(move || (receiver.recv_timeout(SIGNALS_EVERY), receiver));
        match received {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a thread of the module invar has panicked"));
            }
        }
    }
}
