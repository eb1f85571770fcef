//! The counts that a receiver gives to its watch; see [`stall`](crate::stall).

use super::RecvComm;
use crate::comm::base::Gate;
use crate::conn::Stream;
use crate::nic::Nic;
use crate::stall::{Counts, Wait};

impl<N: Nic, S: Stream> RecvComm<N, S> {
    /// Notes a call of the program, for [`stall`](crate::stall). `wait` is the call that could do nothing.
    pub fn called(&mut self, wait: Wait, now_ns: u64) {
        self.base.stalls.called(wait, now_ns);
    }

    /// How far the receives are.
    pub(in crate::comm) fn counts(&mut self) -> Counts {
        let begun = self.rows_posted();
        // An idle comm need not count.
        let (done, untested) = match self.base.stalls.is_idle(begun) {
            true => (begun, 0),
            false => (self.rows_arrived(), self.base.reqs.done()),
        };
        let is_recovering = self.base.gate == Gate::Recovering;
        let recovers_in_vain = is_recovering && self.base.recovery.is_in_vain();
        Counts { begun, done, untested, is_recovering, recovers_in_vain, ..Counts::default() }
    }
}
