//! The functions of comms that are needed to look after them.

use std::os::fd::{BorrowedFd, RawFd};

use invar_core::comm::{self, Fast, Request};
use invar_core::conn::Stream;
use invar_core::error::{Ends, Error};
use invar_core::stall::Wait;
use invar_linux::interest::Interest;

use super::closing;
use super::end::Carrier;
use super::nic::SharedNic;
use super::recorded::{EndState, Snapshot};

/// The functions that the comms of both directions and of all transports have. `N` is the NIC, or `()` without one.
pub(super) trait CommHooks<N>: Sized {
    /// Whether data moves only in calls, and from and to any memory.
    const NEEDS_CALLS: bool = false;

    /// Returns the names of both ends.
    fn ends(&self) -> &Ends;

    /// Returns what carries a pending request; see [`End::carriers`](super::End::carriers).
    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>>;

    /// Checks whether the peer is still there, and continues a recovery.
    fn check_peer(&mut self, now_ns: u64) -> Result<(), Error>;

    fn is_recovering(&self) -> bool;

    /// If nothing is under way, returns the descriptor that is readable when the comm needs a look, and how many
    /// nanoseconds the next look may wait. The look comes sooner if the descriptor is readable or the program makes a
    /// call.
    fn rest(&self) -> Option<(RawFd, u64)>;

    /// Returns the descriptor that hangs up when the peer has gone, unless the descriptors of the data do.
    fn line(&self) -> Option<RawFd> {
        None
    }

    /// Arms what ends a wait for data.
    fn arm(&mut self, interest: &mut Interest);

    /// Notes that the program goes to sleep in the wait that it called last, or with `None` that the wait is over.
    fn park(&mut self, asleep_ns: Option<u64>);

    /// Whether the program's next call is to be noted.
    fn notes_call(&self) -> bool;

    /// Notes a call of the program. `wait` is the call that could do nothing.
    fn called(&mut self, wait: Wait, now_ns: u64);

    /// Returns what the flight recorder keeps of the comm, if it keeps any. `counts` asks for the counters of the NIC
    /// too.
    fn snapshot(&self, nic: &N, counts: bool, now_ns: u64) -> Option<Snapshot>;

    /// Whether all completions of a request have come; see [`End::is_done`](super::End::is_done).
    fn is_done(&mut self, request: &Request) -> bool;

    /// The fast path of a test; see [`End::test_fast`](super::End::test_fast).
    #[inline(always)]
    fn test_fast(&mut self, _request: &Request) -> Fast<u32> {
        Fast::Slow
    }

    /// Ends the connection; see [`End::close`](super::End::close).
    fn close(self, _nic: &N) {}
}

/// Implements the hooks of a comm that are functions of the comm itself, under the same names.
macro_rules! own_hooks {
    () => {
        fn ends(&self) -> &Ends {
            self.ends()
        }

        fn rest(&self) -> Option<(RawFd, u64)> {
            self.rest()
        }

        fn park(&mut self, asleep_ns: Option<u64>) {
            self.park(asleep_ns);
        }

        fn notes_call(&self) -> bool {
            self.notes_call()
        }

        fn called(&mut self, wait: Wait, now_ns: u64) {
            self.called(wait, now_ns);
        }

        fn is_done(&mut self, request: &Request) -> bool {
            self.is_done(request)
        }
    };
}
pub(super) use own_hooks;

/// Implements the hooks that both comms on NICs have alike.
macro_rules! hooks_on_nics {
    () => {
        own_hooks!();

        fn check_peer(&mut self, now_ns: u64) -> Result<(), Error> {
            self.check_peer(now_ns)
        }

        fn is_recovering(&self) -> bool {
            self.recovery_stage().is_some()
        }

        fn line(&self) -> Option<RawFd> {
            self.line()
        }

        fn arm(&mut self, interest: &mut Interest) {
            // SAFETY: the NIC keeps the descriptor open as long as the queue, and so as long as this comm.
            let mut ready = |fd| interest.readable(unsafe { BorrowedFd::borrow_raw(fd) });
            if !self.arm(&mut ready) {
                interest.blind();
            }
        }

        fn snapshot(&self, nic: &N, counts: bool, now_ns: u64) -> Option<Snapshot> {
            let state = EndState { error: self.end(), fenced: self.fenced(), rails: self.rails() };
            let counters = counts.then(|| nic.counters());
            Snapshot::of(self.watch(), self.ends(), self.numbers(), counters, state, now_ns)
        }

        #[inline(always)]
        fn test_fast(&mut self, request: &Request) -> Fast<u32> {
            self.test_fast(request)
        }
    };
}

impl<N: SharedNic, S: Stream> CommHooks<N> for comm::SendComm<N, S> {
    hooks_on_nics!();

    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        Some(self.work(request)?.map(Carrier::Work).collect())
    }
}

impl<N: SharedNic, S: Stream> CommHooks<N> for comm::RecvComm<N, S> {
    hooks_on_nics!();

    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        Some(self.work(request).map(Carrier::Work).collect())
    }

    fn close(self, nic: &N) {
        let host = self.ends().peer.map(|peer| peer.ip());
        let mut ending = self.close();
        closing::wait(host, || {
            let is_over = ending.poll();
            if !is_over {
                nic.progress();
                std::thread::yield_now();
            }
            is_over
        });
    }
}
