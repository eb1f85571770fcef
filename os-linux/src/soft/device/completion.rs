//! Completion queues.

use std::collections::VecDeque;

use invar_core::nic::{PollError, Wc};

/// A queue of completions in order, at most `depth` at a time.
pub(super) struct CompletionQueue {
    ring: VecDeque<Wc>,
    depth: usize,
    overrun: bool,
}

impl CompletionQueue {
    pub(super) fn new(depth: usize) -> Self {
        CompletionQueue { ring: VecDeque::with_capacity(depth), depth, overrun: false }
    }

    /// Adds a completion. If the queue is full, it overflows for good (`IBV_EVENT_CQ_ERR`): it drops
    /// this and all later completions, and its queue pairs go to ERR.
    #[inline]
    pub(super) fn push(&mut self, wc: Wc) {
        self.overrun |= self.ring.len() == self.depth;
        if !self.overrun {
            self.ring.push_back(wc);
        }
    }

    pub(super) fn overrun(&self) -> bool {
        self.overrun
    }

    /// Moves the oldest completions to the front of `wcs` and returns their number.
    ///
    /// # Errors
    /// `EOVERFLOW`: the queue has overflowed, and all completions from before the overflow are taken.
    #[inline]
    pub(super) fn poll(&mut self, wcs: &mut [Wc]) -> Result<u32, PollError> {
        let n = wcs.len().min(self.ring.len());
        for (wc, taken) in wcs.iter_mut().zip(self.ring.drain(..n)) {
            *wc = taken;
        }
        if n == 0 && self.overrun && !wcs.is_empty() {
            return Err(PollError { errno: libc::EOVERFLOW as u16 });
        }
        Ok(n as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wc(wr_id: u64) -> Wc {
        Wc { wr_id, ..Wc::default() }
    }

    #[test]
    fn completions_come_in_order_and_as_many_as_there_is_room_for() {
        let mut cq = CompletionQueue::new(3);
        (1..=3).for_each(|i| cq.push(wc(i)));
        let mut wcs = [Wc::default(); 2];
        assert_eq!(cq.poll(&mut wcs), Ok(2));
        assert_eq!(wcs, [wc(1), wc(2)]);
        cq.push(wc(4));
        assert_eq!(cq.poll(&mut wcs), Ok(2));
        assert_eq!(wcs, [wc(3), wc(4)]);
        assert_eq!(cq.poll(&mut wcs), Ok(0));
        assert!(!cq.overrun());
    }

    #[test]
    fn a_queue_that_ran_over_gives_what_it_has_and_then_only_its_error() {
        let mut cq = CompletionQueue::new(1);
        cq.push(wc(1));
        cq.push(wc(2));
        assert!(cq.overrun());
        let mut wcs = [Wc::default(); 4];
        assert_eq!(cq.poll(&mut wcs), Ok(1));
        cq.push(wc(3));
        for _ in 0..2 {
            assert_eq!(cq.poll(&mut wcs), Err(PollError { errno: libc::EOVERFLOW as u16 }));
        }
        assert_eq!(cq.poll(&mut []), Ok(0));
    }
}
