//! What both comms have in common: resources, the gate before each call, and polling.

use super::Request;
use crate::conn::{Exchange, Parts, Peer, Stream, StreamError, Verbs};
use crate::error::{CompletionError, Ends, Error, Report};
use crate::nic::{Nic, PollError, Wc, WcStatus};
use crate::request::{Entry, Pool};

/// Completions taken in one poll.
const POLL_BATCH: usize = 8;

/// Whether calls may pass; what is not `Open` leaves the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Gate {
    Open,
    /// The exchange goes on in the first calls (wire of NCCL 2.14).
    Pending,
    /// The peer has closed: what is complete can still be collected.
    Closed,
    Failed,
}

pub(super) struct Base<N: Nic, S, T> {
    pub(super) gate: Gate,
    /// Behind a gate that is closed or failed.
    error: Option<Error>,
    pub(super) reqs: Pool<T>,
    wcs: [Wc; POLL_BATCH],
    pub(super) verbs: Verbs<N>,
    pub(super) stream: S,
    pub(super) ends: Ends,
    pub(super) pending: Option<Exchange>,
}

impl<N: Nic, S: Stream, T: Copy + Default> Base<N, S, T> {
    /// `depth`: how many requests there may be.
    pub(super) fn new(parts: Parts<N, S>, depth: usize) -> (Self, Option<Peer>) {
        let Parts { verbs, stream, ends, peer, pending } = parts;
        let base = Base {
            gate: if pending.is_some() { Gate::Pending } else { Gate::Open },
            error: None,
            reqs: Pool::new(depth),
            wcs: [Wc::default(); POLL_BATCH],
            verbs,
            stream,
            ends,
            pending,
        };
        (base, peer)
    }

    pub(super) fn report(&self, error: Error) -> Report<'_> {
        self.ends.report(error)
    }

    /// Keeps an error after which nothing more can succeed, and gives it back.
    #[cold]
    pub(super) fn fail(&mut self, error: Error) -> Error {
        if error.is_fatal() && self.gate != Gate::Failed {
            self.gate = Gate::Failed;
            self.error = Some(error);
            self.reqs.stop_waiting();
        }
        error
    }

    /// The error of a gate that nothing passes.
    #[cold]
    pub(super) fn refused(&self) -> Error {
        self.error.unwrap_or(Error::PeerClosed(StreamError::Closed))
    }

    /// Takes completions from the NIC; how many, for [`Base::book`].
    #[inline(always)]
    pub(super) fn poll(&mut self) -> Result<u32, PollError> {
        self.verbs.nic.poll(&self.verbs.cq, &mut self.wcs)
    }

    /// Hands the completions of a poll to `route`, which says whether it awaited them. The first
    /// error stays; whether there was none.
    #[inline(always)]
    pub(super) fn book(
        &mut self,
        polled: Result<u32, PollError>,
        route: impl Fn(&mut Pool<T>, &Wc) -> bool,
    ) -> bool {
        let n = match polled {
            Ok(n) => n as usize,
            Err(error) => {
                self.fail(Error::Nic(error.into()));
                return false;
            }
        };
        for i in 0..n.min(POLL_BATCH) {
            let wc = &self.wcs[i];
            if wc.status != WcStatus::SUCCESS || !route(&mut self.reqs, wc) {
                self.broken(i);
            }
        }
        self.gate != Gate::Failed
    }

    /// The error of the completion at `i` of a batch.
    #[cold]
    fn broken(&mut self, i: usize) {
        let wc = self.wcs[i];
        let settings = &self.verbs.settings;
        let error = if wc.status == WcStatus::SUCCESS {
            Error::UnknownCompletion { wr_id: wc.wr_id, qpn: wc.qp_num }
        } else {
            Error::Completion(CompletionError::new(&wc, settings.timeout, settings.retry_cnt))
        };
        self.fail(error);
    }

    /// The value of a request that does not wait, if it is done rather than cut short or unknown.
    #[inline(always)]
    pub(super) fn done(&self, request: &Request) -> Result<&T, Error> {
        match self.reqs.get(request) {
            Some(entry) if self.gate == Gate::Open || self.may_collect(entry) => Ok(&entry.value),
            _ => Err(self.not_done(request)),
        }
    }

    /// Behind a closed gate, what is complete can be collected; behind a failed one, nothing.
    #[cold]
    fn may_collect(&self, entry: &Entry<T>) -> bool {
        self.gate != Gate::Failed && !entry.is_cut_short()
    }

    #[cold]
    fn not_done(&self, request: &Request) -> Error {
        match self.gate {
            Gate::Open | Gate::Pending => Error::UnknownRequest(request.raw()),
            Gate::Closed if self.reqs.get(request).is_none() => {
                Error::UnknownRequest(request.raw())
            }
            Gate::Closed | Gate::Failed => self.refused(),
        }
    }

    /// Looks whether the peer is still there: between comms nothing travels over the stream, so
    /// whatever comes is its end, or not from a working peer.
    pub(super) fn check_peer(
        &mut self,
        route: impl Fn(&mut Pool<T>, &Wc) -> bool,
    ) -> Result<(), Error> {
        match self.gate {
            Gate::Pending => return Ok(()),
            Gate::Closed | Gate::Failed => return Err(self.refused()),
            Gate::Open => {}
        }
        let error = match self.stream.recv(&mut [0; 8]) {
            Ok(0) => return Ok(()),
            Ok(_) => return Err(self.fail(Error::Unexpected)),
            Err(error) => Error::PeerClosed(error),
        };
        // What the peer sent before it closed is in the completion queue by now.
        loop {
            match self.poll() {
                Ok(0) => break,
                polled if self.book(polled, &route) => {}
                _ => return Err(self.refused()),
            }
        }
        self.gate = Gate::Closed;
        self.error = Some(error);
        Err(error)
    }
}
