//! A recovery that did not succeed.

use core::fmt;

use super::status_name;
use crate::nic::{NicError, Verb, WcStatus};

/// The reason for which an end replaces its queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// A work request ended with this status.
    Completion(WcStatus),
    /// The peer has begun.
    Peer,
    /// The device has reported this fault of the port.
    Port(&'static str),
    /// The device has reported this event of a queue pair.
    Event(&'static str),
    /// The peer has said twice that nothing has come.
    Silence,
    /// Rails of the connection have failed, and others take over.
    RailFailed,
    /// A rail joins the connection.
    RailJoins,
}

impl Suspicion {
    /// Whether the user has not been told yet.
    pub(crate) fn is_news(self) -> bool {
        !matches!(self, Suspicion::Peer | Suspicion::RailFailed | Suspicion::RailJoins)
    }
}

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Suspicion::Completion(status) => {
                write!(f, "a queue pair failed ({})", status_name(*status))
            }
            Suspicion::Peer => f.write_str("the peer asked for new queue pairs"),
            Suspicion::Port(trouble) => write!(f, "this end's port has a fault: {trouble}"),
            Suspicion::Event(event) => write!(f, "the device reported of a queue pair: {event}"),
            Suspicion::RailFailed => f.write_str("a rail failed"),
            Suspicion::RailJoins => f.write_str("a rail joins"),
            Suspicion::Silence => {
                f.write_str("what this end sends does not arrive, though the peer answers by TCP")
            }
        }
    }
}

/// New queue pairs could not be made for as long as the settings allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryError {
    /// The first reason since the connection worked last.
    pub cause: Suspicion,
    /// Number of attempts.
    pub attempts: u32,
    /// Milliseconds since the connection worked last.
    pub waited_ms: u32,
    /// Milliseconds since the last attempt.
    pub attempt_ms: u32,
    /// Milliseconds since the peer was heard of last over TCP.
    pub heard_ms: u32,
    /// Milliseconds since the TCP connection was lost, if it is.
    pub line_lost_ms: Option<u32>,
    /// The verb that failed in the last attempt.
    pub verb: Verb,
    /// Error number of that verb; 0 if there was none.
    pub errno: i32,
    /// The fault of the last attempt.
    pub trouble: &'static str,
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecoveryError { cause, attempts, verb, errno, trouble, line_lost_ms, .. } = self;
        let [waited, attempt, heard] =
            [self.waited_ms, self.attempt_ms, self.heard_ms].map(seconds);
        write!(
            f,
            "{cause}, and no new queue pair worked in {attempts} attempts over {waited:.1} s; "
        )?;
        let fault = NicError::new(*verb, *errno, trouble);
        write!(f, "the last one, {attempt:.1} s ago, ended with {fault}; ")?;
        write!(f, "the peer was heard of last {heard:.1} s ago over TCP")?;
        if let Some(lost) = line_lost_ms.map(seconds) {
            write!(f, ", which has been down for {lost:.1} s")?;
        }
        f.write_str("; check this end's port, cable and addresses (INVAR_RECOVERY_TIMEOUT_MS)")
    }
}

fn seconds(ms: u32) -> f64 {
    f64::from(ms) / 1000.0
}
