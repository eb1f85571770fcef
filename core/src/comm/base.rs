//! The common part of both comms: resources, the gate in front of each call, and polling.
//!
//! Each call has an inlined fast path and a slow path that is not inlined. The fast path changes
//! nothing before it is sure to succeed, so the slow path can start the call again from the beginning.
//! An [`Error`] fills several registers, so a slow path stores the error in the comm and returns
//! [`Failed`].

use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use super::Request;
use super::control::Control;
use super::fast::Fast;
use super::flush::ReadFailure;
use super::line::Line;
use super::rails::Rails;
use super::recovery::Recovery;
use super::route::Route;
use crate::conn::{CommSettings, Exchange, Parts, Stream, StreamError, Verbs, Wire, rail_of};
use crate::error::{CompletionError, Ends, Error, Report, Suspicion};
use crate::metrics::EndNumbers;
use crate::nic::{Nic, NicError, PollError, Refusal, Refused, SendWr, Wc, WcStatus};
use crate::request::{Progress, RequestRing};
use crate::stall::{self, Counts, OwnNetwork, PathWatch, Role};

/// The largest number of completions taken in one poll.
const POLL_BATCH: usize = 32;

/// Whether the process has warned of a connection that makes no new queue pairs. A job may have thousands.
static HAS_WARNED: AtomicBool = AtomicBool::new(false);

/// Whether calls may pass. Every gate but `Open` makes a call leave the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Gate {
    Open,
    /// The comm is open, and a group of sends is being matched.
    Group,
    /// The first calls, and looks at the peer, finish the exchange of connection data (wire of NCCL 2.14).
    Pending,
    /// New queue pairs are made; see [`super::recovery`].
    Recovering,
    /// The peer has closed. Completions that have arrived can still be collected.
    Closed,
    Failed,
}

impl Gate {
    /// Whether the comm is open, perhaps with a group of sends that is being matched.
    #[inline(always)]
    pub(super) const fn is_open(self) -> bool {
        matches!(self, Gate::Open | Gate::Group)
    }
}

/// A call failed; [`Base::error`] gives the reason.
pub(super) struct Failed;

/// The result of a test's slow path.
pub(super) enum Settled {
    Pending,
    /// The request is done and its entry is free. The entry still holds its value.
    Done,
    /// This comm has no such request, neither pending nor done.
    Unknown,
}

#[repr(C)]
pub(super) struct Base<N: Nic, S, R, T, const REQS: usize> {
    /// This field comes first, so that the address of a request needs no addition.
    pub(super) reqs: RequestRing<T, REQS>,
    pub(super) wcs: [Wc; POLL_BATCH],
    pub(super) gate: Gate,
    /// The gate that a recovery restores.
    pub(super) resume: Gate,
    /// The error that ended the connection, when the gate is `Closed` or `Failed`.
    pub(super) end: Option<Error>,
    /// The error of the call that failed last.
    error: Option<Error>,
    /// The route may own a queue pair, so it is declared, and released, before the completion queue.
    pub(super) route: R,
    pub(super) verbs: Verbs<N>,
    /// The error of a post that was refused.
    pub(super) refusal: Refusal,
    /// The bytes of the messages that were found done.
    pub(super) bytes: u64,
    pub(super) line: Line<S>,
    /// The number of rows that have arrived, if the peer has closed and said so.
    pub(super) rows_done: Option<u64>,
    pub(super) recovery: Recovery,
    /// Suspects queue pairs that carry nothing.
    pub(super) path: PathWatch,
    /// Finds out why the connection stands still.
    pub(super) stalls: stall::Watch,
    /// The number of reports about the port that were heeded.
    pub(super) port_changes: u32,
    /// The rows that were over when a row began to wait for a port with a fault, and that time.
    pub(super) port_lost: Option<(u64, u64)>,
    pub(super) rails: Rails,
    pub(super) ends: Ends,
    pub(super) pending: Option<Exchange>,
}

impl<N: Nic, S: Stream, R: Route<N, T, REQS>, T, const REQS: usize> Base<N, S, R, T, REQS> {
    pub(super) fn new(
        parts: Parts<N, S>,
        role: Role,
        reqs: RequestRing<T, REQS>,
        route: R,
    ) -> Self {
        let Parts { verbs, stream, ends, pending, peer } = parts;
        let shares_views = peer.as_ref().is_some_and(|peer| peer.shares_views);
        let stalls = stall::Watch::new(verbs.settings.stall, role, shares_views, false);
        let peer_port = peer.filter(|peer| peer.recovers).map(|peer| peer.renewal_port);
        if peer_port.is_none() && verbs.settings.recovery_timeout_ns > 0 {
            let why = match verbs.settings.wire {
                Wire::Invar => "the peer makes no new ones",
                Wire::Nccl214 => "NCCL 2.14's wire has no message for new ones",
            };
            let side = verbs.side;
            match HAS_WARNED.swap(true, Ordering::Relaxed) {
                false => warn!(
                    "{side}: {ends}: queue pairs that fail end the connection: {why}; \
                     INVAR_LOG=info names each such connection"
                ),
                true => {
                    info!("{side}: {ends}: queue pairs that fail end the connection: {why}");
                }
            }
        }
        let port_changes = verbs.nic.port_changes();
        let line = Line::new(stream, verbs.side, &verbs.session, peer_port);
        let rails = Rails::new(verbs.rails.count, verbs.lead(), verbs.rails.standby);
        Base {
            reqs,
            wcs: [Wc::default(); POLL_BATCH],
            gate: if pending.is_some() { Gate::Pending } else { Gate::Open },
            resume: Gate::Open,
            end: None,
            error: None,
            route,
            verbs,
            refusal: Refusal::default(),
            bytes: 0,
            line,
            rows_done: None,
            recovery: Recovery::new(peer_port.is_some()),
            path: PathWatch::default(),
            port_changes,
            port_lost: None,
            stalls,
            rails,
            ends,
            pending,
        }
    }

    pub(super) fn report(&self, error: Error) -> Report<'_> {
        self.ends.report(error)
    }

    /// Fails a call and stores its error in the comm. After a fatal error every call fails, and the
    /// first fatal error is kept.
    #[cold]
    #[inline(never)]
    pub(super) fn fail(&mut self, error: Error) -> Failed {
        if error.is_fatal() && self.gate != Gate::Failed {
            self.close(Gate::Failed, error);
            self.reqs.cut_short();
            if self.recovery.is_agreed() {
                // Otherwise the peer would wait for new queue pairs.
                self.line.send(&Control::Failed);
            }
        }
        self.error = Some(error);
        Failed
    }

    /// Stops new work from starting, because of `error`.
    pub(super) fn close(&mut self, gate: Gate, error: Error) {
        self.gate = gate;
        self.end = Some(error);
        self.line.end();
        self.ends.notices = self.verbs.nic.notices();
    }

    /// The numbers for operators.
    pub(super) fn numbers(&self) -> EndNumbers {
        self.stalls.numbers(self.bytes, self.recovery.attempt().into())
    }

    /// Looks whether the connection stands still. Asks the peer for its view, answers the peer, and warns.
    pub(super) fn look_for_stall(&mut self, counts: Counts, now_ns: u64) {
        let Self { stalls, line, ends, verbs, rails, .. } = self;
        let own = || OwnNetwork {
            host_answers: line.host_answers(),
            port_trouble: verbs.port_trouble(verbs.lead()),
            rails_down: rails.down().0,
            counted: None,
        };
        let view = stalls.attend(counts, now_ns, own, || verbs.nic.counters(), ends);
        if let Some((view, asks)) = view {
            line.send(&Control::View { view, asks });
        }
    }

    /// Fails a call because the NIC returned an error.
    #[cold]
    #[inline(never)]
    pub(super) fn nic_failed(&mut self, error: NicError) -> Failed {
        self.fail(error.into())
    }

    /// Fails a call because the NIC refused the work requests `wrs` on the queue pair at the address `qp`. A
    /// receive has no such work requests.
    #[cold]
    #[inline(never)]
    pub(super) fn refused(&mut self, qp: *const N::Qp, wrs: &[SendWr], refused: Refused) -> Failed {
        let Self { verbs, refusal, .. } = self;
        let qp = verbs.all_qps().find(|one| ptr::eq(*one, qp)).unwrap_or(&verbs.qp);
        let error = refusal.take(refused, &verbs.nic, qp, wrs);
        self.nic_failed(error)
    }

    /// Fails the comm because its completion queue cannot be polled.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_failed(&mut self, error: PollError) {
        self.nic_failed(error.into());
    }

    /// Fails a call because the gate is closed or failed.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse(&mut self) -> Failed {
        self.error = self.end;
        Failed
    }

    /// Returns the error that a failed call stored.
    #[cold]
    #[inline(never)]
    pub(super) fn error(&self, _: Failed) -> Error {
        self.error.unwrap_or(Error::PeerClosed(StreamError::Closed))
    }

    /// Tests a request. [`Fast::Done`] gives the request's bytes if the request has exactly one size.
    #[inline(always)]
    pub(super) fn test(&mut self, request: &Request) -> Fast<u32> {
        match self.test_fast(request) {
            Fast::Slow => match self.take(request) {
                // More completions may be there.
                Fast::Pending => Fast::Slow,
                taken => taken,
            },
            tested => tested,
        }
    }

    /// Tests a request with at most one poll of each rail that carries data. After [`Fast::Slow`] the request may
    /// be done.
    #[inline(always)]
    pub(super) fn test_fast(&mut self, request: &Request) -> Fast<u32> {
        match self.take(request) {
            Fast::Pending => self.poll_for(request),
            taken => taken,
        }
    }

    /// Tests a request without a poll.
    #[inline(always)]
    fn take(&mut self, request: &Request) -> Fast<u32> {
        let entry = self.reqs.at(request.raw());
        match entry.progress(request.raw()) {
            Progress::Pending => Fast::Pending,
            Progress::Done => R::take(entry, &mut self.bytes),
            Progress::Unknown => Fast::Slow,
        }
    }

    /// Polls for a request that is pending, and ends it if the one completion that came is its last.
    /// Books any other completions; then the request may be done too.
    #[inline(always)]
    fn poll_for(&mut self, request: &Request) -> Fast<u32> {
        let polled = match self.poll_turn() {
            Ok(0) if N::RAILS_MAX > 1 && self.rails.in_use.has_several() => {
                return self.poll_other_turns();
            }
            Ok(0) => return Fast::Pending,
            Ok(polled) => polled,
            Err(error) => {
                self.poll_failed(error);
                return Fast::Slow;
            }
        };
        let Self { wcs: [wc, ..], reqs, route, bytes, .. } = self;
        if polled == 1
            && wc.status == WcStatus::SUCCESS
            && let Some(entry) = R::of_message(reqs, wc)
            && entry.is_last(request.raw())
        {
            return route.take_last(entry, wc, bytes);
        }
        self.book_polled(polled);
        Fast::Slow
    }

    #[inline(never)]
    pub(super) fn book_polled(&mut self, polled: u32) {
        self.book(polled);
    }

    /// Tests the request of `token` after booking all completions that are there.
    pub(super) fn settle(&mut self, token: u32) -> Settled {
        loop {
            if self.reqs.at(token).is_done(token) {
                self.reqs.at(token).end();
                return Settled::Done;
            }
            if !self.reqs.at(token).is_pending(token) {
                return Settled::Unknown;
            }
            if !self.poll() {
                return Settled::Pending;
            }
        }
    }

    /// Takes the completions that have arrived on any rail and books them; returns whether there was any.
    #[inline(never)]
    pub(super) fn poll(&mut self) -> bool {
        match self.verbs.nic.poll(&self.verbs.cq, &mut self.wcs) {
            Ok(0) => return false,
            Ok(polled) => self.book(polled),
            Err(error) => self.poll_failed(error),
        }
        true
    }

    /// Books the polled completions. The comm fails, or recovers, if a completion has an error status. It
    /// fails if no request awaits a completion. The completions behind the failed one are dropped if the
    /// comm fails, since the comm's requests are cut short.
    #[inline(always)]
    fn book(&mut self, polled: u32) {
        let Self { wcs, reqs, route, .. } = self;
        // An index beside the iterator would cost 8 instructions for each completion.
        let mut rest = wcs[..(polled as usize).min(POLL_BATCH)].iter();
        while let Some(wc) = rest.next() {
            if wc.status != WcStatus::SUCCESS || !route.book(reqs, wc) {
                let behind = rest.len();
                return self.book_failed(behind, polled);
            }
        }
    }

    /// Handles the failed completion that has `behind` others behind it, and books those.
    #[cold]
    #[inline(never)]
    fn book_failed(&mut self, behind: usize, polled: u32) {
        let polled = (polled as usize).min(POLL_BATCH);
        let failed = polled.saturating_sub(behind + 1);
        for index in failed..polled {
            let wc = self.wcs[index];
            if self.gate == Gate::Failed {
                return;
            }
            let is_failed = index == failed;
            if is_failed || wc.status != WcStatus::SUCCESS || !self.route.book(&mut self.reqs, &wc)
            {
                self.completion_failed(&wc);
            }
        }
    }

    /// Handles a completion with an error status, or one that no request awaits: the comm recovers or
    /// fails.
    #[cold]
    #[inline(never)]
    fn completion_failed(&mut self, wc: &Wc) {
        if wc.status == WcStatus::SUCCESS {
            self.fail(Error::UnknownCompletion { wr_id: wc.wr_id, qpn: wc.qp_num });
            return;
        }
        let of_flush = self.route.flushes().and_then(|flushes| flushes.failed(wc));
        match of_flush {
            Some(ReadFailure::Known) => return,
            Some(ReadFailure::New) => {}
            None if self.recovery.is_under_way() => return self.recovery.flushed(wc),
            None if self.has_rails() && self.is_of_probe(wc) => return,
            None => {}
        }
        let CommSettings { timeout, retry_cnt, .. } = self.verbs.settings;
        let port_trouble = self.verbs.port_trouble(rail_of(wc.qp_num));
        let (status, qpn, vendor_err) = (wc.status, wc.qp_num, wc.vendor_err);
        let error = CompletionError { status, qpn, vendor_err, timeout, retry_cnt, port_trouble };
        let is_open = matches!(self.gate, Gate::Open | Gate::Group | Gate::Recovering);
        if is_open && self.recovery.may_help(&error) {
            info!("{}", self.report(Error::Completion(error)));
            self.rails.blame(wc.qp_num);
            // A recovery that is under way will replace the queue pair, or begins again.
            if !self.recovery.is_under_way() {
                self.suspect(Suspicion::Completion(error.status));
            }
            return;
        }
        // A peer that has closed may have reported over the stream that all messages have arrived.
        let _ = self.hear();
        self.fail(Error::Completion(error));
    }

    /// Fails a test because `token` names a request that is neither waiting nor done.
    #[cold]
    #[inline(never)]
    pub(super) fn unsettled(&mut self, token: u32) -> Failed {
        match self.gate {
            Gate::Failed => self.refuse(),
            Gate::Closed if self.reqs.at(token).is_cut_short(token) => self.refuse(),
            _ => self.fail(Error::UnknownRequest(token)),
        }
    }
}
