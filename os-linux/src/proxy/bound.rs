//! Waits that end at an abort or a timeout.

use std::time::{Duration, Instant};

use crate::abort::Abort;

/// The longest sleep of any thread before it checks the flag again, if nobody wakes it.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// The reason why a wait failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The communicator is aborted.
    #[error("the communicator was aborted")]
    Aborted,
    /// The wait took too long.
    #[error("nothing came of it within {0:?}; is the proxy of that rank alive?")]
    TimedOut(Duration),
}

/// A wait that ends at an abort or a timeout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound<'a> {
    abort: &'a Abort,
    start: Instant,
    timeout: Duration,
}

impl<'a> Bound<'a> {
    pub(super) fn new(abort: &'a Abort, timeout: Duration) -> Self {
        Bound { abort, start: Instant::now(), timeout }
    }

    /// Returns how long to sleep before the next check, or the reason why the wait is over.
    pub(super) fn nap(&self) -> Result<Duration, WaitError> {
        if self.abort.is_set() {
            return Err(WaitError::Aborted);
        }
        match self.timeout.checked_sub(self.start.elapsed()) {
            Some(left) if !left.is_zero() => Ok(left.min(TICK)),
            _ => Err(WaitError::TimedOut(self.timeout)),
        }
    }
}
