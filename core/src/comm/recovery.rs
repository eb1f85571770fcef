//! Recovery: both ends replace queue pairs that have failed, and no message is lost or comes twice.
//!
//! 1. **Fence.** An end whose queue pair failed, or whose peer says so, stops all its queue pairs and
//!    waits for their last completions. From then on the peer can write nothing at this end, so this end
//!    knows finally which messages have arrived.
//! 2. **Report.** Each end creates new queue pairs and tells the peer of them over the stream. The
//!    receiver also says how many rows have arrived; the sender how many it has sent.
//! 3. **Resend.** Each end starts its new queue pairs, posts what the peer's report lacks, and says that
//!    it is ready. Then the receiver writes the slots again that the sender has not used, and the sender
//!    sends the rows again that have not arrived.
//!
//! ```text
//! Suspected → Draining → Stopped → Reported → Started → Ready → (no recovery)
//!     ↑                     |          |                  |
//!     └─────────────────────┴──────────┴──────────────────┘  an error, or a later attempt of the peer
//! ```
//!
//! Each set of queue pairs has a number, its *attempt*. If one end has to begin again, it takes the next
//! number, and the other end follows. The order of rows is the same at both ends, so on each queue pair
//! the receives and the messages meet in the same order as before.
//!
//! An end that has reported waits for its peer without a limit, because the peer answers only in calls
//! of its program. If the peer's process or host is gone, the stream ends. Each end limits the time in
//! which its own attempts fail ([`CommSettings::recovery_timeout_ns`]).
//!
//! [`CommSettings::recovery_timeout_ns`]: crate::conn::CommSettings::recovery_timeout_ns

use super::base::{Base, Failed, Gate};
use super::control::{CLOSED, Control, Report};
use super::route::Route;
use crate::conn::{FENCE, Peer, Stream};
use crate::error::{CompletionError, Error, RecoveryError};
use crate::mutant::{Mutant, is_planted};
use crate::nic::{Nic, NicError, Verb, Wc, WcStatus};
use crate::roce::qp::ack_timeout_ns;

const SECOND_NS: u64 = 1_000_000_000;
/// Time in which stopped queue pairs must deliver their last completions. After that the queue pairs are
/// destroyed, which stops them too, but may lose completions of messages that have arrived.
const DRAIN_NS: u64 = SECOND_NS;
/// The first and the longest pause between two attempts that failed at this end.
const PAUSE_NS: core::ops::RangeInclusive<u64> = 1_000_000..=SECOND_NS;
/// The fault of queue pairs that fail again before they have carried anything.
const NO_ANSWER: &str = "the peer's queue pair did not answer";
/// The numbers of the attempts of both ends differ by less than this.
const AHEAD_MAX: u32 = 1 << 16;

/// The state of a connection's recovery.
pub(super) struct Recovery {
    /// Whether both ends recover.
    is_agreed: bool,
    stage: RecoveryStage,
    /// The number of the queue pairs that are in use, or that are being made.
    attempt: u32,
    /// The peer's latest report.
    peer: Option<Report>,
    /// The latest attempt for which the peer is ready.
    peer_ready: u32,
    /// The gate to restore.
    gate: Gate,
    /// This end's error, if it has seen one.
    cause: Option<CompletionError>,
    /// The completions of the fence that are still awaited, and the time until which to wait for them.
    awaited: u32,
    drained_by_ns: u64,
    /// The time before which no new queue pairs are made.
    not_before_ns: u64,
    pause_ns: u64,
    trouble: Trouble,
}

/// How long a connection has been without progress.
#[derive(Default)]
struct Trouble {
    /// The time at which the connection stopped working.
    began_ns: Option<u64>,
    /// The time at which it worked again.
    resumed_ns: u64,
    /// The rows of both ends when it worked again.
    rows: [u64; 2],
    attempts: u32,
}

/// The position of a recovery; see the picture above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryStage {
    /// There is no recovery.
    Open,
    Suspected,
    Draining,
    Stopped,
    Reported,
    Started,
    Ready,
}

/// What the comm must do next.
pub(super) enum Recovering {
    /// Nothing: call again.
    Waiting,
    /// The queue pairs have started: post what they need before the peer uses them. The peer has
    /// reported this number of rows.
    Started { rows: u64 },
    /// The connection works again: send what is missing. The peer has reported this number of rows.
    Resumed { rows: u64 },
}

impl Recovery {
    pub(super) fn new(is_agreed: bool) -> Self {
        Recovery {
            is_agreed,
            stage: RecoveryStage::Open,
            attempt: 0,
            peer: None,
            peer_ready: 0,
            gate: Gate::Open,
            cause: None,
            awaited: 0,
            drained_by_ns: 0,
            not_before_ns: 0,
            pause_ns: *PAUSE_NS.start(),
            trouble: Trouble::default(),
        }
    }

    /// Whether both ends recover.
    pub(super) const fn is_agreed(&self) -> bool {
        self.is_agreed
    }

    /// The number of the queue pairs in use, counted from 0.
    pub(super) const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the queue pairs have been stopped or will be. Then their errors mean nothing.
    pub(super) fn is_under_way(&self) -> bool {
        self.stage != RecoveryStage::Open
    }

    /// Whether new queue pairs may help after an error completion.
    pub(super) fn may_help(&self, status: WcStatus) -> bool {
        use WcStatus as Status;
        let of_network = [Status::RETRY_EXC_ERR, Status::RESP_TIMEOUT_ERR, Status::WR_FLUSH_ERR];
        self.is_agreed && of_network.contains(&status)
    }

    /// Whether the peer has begun an attempt that this end has not begun.
    pub(super) fn is_behind(&self) -> bool {
        let is_behind = self.peer.as_ref().is_some_and(|report| report.attempt > self.attempt);
        is_behind && !(is_planted(Mutant::IgnoreLaterAttempt) && self.attempt > 0)
    }

    /// Takes an error completion of a queue pair that has failed or was stopped.
    pub(super) fn flushed(&mut self, wc: &Wc) {
        if wc.wr_id == FENCE {
            self.awaited = self.awaited.saturating_sub(1);
        }
    }

    /// Takes the peer's report. An older attempt than this end's is over: the peer sent the report
    /// before it knew of this end's.
    pub(super) fn heard(&mut self, report: Report) -> Result<(), Error> {
        if !self.is_agreed || report.attempt > self.attempt.saturating_add(AHEAD_MAX) {
            return Err(Error::Unexpected);
        }
        self.peer = Some(report);
        Ok(())
    }

    /// Takes the peer's word that its queue pairs of an attempt work.
    pub(super) fn heard_ready(&mut self, attempt: u32) -> Result<(), Error> {
        self.peer_ready = attempt;
        if self.is_agreed { Ok(()) } else { Err(Error::Unexpected) }
    }

    /// The peer's report of this attempt.
    fn report(&self) -> Option<&Report> {
        self.peer.as_ref().filter(|report| report.attempt == self.attempt)
    }

    /// Takes the next number: that of the peer's attempt, if the peer is ahead.
    fn count_attempt(&mut self) {
        let peer = self.peer.as_ref().map_or(0, |report| report.attempt);
        self.attempt = peer.max(self.attempt.saturating_add(1));
        self.trouble.attempts = self.trouble.attempts.saturating_add(1);
    }

    fn pause(&mut self, now_ns: u64) {
        self.not_before_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = (2 * self.pause_ns).min(*PAUSE_NS.end());
    }
}

impl Trouble {
    /// Notes that the connection has stopped working. The trouble goes on if the connection has worked
    /// only for a short time.
    fn begin(&mut self, now_ns: u64, short_ns: u64) {
        let is_new = now_ns.saturating_sub(self.resumed_ns) > short_ns;
        if is_new || self.began_ns.is_none() {
            (self.began_ns, self.attempts) = (Some(now_ns), 0);
        }
    }

    /// Notes the rows of both ends. The trouble is over if there are more than before.
    fn resume(&mut self, now_ns: u64, rows: [u64; 2]) {
        if self.rows != rows {
            (self.rows, self.began_ns) = (rows, None);
        }
        self.resumed_ns = now_ns;
    }

    fn waited_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.began_ns.unwrap_or(now_ns))
    }
}

impl<N: Nic, S: Stream, R: Route<N, T, REQS>, T, const REQS: usize> Base<N, S, R, T, REQS> {
    /// Begins a recovery because of this end's error, or because the peer asks for it.
    #[cold]
    pub(super) fn suspect(&mut self, cause: Option<CompletionError>) {
        match cause {
            Some(error) => {
                info!("{}; new queue pairs will be made", self.report(Error::Completion(error)));
            }
            None => info!("{}: the peer makes new queue pairs", self.ends),
        }
        let Self { recovery, gate, .. } = self;
        (recovery.gate, recovery.cause) = (*gate, cause);
        recovery.stage = RecoveryStage::Suspected;
        *gate = Gate::Recovering;
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
            match self.hear() {
                Ok(()) => {}
                Err(error) if error.is_peer_gone() => {
                    while self.gate != Gate::Failed && self.poll() {}
                    self.close(Gate::Closed, error);
                    return Err(self.refuse());
                }
                Err(error) => return Err(self.fail(error)),
            }
            match self.recovery.stage {
                RecoveryStage::Open => return Ok(Recovering::Waiting),
                RecoveryStage::Suspected => {
                    let (timeout, retry_cnt) = self.verbs.settings.retries(true);
                    // Some NICs take four times as long to give up a peer.
                    let short_ns =
                        4 * (1 + u64::from(retry_cnt)) * ack_timeout_ns(timeout).unwrap_or(0);
                    self.recovery.trouble.begin(now_ns, short_ns + SECOND_NS);
                    self.recovery.awaited = self.verbs.fence() + self.route.fence(&self.verbs.nic);
                    self.recovery.drained_by_ns = now_ns.saturating_add(DRAIN_NS);
                    self.recovery.stage = RecoveryStage::Draining;
                }
                RecoveryStage::Draining => {
                    while self.gate == Gate::Recovering
                        && !is_planted(Mutant::NoDrain)
                        && self.poll()
                    {}
                    if self.gate != Gate::Recovering {
                        return Err(self.refuse());
                    }
                    let is_drained = self.recovery.awaited == 0 || is_planted(Mutant::NoDrain);
                    if !is_drained && now_ns < self.recovery.drained_by_ns {
                        return Ok(Recovering::Waiting);
                    }
                    let silence = NicError::new(Verb::PollCq, 0, NO_ANSWER);
                    self.give_up_if_late(now_ns, silence)?;
                    self.recovery.count_attempt();
                    self.recovery.stage = RecoveryStage::Stopped;
                }
                RecoveryStage::Stopped => {
                    if now_ns < self.recovery.not_before_ns {
                        return Ok(Recovering::Waiting);
                    }
                    if let Err(error) = self.renew(rows, depth) {
                        self.postpone(now_ns, error)?;
                        return Ok(Recovering::Waiting);
                    }
                    self.recovery.stage = RecoveryStage::Reported;
                }
                // The peer could not use this attempt and has begun another one.
                _ if self.recovery.is_behind() => self.recovery.stage = RecoveryStage::Suspected,
                RecoveryStage::Reported => {
                    let Some(report) = self.recovery.report().cloned() else {
                        return Ok(Recovering::Waiting);
                    };
                    let rows = report.rows;
                    match self.start_anew(report) {
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
                RecoveryStage::Started => {
                    let attempt = self.recovery.attempt;
                    self.control_out.send(&mut self.stream, &Control::Ready { attempt });
                    self.recovery.stage = RecoveryStage::Ready;
                }
                RecoveryStage::Ready => {
                    let Some(Report { rows: theirs, .. }) = self.recovery.report() else {
                        return Ok(Recovering::Waiting);
                    };
                    let is_ready = self.recovery.peer_ready == self.recovery.attempt;
                    if !is_ready && !is_planted(Mutant::NotReady) {
                        return Ok(Recovering::Waiting);
                    }
                    let theirs = *theirs;
                    self.resume(now_ns, [rows, theirs]);
                    return Ok(Recovering::Resumed { rows: theirs });
                }
            }
        }
    }

    /// Creates new queue pairs and tells the peer of them.
    fn renew(&mut self, rows: u64, depth: u64) -> Result<(), NicError> {
        let Self { verbs, route, reqs, recovery, ends, .. } = self;
        let attempt = recovery.attempt;
        verbs.renew(attempt)?;
        route.renew(verbs)?;
        (ends.qpn, ends.gid) = (verbs.nic.qp_num(&verbs.qp), verbs.port.gid);
        let report = Report {
            attempt,
            rows: route.rows_to_report(reqs, rows, depth),
            preface: verbs.preface(depth as u16),
            info: verbs.info(verbs.port.active_mtu),
        };
        self.control_out.send(&mut self.stream, &Control::Report(report));
        Ok(())
    }

    /// Starts the new queue pairs towards those of the peer.
    fn start_anew(&mut self, report: Report) -> Result<(), Error> {
        let Report { preface, mut info, .. } = report;
        if preface.qp_count != self.verbs.qp_count() {
            return Err(Error::Unexpected);
        }
        info.mtu = info.mtu.min(self.verbs.port.active_mtu);
        let ours = self.verbs.preface(preface.fifo_depth);
        let peer = Peer::new(info, Some(preface), &ours);
        peer.note(&mut self.ends);
        self.verbs.start(&peer)
    }

    /// Pauses after an attempt that failed at this end with `error`.
    fn postpone(&mut self, now_ns: u64, error: NicError) -> Result<(), Failed> {
        self.give_up_if_late(now_ns, error)?;
        self.recovery.pause(now_ns);
        Ok(())
    }

    /// Fails the comm if it has not worked for too long. `error` is the fault of the last attempt.
    fn give_up_if_late(&mut self, now_ns: u64, error: NicError) -> Result<(), Failed> {
        let Self { recovery, verbs, .. } = self;
        let waited_ns = recovery.trouble.waited_ns(now_ns);
        if waited_ns < verbs.settings.recovery_timeout_ns {
            return Ok(());
        }
        let error = RecoveryError {
            cause: recovery.cause.map(|error| error.status),
            attempts: recovery.trouble.attempts,
            waited_ms: (waited_ns / 1_000_000) as u32,
            verb: error.verb,
            errno: error.errno,
            trouble: error.cause,
        };
        Err(self.fail(Error::Recovery(error)))
    }

    fn resume(&mut self, now_ns: u64, rows: [u64; 2]) {
        let Self { recovery, gate, .. } = self;
        recovery.stage = RecoveryStage::Open;
        recovery.pause_ns = *PAUSE_NS.start();
        recovery.trouble.resume(now_ns, rows);
        *gate = if is_planted(Mutant::ForgetGroup) { Gate::Open } else { recovery.gate };
        info!("{}: the new queue pairs work (attempt {})", self.ends, self.recovery.attempt);
    }

    /// Reads the messages of the peer that have arrived.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] after a close notice or at the end of the stream, [`Error::PeerFailed`], or
    /// another error for any other bytes.
    pub(super) fn hear(&mut self) -> Result<(), Error> {
        let Self { control_in, control_out, stream, recovery, verbs, rows_done, .. } = self;
        control_out.flush(stream);
        while let Some(message) = control_in.recv(stream, verbs.qp_count())? {
            match message {
                Control::Report(report) => recovery.heard(report)?,
                Control::Ready { attempt } => recovery.heard_ready(attempt)?,
                Control::Failed => return Err(Error::PeerFailed),
                Control::Close { rows_done: rows } => {
                    *rows_done = Some(rows);
                    return Err(CLOSED);
                }
            }
        }
        Ok(())
    }
}
