//! What both comms have in common: resources, the gate before each call, and polling.

use super::Request;
use crate::conn::{Exchange, Parts, Peer, Settings, Stream, StreamError, Verbs};
use crate::error::{CompletionError, Ends, Error, Report};
use crate::nic::{Nic, Wc, WcStatus};
use crate::request::Ring;

/// Completions taken in one poll.
const POLL_BATCH: usize = 8;

/// Whether calls may pass; what is not `Open` leaves the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Gate {
    Open,
    /// Open, and a group of sends is being matched.
    Group,
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
    pub(super) reqs: Ring<T>,
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
            reqs: Ring::new(depth),
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
        if error.is_fatal() {
            fail(&mut self.gate, &mut self.error, &mut self.reqs, error);
        }
        error
    }

    /// The peer has closed: nothing new can start.
    pub(super) fn close(&mut self, error: Error) {
        self.gate = Gate::Closed;
        self.error = Some(error);
    }

    /// The error of a gate that nothing passes.
    #[cold]
    pub(super) fn refused(&self) -> Error {
        self.error.unwrap_or(Error::PeerClosed(StreamError::Closed))
    }

    /// Takes completions that are there and hands them to `route`, which says whether they were
    /// awaited; whether there was any. The first error stays.
    #[inline(always)]
    pub(super) fn poll(&mut self, mut route: impl FnMut(&mut Ring<T>, &Wc) -> bool) -> bool {
        let Base { verbs, wcs, reqs, gate, error, .. } = self;
        let n = match verbs.nic.poll(&verbs.cq, wcs) {
            Ok(0) => return false,
            Ok(n) => n as usize,
            Err(failure) => {
                fail(gate, error, reqs, Error::Nic(failure.into()));
                return true;
            }
        };
        for wc in wcs.iter().take(n) {
            if wc.status != WcStatus::SUCCESS || !route(reqs, wc) {
                fail(gate, error, reqs, completion_error(&verbs.settings, wc));
            }
        }
        true
    }

    /// Why `request` is neither waiting nor done.
    #[cold]
    pub(super) fn not_done(&self, request: &Request) -> Error {
        match self.gate {
            Gate::Failed => self.refused(),
            Gate::Closed if self.reqs.is_cut_short(request) => self.refused(),
            _ => Error::UnknownRequest(request.raw()),
        }
    }

    /// Looks whether the peer is still there: between comms nothing travels over the stream, so
    /// whatever comes is its end, or not from a working peer.
    pub(super) fn check_peer(
        &mut self,
        mut route: impl FnMut(&mut Ring<T>, &Wc) -> bool,
    ) -> Result<(), Error> {
        match self.gate {
            Gate::Pending => return Ok(()),
            Gate::Closed | Gate::Failed => return Err(self.refused()),
            Gate::Open | Gate::Group => {}
        }
        let error = match self.stream.recv(&mut [0; 8]) {
            Ok(0) => return Ok(()),
            Ok(_) => return Err(self.fail(Error::Unexpected)),
            Err(error) => Error::PeerClosed(error),
        };
        // What the peer sent before it closed is in the completion queue by now.
        while self.gate != Gate::Failed && self.poll(&mut route) {}
        if self.gate != Gate::Failed {
            self.close(error);
        }
        Err(self.refused())
    }
}

/// Keeps the first error; what waits will never be done.
#[cold]
#[inline(never)]
fn fail<T: Copy + Default>(
    gate: &mut Gate,
    kept: &mut Option<Error>,
    reqs: &mut Ring<T>,
    error: Error,
) {
    if *gate != Gate::Failed {
        *gate = Gate::Failed;
        *kept = Some(error);
        reqs.cut_short();
    }
}

/// What a completion tells that is in error, or that nobody awaited.
#[cold]
#[inline(never)]
fn completion_error(settings: &Settings, wc: &Wc) -> Error {
    if wc.status == WcStatus::SUCCESS {
        Error::UnknownCompletion { wr_id: wc.wr_id, qpn: wc.qp_num }
    } else {
        Error::Completion(CompletionError::new(wc, settings.timeout, settings.retry_cnt))
    }
}
