//! Drives the recovery of a comm through the stages of [`super::recovery`].

use super::base::{Base, Failed, Gate};
use super::control::{CLOSED, Control, RecoveryReport};
use super::recovery::RecoveryStage;
use super::route::Route;
use crate::conn::{CommSettings, Peer, RailSet, Stream, StreamNews};
use crate::error::{Error, RecoveryError, Suspicion};
use crate::mutant::{Mutant, is_planted};
use crate::nic::{Nic, NicError, Verb};
use crate::roce::qp::ack_timeout_ns;

const SECOND_NS: u64 = 1_000_000_000;
/// Time in which stopped queue pairs must deliver their last completions. After that the queue pairs are
/// destroyed, which stops them too, but may lose completions of messages that have arrived.
const DRAIN_NS: u64 = SECOND_NS;
/// Most messages of the peer that a call reads. The others stay for the next call.
const HEARD_AT_ONCE: u32 = 64;
/// The fault of a peer that does not tell of new queue pairs.
const NO_REPORT: &str =
    "the peer has made no new queue pairs: its port may be down, or its process stopped";
/// The fault of queue pairs that fail again before they have carried anything.
const NO_ANSWER: &str = "the peer's queue pair did not answer";

/// The fault of queue pairs of flushes that fail again before the others have carried anything.
const NO_FLUSHES: &str = "a queue pair of the flushes does not work";

/// The next step of the comm.
pub(super) enum Recovering {
    /// Nothing: call again.
    Waiting,
    /// The queue pairs have started: post what they need before the peer uses them. The peer has
    /// reported this number of rows.
    Started { rows: u64 },
    /// The connection works again: send what is missing. The peer has reported this number of rows.
    Resumed { rows: u64 },
}

impl<N: Nic, S: Stream, R: Route<N, T, REQS>, T, const REQS: usize> Base<N, S, R, T, REQS> {
    /// Begins a recovery because of a suspicion.
    #[cold]
    pub(super) fn suspect(&mut self, why: Suspicion) {
        if why != Suspicion::RailJoins {
            self.rails.blame_stale();
        }
        // While a network is down, attempt follows attempt. The log names fewer and fewer of them.
        let attempts = self.recovery.trouble.attempts;
        if why.is_news() && (attempts == 0 || attempts.is_power_of_two()) {
            warn!("{}: {why}; new queue pairs will be made", self.ends);
        } else {
            info!("{}: {why}; new queue pairs will be made", self.ends);
        }
        let Self { recovery, gate, resume, path, .. } = self;
        path.restart();
        (recovery.stage, recovery.is_new, recovery.cause) = (RecoveryStage::Suspected, true, why);
        *resume = core::mem::replace(gate, Gate::Recovering);
    }

    /// Continues a recovery as far as possible without waiting. `rows` is the number of rows that this
    /// end has sent or posted, in a FIFO of `depth` rows.
    pub(super) fn recover(
        &mut self,
        now_ns: u64,
        rows: u64,
        depth: u64,
    ) -> Result<Recovering, Failed> {
        loop {
            let is_urgent = self.recovery.is_peer_late(now_ns);
            let heard = self.mend_line(now_ns, is_urgent).and_then(|()| self.hear());
            match heard {
                Ok(()) => {}
                Err(error) if error.is_peer_gone() => return Err(self.peer_is_gone(error)),
                Err(error) => return Err(self.fail(error)),
            }
            let has_lost_flushes = self.route.flushes().is_some_and(|flushes| flushes.is_broken());
            match self.recovery.stage {
                RecoveryStage::Open => return Ok(Recovering::Waiting),
                RecoveryStage::Suspected => {
                    if core::mem::take(&mut self.recovery.is_new) {
                        self.begin_trouble(now_ns);
                    }
                    let fence = match is_planted(Mutant::NoFence) {
                        true => (0, false),
                        false => self.verbs.fence(),
                    };
                    (self.recovery.awaited, self.recovery.is_fence_whole) = fence;
                    self.recovery.drained_by_ns = now_ns.saturating_add(DRAIN_NS);
                    self.recovery.stage = RecoveryStage::Draining;
                }
                RecoveryStage::Draining => {
                    self.take_completions()?;
                    let is_drained = self.recovery.awaited == 0 || is_planted(Mutant::NoDrain);
                    if !is_drained && now_ns < self.recovery.drained_by_ns {
                        return Ok(Recovering::Waiting);
                    }
                    let silence = NicError::new(Verb::PollCq, 0, NO_ANSWER);
                    self.give_up_if_late(now_ns, silence)?;
                    self.recovery.count_attempt(now_ns);
                    self.recovery.stage = RecoveryStage::Stopped;
                }
                RecoveryStage::Stopped => {
                    if now_ns < self.recovery.not_before_ns {
                        return Ok(Recovering::Waiting);
                    }
                    // Those that came too late for the stage before.
                    self.take_completions()?;
                    if let Err(error) = self.renew() {
                        self.postpone(now_ns, error)?;
                        return Ok(Recovering::Waiting);
                    }
                    // Some drivers keep the completions of queue pairs that are gone. The new ones have none yet.
                    self.take_completions()?;
                    self.report_rows(rows, depth);
                    self.recovery.stage = RecoveryStage::Reported;
                    self.recovery.await_peer(now_ns);
                }
                // The peer could not use this attempt and has begun another one.
                // A call follows the peer once, so that a peer that begins ever more attempts keeps nobody in this
                // loop.
                _ if self.recovery.is_behind() => {
                    self.recovery.is_planned = false;
                    self.recovery.stage = RecoveryStage::Suspected;
                    return Ok(Recovering::Waiting);
                }
                RecoveryStage::Reported => {
                    let Some(rows) = self.recovery.peer_rows() else {
                        return self.wait_for_peer(now_ns);
                    };
                    match self.start_anew(now_ns).and_then(|()| self.renew_flushes()) {
                        Ok(()) => {}
                        Err(Error::Nic(error)) => {
                            self.postpone(now_ns, error)?;
                            self.recovery.stage = RecoveryStage::Suspected;
                            return Ok(Recovering::Waiting);
                        }
                        Err(error) => return Err(self.fail(error)),
                    }
                    self.recovery.stage = RecoveryStage::Started;
                    return Ok(Recovering::Started { rows });
                }
                RecoveryStage::Started | RecoveryStage::Ready if has_lost_flushes => {
                    self.postpone(now_ns, NicError::new(Verb::PostSend, 0, NO_FLUSHES))?;
                    self.recovery.stage = RecoveryStage::Suspected;
                    return Ok(Recovering::Waiting);
                }
                RecoveryStage::Started => {
                    let attempt = self.recovery.attempt;
                    self.line.send(&Control::Ready { attempt });
                    self.recovery.stage = RecoveryStage::Ready;
                }
                RecoveryStage::Ready => {
                    let Some(theirs) = self.recovery.peer_rows() else {
                        return self.wait_for_peer(now_ns);
                    };
                    if self.recovery.peer_ready != self.recovery.attempt {
                        return self.wait_for_peer(now_ns);
                    }
                    let owes_nothing = match R::IS_SENDER {
                        true => rows <= theirs,
                        false => theirs <= self.route.rows_to_report(&mut self.reqs, rows, depth),
                    };
                    self.resume(now_ns, [rows, theirs], owes_nothing);
                    return Ok(Recovering::Resumed { rows: theirs });
                }
            }
        }
    }

    /// Notes that the connection has stopped working.
    fn begin_trouble(&mut self, now_ns: u64) {
        self.recovery.is_planned = self.is_planned();
        let CommSettings { timeout, retry_cnt, .. } = self.verbs.settings;
        // Some NICs take four times as long to give up a peer.
        let short_ns = 4 * (1 + u64::from(retry_cnt)) * ack_timeout_ns(timeout).unwrap_or(0);
        let short_ns = if self.recovery.is_planned { 0 } else { short_ns + SECOND_NS };
        let (cause, done) = (self.recovery.cause, self.path.done);
        let answered = !self.rails.heard.is_empty();
        self.recovery.trouble.begin(now_ns, short_ns, cause, done, answered);
    }

    /// Books all completions that have come.
    fn take_completions(&mut self) -> Result<(), Failed> {
        while self.gate == Gate::Recovering && !is_planted(Mutant::NoDrain) && self.poll() {}
        if self.gate == Gate::Recovering { Ok(()) } else { Err(self.refuse()) }
    }

    /// Creates new queue pairs.
    fn renew(&mut self) -> Result<(), NicError> {
        if self.has_rails() {
            return self.renew_rails();
        }
        let Self { verbs, recovery, ends, .. } = self;
        verbs.renew(recovery.attempt, recovery.is_drained())?;
        (ends.qpn, ends.gid) = (verbs.nic.qp_num(&verbs.qp), verbs.port.gid);
        Ok(())
    }

    /// Tells the peer of the new queue pairs, and of this end's rows.
    fn report_rows(&mut self, rows: u64, depth: u64) {
        if self.has_rails() {
            return self.report_rails(rows, depth);
        }
        let Self { verbs, route, reqs, recovery, path, .. } = self;
        let attempt = recovery.attempt;
        let rows = if !R::IS_SENDER && is_planted(Mutant::ReportFromMemory) {
            path.done
        } else {
            route.rows_to_report(reqs, rows, depth)
        };
        let report = RecoveryReport {
            attempt,
            rows,
            preface: verbs.preface(depth as u16),
            info: verbs.info(verbs.port.active_mtu),
        };
        debug!("{}: attempt {attempt}, {} rows", self.ends, report.rows);
        self.line.send(&Control::Report(report));
    }

    /// Starts the new queue pairs towards those of the peer.
    fn start_anew(&mut self, now_ns: u64) -> Result<(), Error> {
        if self.has_rails() {
            return self.start_rails_anew(now_ns);
        }
        let Some(report) = self.recovery.report().cloned() else { return Err(Error::Unexpected) };
        let RecoveryReport { preface, mut info, .. } = report;
        if preface.qp_count != self.verbs.qp_count() {
            return Err(Error::Unexpected);
        }
        info.mtu = info.mtu.min(self.verbs.port.active_mtu);
        let ours = self.verbs.preface(preface.fifo_depth);
        let peer = Peer::new(info, Some(preface), &ours);
        peer.note(&mut self.ends);
        self.verbs.start(&peer)
    }

    /// Replaces the queue pairs of the flushes by new ones on the rails that carry data now.
    fn renew_flushes(&mut self) -> Result<(), Error> {
        let Self { route, verbs, rails, .. } = self;
        let Some(flushes) = route.flushes() else { return Ok(()) };
        flushes.renew(verbs, rails.in_use).map_err(|(rail, error)| {
            rails.shun(rail);
            error.into()
        })
    }

    /// Waits for the peer's part, but not for too long: its port may be down for good.
    fn wait_for_peer(&mut self, now_ns: u64) -> Result<Recovering, Failed> {
        self.give_up_if_late(now_ns, NicError::new(Verb::CreateQp, 0, NO_REPORT))?;
        Ok(Recovering::Waiting)
    }

    /// Pauses after an attempt that failed at this end with `error`.
    fn postpone(&mut self, now_ns: u64, error: NicError) -> Result<(), Failed> {
        debug!("{}: no new queue pairs yet: {error}", self.ends);
        self.give_up_if_late(now_ns, error)?;
        self.recovery.is_planned = false;
        self.recovery.pause(now_ns);
        Ok(())
    }

    /// Fails the comm if it has not worked for too long. `error` is the fault of the last attempt.
    fn give_up_if_late(&mut self, now_ns: u64, error: NicError) -> Result<(), Failed> {
        let has_rails = self.has_rails();
        let Self { recovery, verbs, line, rails, .. } = self;
        let waited_ns = recovery.trouble.waited_ns(now_ns);
        if waited_ns < verbs.settings.recovery_timeout_ns {
            return Ok(());
        }
        let (heard_ns, lost_ns) = line.silence_ns(now_ns);
        let ms = |ns: u64| (ns / 1_000_000) as u32;
        let error = RecoveryError {
            cause: recovery.trouble.cause.unwrap_or(recovery.cause),
            attempts: recovery.trouble.attempts,
            waited_ms: ms(waited_ns),
            attempt_ms: ms(now_ns.saturating_sub(recovery.trouble.attempt_ns)),
            heard_ms: ms(heard_ns),
            line_lost_ms: lost_ns.map(ms),
            rails: has_rails.then(|| rails.faults(verbs.rails_up(RailSet::NONE))),
            verb: error.verb,
            errno: error.errno,
            trouble: error.cause,
        };
        Err(self.fail(Error::Recovery(error)))
    }

    fn resume(&mut self, now_ns: u64, rows: [u64; 2], owes_nothing: bool) {
        let Self { recovery, gate, resume, .. } = self;
        recovery.resume(now_ns, rows, owes_nothing);
        let attempt = recovery.attempt;
        let is_planned = core::mem::take(&mut recovery.is_planned);
        *gate = if is_planted(Mutant::ForgetGroup) { Gate::Open } else { *resume };
        match self.recovery.trouble.attempts.is_power_of_two() && !is_planned {
            true => warn!("{}: new queue pairs work (attempt {attempt})", self.ends),
            false => info!("{}: new queue pairs work (attempt {attempt})", self.ends),
        }
    }

    /// Makes the stream anew if it is lost, or if `is_urgent`; see [`Line::mend`](super::line::Line::mend).
    pub(super) fn mend_line(&mut self, now_ns: u64, is_urgent: bool) -> Result<(), Error> {
        let timeout_ns = self.verbs.settings.recovery_timeout_ns;
        match self.line.mend(now_ns, is_urgent, timeout_ns)? {
            StreamNews::None => {}
            StreamNews::Lost(error) => {
                warn!("{}: {error}: the TCP connection will be made anew", self.ends);
            }
            StreamNews::Renewed { was_lost: true } => {
                warn!("{}: the TCP connection was made anew", self.ends);
            }
            StreamNews::Renewed { was_lost: false } => {
                info!("{}: the TCP connection was made anew", self.ends);
            }
        }
        Ok(())
    }

    /// Reads the messages of the peer that have arrived, at most [`HEARD_AT_ONCE`].
    ///
    /// # Errors
    /// [`Error::PeerClosed`] after a close notice or at the end of the stream, [`Error::PeerFailed`], or
    /// another error for any other bytes.
    pub(super) fn hear(&mut self) -> Result<(), Error> {
        let Self { line, recovery, rails, path, stalls, verbs, rows_done, .. } = self;
        let mut budget = HEARD_AT_ONCE;
        while let Some(message) = line.recv(verbs.qp_count(), &mut budget)? {
            match message {
                Control::Report(report) => recovery.heard(report)?,
                Control::RailsReport(report) if rails.has_several() => {
                    recovery.heard_rails(report)?;
                }
                Control::RailsReport(_) => return Err(Error::Unexpected),
                Control::RailsUp { rails: up } => rails.peer_up(up),
                Control::Ready { attempt } => recovery.heard_ready(attempt)?,
                Control::Ask { rows } => path.owes_answer = Some(rows),
                Control::Seen { rows } => path.heard(rows),
                Control::Failed => return Err(Error::PeerFailed),
                Control::View { view, asks } => stalls.heard(view, asks),
                Control::Close { rows_done: rows } => {
                    *rows_done = Some(rows);
                    return Err(CLOSED);
                }
            }
        }
        Ok(())
    }
}
