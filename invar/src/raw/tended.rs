//! The comms of an [`On`](super::On): four kinds, looked after in one way.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use invar_core::comm::{self, Fast, Request};
use invar_core::conn::Stream;
use invar_core::error::{Ends, Error as CoreError};
use invar_core::nic::NicCounters;
use invar_core::stall::Wait;
use invar_linux::clock;
use invar_linux::interest::Interest;
use invar_linux::socket;

use super::end::{CLOSE_MAX, Carrier};
use super::nic::SharedNic;
use super::recorded::{EndState, Snapshot};

/// The functions of all kinds of comms that are needed to look after them. `N` is the NIC below the comm.
pub(super) trait Tended<N>: Send + Sized {
    /// Whether data moves only in calls, and from and to any memory.
    const NEEDS_CALLS: bool = false;

    fn ends(&self) -> &Ends;

    /// Returns the carriers of a pending request; see [`End::carriers`](super::End::carriers).
    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>>;

    /// Checks whether the peer is still there, and continues a recovery.
    fn check_peer(&mut self, now_ns: u64) -> Result<(), CoreError>;

    fn is_recovering(&self) -> bool {
        false
    }

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

    /// Returns the counters of the NIC, if it counts.
    fn counters(_nic: &N) -> Option<NicCounters> {
        None
    }

    /// Returns what the flight recorder keeps of the comm, if it keeps any.
    fn snapshot(&self, nic: Option<NicCounters>, now_ns: u64) -> Option<Snapshot>;

    /// The fast path of a test; see [`End::test_fast`](super::End::test_fast).
    #[inline(always)]
    fn test_fast(&mut self, _request: &Request) -> Fast<u32> {
        Fast::Slow
    }

    /// Ends the connection; see [`End::close`](super::End::close).
    fn close(self, _nic: &N) {}
}

/// Implements what the sending and the receiving comm of a transport have by the same names.
macro_rules! by_the_same_names {
    ($($Comm:tt)+) => {
        fn ends(&self) -> &Ends {
            $($Comm)+::ends(self)
        }

        fn rest(&self) -> Option<(RawFd, u64)> {
            $($Comm)+::rest(self)
        }

        fn park(&mut self, asleep_ns: Option<u64>) {
            $($Comm)+::park(self, asleep_ns);
        }

        #[inline(always)]
        fn notes_call(&self) -> bool {
            $($Comm)+::notes_call(self)
        }

        fn called(&mut self, wait: Wait, now_ns: u64) {
            $($Comm)+::called(self, wait, now_ns);
        }
    };
}

/// Implements [`Tended`] for a comm on NICs. `own` is what the other one has not.
macro_rules! on_nics {
    ($Comm:ident { $($own:item)+ }) => {
        impl<N: SharedNic, S: Stream + Send> Tended<N> for comm::$Comm<N, S> {
            by_the_same_names!(comm::$Comm);

            $($own)+

            fn check_peer(&mut self, now_ns: u64) -> Result<(), CoreError> {
                comm::$Comm::check_peer(self, now_ns)
            }

            #[inline(always)]
            fn is_recovering(&self) -> bool {
                self.recovery_stage().is_some()
            }

            fn line(&self) -> Option<RawFd> {
                comm::$Comm::line(self)
            }

            fn arm(&mut self, interest: &mut Interest) {
                // SAFETY: the NIC keeps the descriptor open as long as the queue, and so as long as the comm.
                let mut ready = |fd| interest.readable(unsafe { BorrowedFd::borrow_raw(fd) });
                if !comm::$Comm::arm(self, &mut ready) {
                    interest.blind();
                }
            }

            fn counters(nic: &N) -> Option<NicCounters> {
                Some(nic.counters())
            }

            fn snapshot(&self, nic: Option<NicCounters>, now_ns: u64) -> Option<Snapshot> {
                let (fenced, rails) = (self.fenced(), self.rails_in_use());
                let state = EndState { error: self.end(), fenced, rails };
                Snapshot::of(self.watch(), comm::$Comm::ends(self), self.numbers(), nic, state, now_ns)
            }

            #[inline(always)]
            fn test_fast(&mut self, request: &Request) -> Fast<u32> {
                comm::$Comm::test_fast(self, request)
            }
        }
    };
}

on_nics!(SendComm {
    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        Some(self.work(request)?.map(Carrier::Work).collect())
    }
});

on_nics!(RecvComm {
    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        Some(self.work(request).map(Carrier::Work).collect())
    }

    fn close(self, nic: &N) {
        let deadline_ns = clock::now_ns() + CLOSE_MAX.as_nanos() as u64;
        let mut closing = comm::RecvComm::close(self);
        while !closing.poll() && clock::now_ns() < deadline_ns {
            nic.progress();
            std::thread::yield_now();
        }
    }
});

/// Implements [`Tended`] for a comm over TCP, below which there is no NIC.
macro_rules! over_tcp {
    ($Comm:ident { $($own:item)+ }) => {
        impl Tended<()> for socket::$Comm {
            const NEEDS_CALLS: bool = true;

            by_the_same_names!(socket::$Comm);

            $($own)+

            fn carriers(&mut self, _: &Request) -> Option<Vec<Carrier>> {
                Some(vec![Carrier::Socket(self.main_socket().as_raw_fd())])
            }

            fn arm(&mut self, interest: &mut Interest) {
                socket::$Comm::arm(self, interest);
            }

            fn snapshot(&self, nic: Option<NicCounters>, now_ns: u64) -> Option<Snapshot> {
                let state = EndState { error: self.end(), ..EndState::default() };
                Snapshot::of(self.watch(), socket::$Comm::ends(self), self.numbers(), nic, state, now_ns)
            }
        }
    };
}

over_tcp!(SendComm {
    fn check_peer(&mut self, now_ns: u64) -> Result<(), CoreError> {
        let checked = socket::SendComm::check_peer(self);
        self.look_for_stall(now_ns);
        checked
    }
});

over_tcp!(RecvComm {
    fn check_peer(&mut self, now_ns: u64) -> Result<(), CoreError> {
        self.look_for_stall(now_ns);
        socket::RecvComm::check_peer(self)
    }
});
