//! The end of a comm whose peer has gone.

use super::base::{Base, Failed, Gate};
use super::route::Route;
use crate::conn::Stream;
use crate::error::Error;
use crate::nic::Nic;

impl<N: Nic, S: Stream, R: Route<N, T, REQS>, T, const REQS: usize> Base<N, S, R, T, REQS> {
    /// Ends the comm, because a look at the peer found that their exchange of connection data has failed.
    #[cold]
    pub(super) fn exchange_failed(&mut self, error: Error) -> Failed {
        match error {
            Error::Stream { error, .. } => self.peer_is_gone(Error::PeerClosed(error)),
            error => self.fail(error),
        }
    }

    /// Ends the comm, because the stream says that the peer has gone.
    pub(super) fn peer_is_gone(&mut self, error: Error) -> Failed {
        // By now the completion queue contains everything that the peer sent before it closed.
        while self.gate != Gate::Failed && self.poll() {}
        if self.gate != Gate::Failed {
            if self.recovery.is_under_way() {
                // The queue pairs that had the requests have failed, and nobody sends them again.
                self.reqs.cut_short();
            }
            // A closed gate stops new requests.
            self.close(Gate::Closed, error);
        }
        self.refuse()
    }
}
