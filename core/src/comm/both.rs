//! The functions that both comms have, and that differ only in the type.

use super::base::Gate;
use super::rails::RailStates;
use super::recovery::RecoveryStage;
use super::{RecvComm, Request, SendComm};
use crate::conn::Stream;
use crate::error::{Ends, Error, Report};
use crate::metrics::EndNumbers;
use crate::nic::Nic;
use crate::stall::Watch;

macro_rules! both {
    ($($comm:ident)*) => {$(
        impl<N: Nic, S: Stream> $comm<N, S> {
            /// Checks that the peer still has its end open, and continues a recovery. An idle comm does not
            /// notice a closed peer by itself. On the wire of NCCL 2.14 the check also continues the exchange of
            /// connection data. On a host this check costs a system call, so call it only from
            /// time to time. `now_ns` is the time of any clock that never goes back.
            ///
            /// # Errors
            /// [`Error::PeerClosed`] if the peer has closed. Requests that are complete can still be tested.
            pub fn check_peer(&mut self, now_ns: u64) -> Result<(), Error> {
                let checked = match self.base.gate {
                    Gate::Pending => {
                        self.exchange().map(drop).map_err(|error| self.base.exchange_failed(error))
                    }
                    _ => self.base.check_peer(now_ns),
                };
                let checked = checked.and_then(|()| {
                    self.look_at_path(now_ns);
                    self.base.look_after_rails(now_ns);
                    self.recover(now_ns)
                });
                if checked.is_ok() {
                    let counts = self.counts();
                    self.base.look_for_stall(counts, now_ns);
                }
                checked.map_err(|failed| {
                    self.peer_gone();
                    self.base.error(failed)
                })
            }

            /// If nothing is under way between the ends, returns the descriptor that is readable when the
            /// peer has something to say, and how many nanoseconds the next look may wait. The look comes sooner
            /// if the descriptor is readable or the program makes a call.
            pub fn rest(&self) -> Option<(core::ffi::c_int, u64)> {
                self.base.rest()
            }

            /// Returns the descriptor of the stream beside the queue pairs, which hangs up when the peer has gone.
            /// There is none while the stream is lost.
            pub fn line(&self) -> Option<core::ffi::c_int> {
                self.base.line()
            }

            /// Notes that the program goes to sleep in the wait that it called last, or with `None` that the wait is
            /// over.
            pub fn park(&mut self, asleep_ns: Option<u64>) {
                self.base.stalls.park(asleep_ns);
            }

            /// Whether the host is to note the program's next call with `called`.
            #[inline(always)]
            pub fn notes_call(&self) -> bool {
                self.base.stalls.is_armed()
            }

            /// Whether all completions of a request have come and the program has not tested it yet.
            pub fn is_done(&mut self, request: &Request) -> bool {
                self.base.reqs.at(request.raw()).is_done(request.raw())
            }

            /// The watch over this end.
            pub fn watch(&self) -> &Watch {
                &self.base.stalls
            }

            /// The numbers for operators; see [`metrics`](crate::metrics).
            pub fn numbers(&self) -> EndNumbers {
                self.base.numbers()
            }

            /// The number of times that the queue pairs have been replaced.
            pub fn attempts(&self) -> u32 {
                self.base.recovery.attempt()
            }

            /// The stage of a recovery, if new queue pairs are being made. Then call `check_peer` often.
            pub fn recovery_stage(&self) -> Option<RecoveryStage> {
                (self.base.gate == Gate::Recovering).then(|| self.base.recovery.stage())
            }

            /// The number of the attempt that has stopped the queue pairs and has not started new ones yet.
            pub fn fenced(&self) -> Option<u32> {
                use RecoveryStage::{Draining, Reported, Stopped};
                let is_fenced = matches!(self.recovery_stage(), Some(Draining | Stopped | Reported));
                is_fenced.then(|| self.attempts())
            }

            /// The state of the rails.
            pub fn rails(&self) -> RailStates {
                self.base.rails.states()
            }

            /// The addresses and queue pairs of both ends.
            pub fn ends(&self) -> &Ends {
                &self.base.ends
            }

            /// The error that has ended the comm, if it has ended.
            pub fn end(&self) -> Option<Error> {
                self.base.end
            }

            /// The numbers of the comm's queue pairs, in the order in which both ends use them.
            pub fn qpns(&self) -> impl Iterator<Item = u32> {
                self.base.verbs.qps().map(|qp| self.base.verbs.nic.qp_num(qp))
            }

            /// Joins an error of this comm with a description of both ends.
            pub fn report(&self, error: Error) -> Report<'_> {
                self.base.report(error)
            }
        }
    )*};
}

both!(SendComm RecvComm);
