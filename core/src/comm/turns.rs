//! The completion queues that a test polls.
//!
//! The rails that carry data take turns, and each poll of a queue is a turn. A test polls one queue. If this queue is
//! empty, the test polls the others, until one has completions. Small rows take the rails in turn too, so the first
//! queue mostly has the completion that the test awaits.
//!
//! - A completion waits for at most one turn of each other rail. In each of these turns another completion is taken.
//! - A test that finds nothing has polled all rails that carry data. So a caller may sleep after it.
//! - If one rail carries all data, a test polls one queue, as over a NIC of one port.
//!
//! The queues of idle rails have only errors and answers to questions ([`super::rails`]). The looks at the peer and
//! the slow path of a test poll all queues.

use super::base::Base;
use super::fast::Fast;
use super::route::Route;
use crate::conn::Stream;
use crate::nic::{Nic, PollError};

impl<N: Nic, S: Stream, R: Route<N, T, REQS>, T, const REQS: usize> Base<N, S, R, T, REQS> {
    /// Polls the queue of the rail whose turn it is.
    #[inline(always)]
    pub(super) fn poll_turn(&mut self) -> Result<u32, PollError> {
        let Self { verbs, wcs, rails, .. } = self;
        let rail = rails.turn;
        if N::RAILS_MAX > 1 && rails.in_use.has_several() {
            rails.turn = rails.in_use.after(rail);
        }
        verbs.nic.poll_rail(rail, &verbs.cq, wcs)
    }

    /// Polls the other rails after the first turn has found nothing, and books what comes.
    #[inline(never)]
    pub(super) fn poll_other_turns(&mut self) -> Fast<u32> {
        for _ in 1..self.rails.in_use.len() {
            match self.poll_turn() {
                Ok(0) => continue,
                Ok(polled) => self.book_polled(polled),
                Err(error) => self.poll_failed(error),
            }
            return Fast::Slow;
        }
        Fast::Pending
    }
}
