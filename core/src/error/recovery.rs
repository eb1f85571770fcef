//! A recovery that did not succeed.

use core::fmt;

use super::status_name;
use crate::nic::{NicError, Verb, WcStatus};

/// New queue pairs could not be made for as long as the settings allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryError {
    /// Status of this end's first error completion. `None` if the peer began the recovery.
    pub cause: Option<WcStatus>,
    /// Number of attempts.
    pub attempts: u32,
    /// Milliseconds since the connection worked last.
    pub waited_ms: u32,
    /// The verb that failed in the last attempt.
    pub verb: Verb,
    /// Error number of that verb; 0 if there was none.
    pub errno: i32,
    /// The fault of the last attempt.
    pub trouble: &'static str,
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecoveryError { cause, attempts, waited_ms, verb, errno, trouble } = self;
        let seconds = f64::from(*waited_ms) / 1000.0;
        match cause {
            Some(status) => write!(f, "a queue pair failed ({})", status_name(*status))?,
            None => f.write_str("the peer asked for new queue pairs")?,
        }
        write!(f, ", and no new one worked in {attempts} attempts over {seconds:.1} s; ")?;
        write!(f, "the last one ended with {}", NicError::new(*verb, *errno, trouble))?;
        f.write_str("; check this end's port, cable and addresses (INVAR_RECOVERY_TIMEOUT_MS)")
    }
}
