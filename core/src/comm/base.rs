//! What both comms have in common: resources, the gate before each call, and polling.
//!
//! Calls that do what is usual stay within one function, in registers; all else is left to
//! functions that are not inlined, of which most are called last. So the usual way saves and
//! spills next to nothing. An [`Error`] fills several registers: where a result crosses such a
//! call, the error stays in the comm and [`Failed`] says so.

use super::Request;
use super::notice::NoticeReader;
use super::route::Route;
use crate::conn::{Exchange, Parts, Settings, Stream, StreamError, Verbs};
use crate::error::{CompletionError, Ends, Error, Report};
use crate::nic::{Nic, NicError, PollError, Wc, WcStatus};
use crate::request::Ring;

/// Completions taken in one poll.
const POLL_BATCH: usize = 32;

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

/// A call has failed; [`Base::error`] says why.
pub(super) struct Failed;

/// How far the usual part of a call came. It is for callers that make each call a function, as C
/// does: such a function, which goes on with the whole call as its last act, saves next to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Usual<T> {
    /// The call is done.
    Done(T),
    /// So is this one; what it is about is not there yet.
    NotYet,
    /// Something else has to be done, which nobody has begun with: make the whole call.
    Unusual,
}

/// What a test has polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Polled {
    /// The one completion that the request awaited: it is over.
    Done(u32),
    /// Nothing.
    NotYet,
    /// Other completions, so many, which are still to be booked.
    Other(u32),
}

/// What a test finds.
pub(super) enum Settled {
    Waiting,
    /// Done, and given back; what stands beside it is still there.
    Done,
    /// Neither waiting nor done.
    Unknown,
}

#[repr(C)]
pub(super) struct Base<N: Nic, S, R, T, const REQS: usize> {
    /// First, so that where a request is takes no addition.
    pub(super) reqs: Ring<T, REQS>,
    wcs: [Wc; POLL_BATCH],
    pub(super) gate: Gate,
    /// What ended the connection, behind a gate that is closed or failed.
    end: Option<Error>,
    /// Of the call that failed last.
    error: Option<Error>,
    /// Released before the completion queue, as a queue pair of its own is.
    pub(super) route: R,
    pub(super) verbs: Verbs<N>,
    pub(super) stream: S,
    pub(super) notice: NoticeReader,
    pub(super) ends: Ends,
    pub(super) pending: Option<Exchange>,
}

impl<N: Nic, S: Stream, R: Route<T, REQS>, T, const REQS: usize> Base<N, S, R, T, REQS> {
    pub(super) fn new(parts: Parts<N, S>, reqs: Ring<T, REQS>, route: R) -> Self {
        let Parts { verbs, stream, ends, pending, .. } = parts;
        Base {
            reqs,
            wcs: [Wc::default(); POLL_BATCH],
            gate: if pending.is_some() { Gate::Pending } else { Gate::Open },
            end: None,
            error: None,
            route,
            verbs,
            stream,
            notice: NoticeReader::default(),
            ends,
            pending,
        }
    }

    pub(super) fn report(&self, error: Error) -> Report<'_> {
        self.ends.report(error)
    }

    /// Fails a call, and leaves its error in the comm. After a fatal one nothing more can succeed;
    /// the first of these stays.
    #[cold]
    #[inline(never)]
    pub(super) fn fail(&mut self, error: Error) -> Failed {
        if error.is_fatal() && self.gate != Gate::Failed {
            self.close(Gate::Failed, error);
            self.reqs.cut_short();
        }
        self.error = Some(error);
        Failed
    }

    /// Lets nothing new begin, because of `error`.
    pub(super) fn close(&mut self, gate: Gate, error: Error) {
        self.gate = gate;
        self.end = Some(error);
        self.ends.notices = self.verbs.nic.notices();
    }

    /// Fails a call because the NIC refused one.
    #[cold]
    #[inline(never)]
    pub(super) fn nic_failed(&mut self, error: NicError) -> Failed {
        self.fail(error.into())
    }

    /// Fails the comm because its completion queue cannot be polled.
    #[cold]
    #[inline(never)]
    fn poll_failed(&mut self, error: PollError) {
        self.nic_failed(error.into());
    }

    /// Fails a call for a gate that nothing passes.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse(&mut self) -> Failed {
        self.error = self.end;
        Failed
    }

    /// The error that a failed call has left.
    #[cold]
    #[inline(never)]
    pub(super) fn error(&self, _: Failed) -> Error {
        self.error.unwrap_or(Error::PeerClosed(StreamError::Closed))
    }

    /// The start of a test: ends the request of `token` if it is done by what is booked.
    #[inline(always)]
    pub(super) fn test_booked(&mut self, token: u32) -> Usual<u32> {
        let entry = self.reqs.at(token);
        if entry.is_done(token) {
            return R::take(entry);
        }
        if !entry.is_live(token) {
            return Usual::Unusual;
        }
        Usual::NotYet
    }

    /// The same after a poll, for a request that is not done by what was booked before. As a rule
    /// there is one completion, and it is the last that is awaited.
    #[inline(always)]
    pub(super) fn test_polled(&mut self, request: &Request) -> Polled {
        match self.verbs.nic.poll(&self.verbs.cq, &mut self.wcs) {
            // The token is not read before the poll, where it would take a register.
            Ok(1) => match R::take_by(&mut self.reqs, &self.wcs[..1], request) {
                Some(size) => Polled::Done(size),
                None => Polled::Other(1),
            },
            Ok(0) => Polled::NotYet,
            Ok(polled) => Polled::Other(polled),
            Err(error) => {
                self.poll_failed(error);
                Polled::Other(0)
            }
        }
    }

    /// Ends the request if the `polled` completions are all that it awaits: as a rule, one of each
    /// queue pair.
    #[inline(always)]
    pub(super) fn take_polled(&mut self, request: &Request, polled: u32) -> Option<u32> {
        let request = Request::from_raw(request.raw());
        R::take_by(&mut self.reqs, self.wcs.get(..polled as usize)?, &request)
    }

    /// Books the `polled` completions; ends the request if it is done then.
    #[inline(always)]
    pub(super) fn test_other(&mut self, request: &Request, polled: u32) -> Usual<u32> {
        match polled {
            1 => self.book_one(),
            _ => self.book_all(polled),
        }
        // Not kept over the calls, where it would take a register.
        let token = request.raw();
        let entry = self.reqs.at(token);
        if entry.is_done(token) { R::take(entry) } else { Usual::Unusual }
    }

    /// The same after [`Base::take_polled`], apart from what calls it.
    #[inline(never)]
    pub(super) fn test_other_apart(&mut self, request: &Request, polled: u32) -> Usual<u32> {
        if polled > 1
            && let Some(size) = self.take_polled(request, polled)
        {
            return Usual::Done(size);
        }
        self.test_other(request, polled)
    }

    /// Whether the request of `token` is over, after all completions that are there.
    pub(super) fn settle(&mut self, token: u32) -> Settled {
        loop {
            if self.reqs.at(token).is_done(token) {
                self.reqs.at(token).end();
                return Settled::Done;
            }
            if !self.reqs.at(token).is_live(token) {
                return Settled::Unknown;
            }
            if !self.poll() {
                return Settled::Waiting;
            }
        }
    }

    /// Takes completions that are there and books them; whether there was any.
    #[inline(never)]
    pub(super) fn poll(&mut self) -> bool {
        match self.verbs.nic.poll(&self.verbs.cq, &mut self.wcs) {
            Ok(0) => return false,
            Ok(polled) => self.book(polled),
            Err(error) => self.poll_failed(error),
        }
        true
    }

    /// Books the only completion of a poll.
    #[inline(always)]
    fn book_one(&mut self) {
        let Self { wcs: [wc, ..], reqs, route, .. } = self;
        if wc.status != WcStatus::SUCCESS || !route.book(reqs, wc) {
            self.book_failed();
        }
    }

    /// Fails the comm because of that.
    #[cold]
    #[inline(never)]
    fn book_failed(&mut self) {
        let [wc, ..] = self.wcs;
        self.completion_failed(&wc);
    }

    /// The same as [`Base::book`], apart from what calls it.
    #[inline(never)]
    fn book_all(&mut self, polled: u32) {
        self.book(polled);
    }

    /// Books what was polled. One in error or that nobody awaited fails the comm; those behind it
    /// come too late, since what waits is cut short.
    #[expect(clippy::needless_range_loop, reason = "two instructions a completion fewer")]
    #[inline(always)]
    fn book(&mut self, polled: u32) {
        let Self { wcs, reqs, route, .. } = self;
        for i in 0..POLL_BATCH.min(polled as usize) {
            let wc = &wcs[i];
            if !route.book_usual(reqs, wc)
                && (wc.status != WcStatus::SUCCESS || !route.book(reqs, wc))
            {
                let wc = *wc;
                return self.completion_failed(&wc);
            }
        }
    }

    /// Fails the comm because of a completion.
    #[cold]
    #[inline(never)]
    fn completion_failed(&mut self, wc: &Wc) {
        let error = if wc.status == WcStatus::SUCCESS {
            Error::UnknownCompletion { wr_id: wc.wr_id, qpn: wc.qp_num }
        } else {
            // A peer that has closed may have said that all has arrived.
            let _ = self.notice.read(&mut self.stream);
            let Settings { timeout, retry_cnt, .. } = self.verbs.settings;
            let port_trouble = self.verbs.port_trouble();
            let (status, qpn, vendor_err) = (wc.status, wc.qp_num, wc.vendor_err);
            let error =
                CompletionError { status, qpn, vendor_err, timeout, retry_cnt, port_trouble };
            Error::Completion(error)
        };
        self.fail(error);
    }

    /// Fails a test because `token` is neither waiting nor done.
    #[cold]
    #[inline(never)]
    pub(super) fn unsettled(&mut self, token: u32) -> Failed {
        match self.gate {
            Gate::Failed => self.refuse(),
            Gate::Closed if self.reqs.at(token).is_cut_short(token) => self.refuse(),
            _ => self.fail(Error::UnknownRequest(token)),
        }
    }

    /// Looks whether the peer is still there: between comms nothing travels over the stream but a
    /// close notice and its end.
    pub(super) fn check_peer(&mut self) -> Result<(), Failed> {
        match self.gate {
            Gate::Pending => return Ok(()),
            Gate::Closed | Gate::Failed => return Err(self.refuse()),
            Gate::Open | Gate::Group => {}
        }
        let checked = self.verbs.qps().try_for_each(|qp| self.verbs.nic.check(qp));
        checked.map_err(|error| self.nic_failed(error))?;
        let error = match self.notice.read(&mut self.stream) {
            Ok(()) => return Ok(()),
            Err(error @ Error::PeerClosed(_)) => error,
            Err(error) => return Err(self.fail(error)),
        };
        // What the peer sent before it closed is in the completion queue by now.
        while self.gate != Gate::Failed && self.poll() {}
        if self.gate != Gate::Failed {
            // Nothing new can start.
            self.close(Gate::Closed, error);
        }
        Err(self.refuse())
    }
}
