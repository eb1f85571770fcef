//! When queue pairs want to be called again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Device;
use super::queue_pair::{QueuePair, Surroundings};

/// Deadlines, soonest first.
///
/// A deadline moves with every acknowledge, nearly always to later. So a queue pair stays where it
/// once was put, and only when that time comes is looked at and put where it belongs then: a
/// queue pair under load moves once in a timer's length, not once a packet.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Timers {
    /// Sees to it that a queue pair is looked at by its deadline.
    #[inline]
    pub(super) fn arm(&mut self, qpn: u32, qp: &mut QueuePair) {
        let deadline = qp.deadline_ns();
        if deadline < qp.armed_ns {
            qp.armed_ns = deadline;
            self.heap.push(Reverse((deadline, qpn)));
        }
    }

    fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    fn pop_due(&mut self, now_ns: u64) -> Option<(u64, u32)> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}

impl Device {
    /// Runs what is due. To be called at [`Device::next_deadline_ns`]; more often does no harm.
    #[inline]
    pub fn handle_timers(&mut self, now_ns: u64) {
        while let Some((at, qpn)) = self.timers.pop_due(now_ns) {
            let Some(qp) = self.qps.get_mut(qpn) else { continue };
            if qp.armed_ns != at {
                // It was put to an earlier time since.
                continue;
            }
            qp.armed_ns = u64::MAX;
            if qp.deadline_ns() > now_ns {
                self.timers.arm(qpn, qp);
                continue;
            }
            let (pd, cq) = (qp.pd, qp.cq);
            let mut env = Surroundings { regions: &self.regions, cqs: &mut self.cqs, pd, cq };
            qp.handle_timeout(now_ns, &mut env);
            qp.follow_up(qpn, &mut env, &mut self.ready);
        }
    }

    /// When [`Device::handle_timers`] and [`Device::transmit`] are due, on the clock of their
    /// `now_ns`; `None` for not before something else happens. May be too early, never too late.
    #[inline]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.timers.next_ns()
    }
}
