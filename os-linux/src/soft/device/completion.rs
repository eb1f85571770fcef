//! Completion queues.

use std::collections::VecDeque;

use invar_core::nic::{PollError, Wc, WcStatus};

/// A queue of completions in order, at most `depth` at a time.
pub(super) struct CompletionQueue {
    ring: VecDeque<Wc>,
    depth: usize,
    overrun: bool,
    /// Number of completions in the queue up to the last one that is solicited or an error.
    solicited: usize,
    armed: Armed,
}

/// Completions that raise an event.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Armed {
    #[default]
    None,
    /// Solicited completions and errors.
    Solicited,
    Any,
    /// Any completion, and a peer's write to memory.
    AnyOrWrite,
}

/// The events that end the wait of an armed completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A solicited completion or an error.
    Solicited,
    /// Any completion, solicited or not.
    Completion,
    /// Any completion, and a write of a peer to memory over a queue pair of this queue.
    CompletionOrWrite,
}

impl CompletionQueue {
    pub(super) fn new(depth: usize) -> Self {
        CompletionQueue {
            ring: VecDeque::with_capacity(depth),
            depth,
            overrun: false,
            solicited: 0,
            armed: Armed::None,
        }
    }

    /// Adds a completion. If the queue is full, it overflows for good (`IBV_EVENT_CQ_ERR`): it drops
    /// this and all later completions, and its queue pairs go to ERR. Returns whether this completion
    /// raises an event.
    #[inline]
    pub(super) fn push(&mut self, wc: Wc, solicited: bool) -> bool {
        self.overrun |= self.ring.len() == self.depth;
        if !self.overrun {
            self.ring.push_back(wc);
        }
        let solicited = solicited || wc.status != WcStatus::SUCCESS || self.overrun;
        if solicited {
            self.solicited = self.ring.len();
        }
        let raises = match self.armed {
            Armed::None => false,
            Armed::Solicited => solicited,
            Armed::Any | Armed::AnyOrWrite => true,
        };
        if raises {
            self.armed = Armed::None;
        }
        raises
    }

    /// Arms the queue: the next of the `awaited` events is raised. If the queue already waits for more kinds
    /// of events, it keeps waiting for all of them. Returns whether a completion that nobody has taken yet raises
    /// the event at once. NICs in hardware do so, and UCX sleeps without a last look at the queue.
    pub(super) fn arm(&mut self, awaited: Awaited) -> bool {
        self.armed = self.armed.max(match awaited {
            Awaited::Solicited => Armed::Solicited,
            Awaited::Completion => Armed::Any,
            Awaited::CompletionOrWrite => Armed::AnyOrWrite,
        });
        let raises = match self.armed {
            Armed::None => false,
            Armed::Solicited => self.solicited > 0,
            Armed::Any | Armed::AnyOrWrite => !self.ring.is_empty(),
        };
        if raises {
            self.armed = Armed::None;
        }
        raises
    }

    /// Notes that a peer has written to memory. Returns whether this raises an event.
    #[inline]
    pub(super) fn written(&mut self) -> bool {
        let raises = self.armed == Armed::AnyOrWrite;
        if raises {
            self.armed = Armed::None;
        }
        raises
    }

    /// Removes the completions of a queue pair.
    pub(super) fn forget(&mut self, qpn: u32) {
        let (end, mut at) = (self.solicited, 0);
        self.ring.retain(|wc| {
            let is_kept = wc.qp_num != qpn;
            self.solicited -= usize::from(!is_kept && at < end);
            at += 1;
            is_kept
        });
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed != Armed::None
    }

    /// Changes the depth, unless more completions are in the queue.
    pub(super) fn resize(&mut self, depth: usize) -> bool {
        let fits = self.ring.len() <= depth;
        if fits {
            self.depth = depth;
        }
        fits
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
        self.solicited = self.solicited.saturating_sub(n);
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
        for i in 1..=3 {
            cq.push(wc(i), false);
        }
        let mut wcs = [Wc::default(); 2];
        assert_eq!(cq.poll(&mut wcs), Ok(2));
        assert_eq!(wcs, [wc(1), wc(2)]);
        cq.push(wc(4), false);
        assert_eq!(cq.poll(&mut wcs), Ok(2));
        assert_eq!(wcs, [wc(3), wc(4)]);
        assert_eq!(cq.poll(&mut wcs), Ok(0));
        assert!(!cq.overrun());
    }

    fn drain(cq: &mut CompletionQueue) {
        let mut wcs = [Wc::default(); 8];
        while cq.poll(&mut wcs).unwrap() > 0 {}
    }

    #[test]
    fn an_armed_queue_raises_one_event_for_the_next_completion_that_it_waits_for() {
        let error = Wc { status: WcStatus::RETRY_EXC_ERR, ..wc(9) };
        let mut cq = CompletionQueue::new(100);
        assert!(!cq.push(wc(1), true), "not armed");
        drain(&mut cq);
        assert!(!cq.arm(Awaited::Completion));
        assert!(cq.push(wc(2), false));
        assert!(!cq.push(wc(3), true), "raised one already");
        drain(&mut cq);
        assert!(!cq.arm(Awaited::Solicited));
        assert!(!cq.push(wc(4), false));
        assert!(cq.push(wc(5), true));
        drain(&mut cq);
        assert!(!cq.arm(Awaited::Solicited));
        assert!(cq.push(error, false));
        drain(&mut cq);
        assert!(!cq.arm(Awaited::Solicited));
        assert!(!cq.arm(Awaited::Completion));
        assert!(!cq.arm(Awaited::Solicited));
        assert!(cq.push(wc(6), false), "waits for any");
    }

    #[test]
    fn a_completion_that_nobody_has_taken_raises_an_event_when_the_queue_is_armed() {
        let mut cq = CompletionQueue::new(100);
        cq.push(wc(1), false);
        assert!(!cq.arm(Awaited::Solicited));
        assert!(cq.arm(Awaited::Completion));
        assert!(!cq.is_armed() && !cq.push(wc(2), false), "raised one already");
        for (wr_id, solicited) in [(3, true), (4, false)] {
            cq.push(wc(wr_id), solicited);
        }
        assert_eq!(cq.poll(&mut [Wc::default(); 2]), Ok(2));
        assert!(cq.arm(Awaited::Solicited), "the solicited one is there");
        assert_eq!(cq.poll(&mut [Wc::default()]), Ok(1));
        assert!(!cq.arm(Awaited::Solicited), "it was taken");
        assert!(cq.arm(Awaited::CompletionOrWrite));
    }

    #[test]
    fn completions_of_a_forgotten_queue_pair_go_and_the_others_stay_in_order() {
        let mut cq = CompletionQueue::new(100);
        for (wr_id, qp_num, solicited) in [(1, 7, true), (2, 8, true), (3, 7, false), (4, 8, false)]
        {
            cq.push(Wc { qp_num, ..wc(wr_id) }, solicited);
        }
        cq.forget(7);
        let mut wcs = [Wc::default(); 3];
        assert!(cq.arm(Awaited::Solicited), "the other one's is there");
        assert_eq!(cq.poll(&mut wcs[..1]), Ok(1));
        assert!(!cq.arm(Awaited::Solicited), "it was taken");
        assert_eq!(cq.poll(&mut wcs[1..]), Ok(1));
        assert_eq!(wcs.map(|wc| wc.wr_id), [2, 4, 0]);
    }

    #[test]
    fn a_write_raises_an_event_only_where_it_is_awaited() {
        let mut cq = CompletionQueue::new(100);
        assert!(!cq.written(), "not armed");
        cq.arm(Awaited::Completion);
        assert!(!cq.written());
        cq.arm(Awaited::CompletionOrWrite);
        cq.arm(Awaited::Solicited);
        assert!(cq.written());
        assert!(!cq.push(wc(1), true), "raised one already");
        drain(&mut cq);
        assert!(!cq.arm(Awaited::CompletionOrWrite));
        assert!(cq.push(wc(2), false));
    }

    #[test]
    fn a_queue_shrinks_only_to_what_its_completions_need() {
        let mut cq = CompletionQueue::new(4);
        for i in 1..=3 {
            cq.push(wc(i), false);
        }
        assert!(!cq.resize(2));
        assert!(cq.resize(3));
        cq.push(wc(4), false);
        assert!(cq.overrun());
    }

    #[test]
    fn a_queue_that_ran_over_gives_what_it_has_and_then_only_its_error() {
        let mut cq = CompletionQueue::new(1);
        cq.push(wc(1), false);
        cq.push(wc(2), false);
        assert!(cq.overrun());
        let mut wcs = [Wc::default(); 4];
        assert_eq!(cq.poll(&mut wcs), Ok(1));
        cq.push(wc(3), false);
        for _ in 0..2 {
            assert_eq!(cq.poll(&mut wcs), Err(PollError { errno: libc::EOVERFLOW as u16 }));
        }
        assert_eq!(cq.poll(&mut []), Ok(0));
    }
}
