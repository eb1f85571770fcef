//! The progress of the receives.

use super::Receiver;
use crate::comm::Request;
use crate::error::Error;
use crate::stall::Counts;

impl Receiver {
    /// Returns whether a receive is under way and not done.
    pub fn is_waiting(&mut self, request: &Request) -> bool {
        self.reqs.at(request.raw()).is_pending(request.raw())
    }

    /// Returns whether a receive has all its messages and is not yet tested as done.
    pub fn is_done(&mut self, request: &Request) -> bool {
        self.reqs.at(request.raw()).is_done(request.raw())
    }

    /// Returns the progress of the receives, for [`stall`](crate::stall).
    pub fn counts(&self) -> Counts {
        Counts {
            begun: self.posted,
            done: self.filled,
            seen: self.posted - self.buffers.len() as u64,
            seen_tag: self.buffers.oldest_tag().unwrap_or(0),
            untested: self.reqs.done(),
            ..Counts::default()
        }
    }

    /// Error that ended the connection.
    pub fn end(&self) -> Option<Error> {
        self.end
    }

    /// Number of receives that are posted and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.reqs.live()
    }
}
