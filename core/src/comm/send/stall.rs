//! The counts that a sender gives to its watch; see [`stall`](crate::stall).

use super::SendComm;
use crate::comm::base::Gate;
use crate::conn::Stream;
use crate::fifo::RECVS_MAX;
use crate::nic::Nic;
use crate::stall::{Counts, Wait};

impl<N: Nic, S: Stream> SendComm<N, S> {
    /// Notes a call of the program, for [`stall`](crate::stall). `wait` is the call that could do nothing.
    pub fn called(&mut self, wait: Wait, now_ns: u64) {
        let begun = self.rows_sent();
        let row = self.base.stalls.sampler().row();
        let is_done = row.is_some_and(|row| !self.is_awaiting(row));
        self.base.stalls.sample(begun, wait, is_done, now_ns);
        self.base.stalls.called(wait, now_ns);
    }

    /// How far the sends are.
    pub(in crate::comm) fn counts(&mut self) -> Counts {
        let begun = self.rows_sent();
        let lacking = self.group.lacking();
        let (seen, seen_tag) = match (self.row(), self.slot()) {
            (Some(row), Some(_)) if lacking > 0 => (begun + 1, row.seen(self.group.next()).tag()),
            (_, Some(slot)) => (begun + 1, slot.tag()),
            _ => (begun, 0),
        };
        // An idle comm need not count.
        let (done, untested) = match self.base.stalls.is_idle(begun) {
            true => (begun, 0),
            false => (self.rows_acknowledged(), self.base.reqs.done()),
        };
        let is_recovering = self.base.gate == Gate::Recovering;
        let recovers_in_vain = is_recovering && self.base.recovery.is_in_vain();
        Counts {
            begun,
            done,
            seen,
            seen_tag,
            ahead_tag: None,
            lacking,
            untested,
            is_recovering,
            recovers_in_vain,
        }
    }

    /// The number of rows that the peer has acknowledged. Rows are acknowledged in order.
    fn rows_acknowledged(&mut self) -> u64 {
        let (depth, sent) = (self.row_mask as u64 + 1, self.rows_sent());
        // A group that is not complete has taken the requests of the oldest row.
        let depth_sent = if self.group.is_complete() { depth } else { depth - 1 };
        let mut rows = sent.saturating_sub(depth_sent)..sent;
        rows.find(|row| self.is_awaiting(*row)).unwrap_or(sent)
    }

    /// Whether the first request of a row awaits completions.
    fn is_awaiting(&mut self, row: u64) -> bool {
        let first = (row % (self.row_mask as u64 + 1)) as usize * RECVS_MAX;
        self.base.reqs.at(first as u32).is_awaiting()
    }
}
