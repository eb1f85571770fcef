//! The flag that ends every wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long anything sleeps before it looks at the flag again, should nobody wake it.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// A communicator's abort flag (`abortFlag`); clones share it. Once set it stays.
#[derive(Clone, Debug, Default)]
pub struct Abort(Arc<AtomicBool>);

impl Abort {
    /// Ends every loop and every wait that has a clone, within a tenth of a second.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Why a wait ended without what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The communicator is aborted.
    #[error("the communicator was aborted")]
    Aborted,
    /// The wait took too long.
    #[error("nothing came of it within {0:?}; is the proxy of that rank alive?")]
    TimedOut(Duration),
}

/// A wait that has an end.
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

    /// How long to sleep before looking again.
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
