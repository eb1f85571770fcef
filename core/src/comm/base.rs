//! What both comms have in common: resources, the gate before each call, and polling.

use crate::conn::{Exchange, Stream, StreamError, Verbs};
use crate::error::{Ends, Error, Report};
use crate::nic::{Nic, Wc};

/// Completions taken in one poll.
const POLL_BATCH: usize = 8;

/// Whether calls may pass; what is not `Ready` leaves the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Ready,
    /// The exchange goes on in the first calls (wire of NCCL 2.14).
    Pending,
    /// The peer has closed: what is complete can still be collected.
    Closed(StreamError),
    Failed(Error),
}

pub(super) struct Base<N: Nic, S> {
    pub(super) gate: Gate,
    pub(super) verbs: Verbs<N>,
    pub(super) stream: S,
    pub(super) ends: Ends,
    pub(super) pending: Option<Exchange>,
    wcs: [Wc; POLL_BATCH],
}

impl<N: Nic, S: Stream> Base<N, S> {
    pub(super) fn new(verbs: Verbs<N>, stream: S, ends: Ends, pending: Option<Exchange>) -> Self {
        let gate = if pending.is_some() { Gate::Pending } else { Gate::Ready };
        Base { gate, verbs, stream, ends, pending, wcs: [Wc::default(); POLL_BATCH] }
    }

    pub(super) fn report(&self, error: Error) -> Report<'_> {
        self.ends.report(error)
    }

    /// Keeps an error after which nothing more can succeed, and gives it back.
    #[cold]
    pub(super) fn fail(&mut self, error: Error) -> Error {
        if error.is_fatal() && !matches!(self.gate, Gate::Failed(_)) {
            self.gate = Gate::Failed(error);
        }
        error
    }

    /// The error of a gate that nothing passes.
    #[cold]
    pub(super) fn refused(&self) -> Error {
        match self.gate {
            Gate::Failed(error) => error,
            Gate::Closed(error) => Error::PeerClosed(error),
            Gate::Ready | Gate::Pending => Error::PeerClosed(StreamError::Closed),
        }
    }

    /// Hands each completion that is there to `route`; says whether there was any.
    #[inline]
    pub(super) fn poll(
        &mut self,
        mut route: impl FnMut(&Wc) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let n = match self.verbs.nic.poll(&self.verbs.cq, &mut self.wcs) {
            Ok(0) => return Ok(false),
            Ok(n) => n,
            Err(error) => return Err(self.fail(error.into())),
        };
        let mut first = Ok(true);
        for wc in self.wcs.iter().take(n) {
            if let Err(error) = route(wc)
                && first.is_ok()
            {
                first = Err(error);
            }
        }
        first.map_err(|error| self.fail(error))
    }

    /// Looks whether the peer is still there. Between comms nothing travels over the stream, so
    /// whatever comes is its end, or not from a working peer.
    pub(super) fn check_peer(&mut self) -> Result<(), Error> {
        if self.gate != Gate::Ready {
            return Ok(());
        }
        match self.stream.recv(&mut [0; 8]) {
            Ok(0) => {}
            Ok(_) => return Err(self.fail(Error::Argument("bytes after the end of the exchange"))),
            Err(error) => self.gate = Gate::Closed(error),
        }
        Ok(())
    }
}
