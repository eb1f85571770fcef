//! The counts that a receiver gives to its watch; see [`stall`](crate::stall).

use super::RecvComm;
use crate::comm::base::Gate;
use crate::conn::Stream;
use crate::metrics::EndNumbers;
use crate::nic::Nic;
use crate::stall::{Counts, EndView, Verdict, Wait};

impl<N: Nic, S: Stream> RecvComm<N, S> {
    /// Whether the host is to note the program's next call with [`RecvComm::called`].
    #[inline(always)]
    pub fn notes_call(&self) -> bool {
        self.base.stalls.is_armed()
    }

    /// Notes a call of the program, for [`stall`](crate::stall). `wait` is the call that could do nothing.
    pub fn called(&mut self, wait: Wait, now_ns: u64) {
        self.base.called(wait, now_ns);
    }

    /// The end's view, if the flight recorder keeps it.
    pub fn recorded_view(&self, now_ns: u64) -> Option<EndView> {
        let stalls = &self.base.stalls;
        stalls.is_recorded().then(|| stalls.view(now_ns))
    }

    /// The numbers for operators; see [`metrics`](crate::metrics).
    pub fn numbers(&self) -> EndNumbers {
        self.base.numbers()
    }

    /// Why the connection stands still, if it does and the user was told.
    pub fn verdict(&self) -> Option<Verdict> {
        self.base.stalls.verdict()
    }

    /// Looks whether the connection stands still.
    pub(super) fn look_for_stall(&mut self, now_ns: u64) {
        let begun = self.rows_posted();
        // An idle comm need not count.
        let (done, untested) = match self.base.stalls.is_idle(begun) {
            true => (begun, 0),
            false => (self.rows_arrived(), self.base.reqs.done()),
        };
        let is_recovering = self.base.gate == Gate::Recovering;
        let counts = Counts { begun, done, untested, is_recovering, ..Counts::default() };
        self.base.look_for_stall(counts, now_ns);
    }
}
