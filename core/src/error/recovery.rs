//! A recovery that did not succeed.

use core::fmt;

use super::status_name;
use crate::conn::RailSet;
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

/// The fault of each rail of a connection that ends, a bit for each rail. Rails are numbered from 0, in the order of
/// `INVAR_RAILS`. A rail with none of these faults did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailFaults {
    /// Number of rails.
    pub count: u8,
    /// The rails whose port is down at this end.
    pub port_down: u8,
    /// The rails whose port is up, but whose device has refused new queue pairs at this end.
    pub refused: u8,
    /// The rails that work at this end, but have no new queue pairs at the peer: a port that is down, or a device
    /// that refuses.
    pub peer_down: u8,
}

impl fmt::Display for RailFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RailFaults { count, port_down, refused, peer_down } = *self;
        let faults = [port_down, refused, peer_down].map(RailSet);
        let others = RailSet::first(count.into());
        let silent = faults.iter().fold(others, |others, fault| others.without(*fault));
        let [port_down, refused, peer_down] = faults;
        let all = [
            (port_down, "port down at this end"),
            (refused, "refused by the device of this end"),
            (peer_down, "down or refused at the peer"),
            (silent, "no answer"),
        ];
        let all = all.iter().filter(|(rails, _)| !rails.is_empty());
        for (i, (rails, fault)) in all.enumerate() {
            write!(f, "{}rail {rails}: {fault}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
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
    /// The faults of the rails, if the connection has several.
    pub rails: Option<RailFaults>,
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
        if let Some(rails) = self.rails {
            write!(f, "{rails}; ")?;
        }
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
