//! Recovery: both ends replace queue pairs that have failed, and no message is lost or comes twice. This
//! is its state; `recover.rs` drives it.
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
//! Each set of queue pairs has a number, its *attempt*. If one end has to begin again, it takes the next
//! number, and the other end follows. The order of rows is the same at both ends, so on each queue pair
//! the receives and the messages meet in the same order as before.
//!
//! An end answers in calls of its program on this connection, and in calls of `check_peer`, which hosts make
//! from another thread. If the peer's process or host is gone,
//! the stream ends. Each end fails if the connection has not worked for
//! [`CommSettings::recovery_timeout_ns`], be it for its own port or for a peer that does not answer.
//!
//! [`CommSettings::recovery_timeout_ns`]: crate::conn::CommSettings::recovery_timeout_ns

use super::control::{RailsReport, RecoveryReport};
use crate::conn::FENCE;
use crate::error::{CompletionError, Error, Suspicion};
use crate::mutant::{Mutant, is_planted};
use crate::nic::{Wc, WcStatus};

const SECOND_NS: u64 = 1_000_000_000;
/// The first and the longest pause between two attempts that failed at this end.
const PAUSE_NS: core::ops::RangeInclusive<u64> = 1_000_000..=SECOND_NS;
/// The shortest and the longest time after which a peer that does not answer is called again.
const LATE_NS: core::ops::RangeInclusive<u64> = 500_000_000..=8 * SECOND_NS;
/// The most attempts that begin without progress because this end's NIC or the peer's has refused to go on. A true
/// refusal repeats itself.
const REFUSALS_MAX: u32 = 3;
/// The numbers of the attempts of both ends differ by less than this.
const AHEAD_MAX: u32 = 1 << 16;

/// The state of a connection's recovery.
pub(super) struct Recovery {
    /// Whether both ends recover.
    pub(super) is_agreed: bool,
    pub(super) stage: RecoveryStage,
    /// The number of the queue pairs that are in use, or that are being made.
    pub(super) attempt: u32,
    /// The peer's latest report.
    pub(super) peer: Option<RecoveryReport>,
    /// The peer's latest report on a connection of several rails.
    pub(super) peer_rails: Option<RailsReport>,
    /// Whether the connection worked before this recovery, which has just begun.
    pub(super) is_new: bool,
    /// Whether nothing has failed, and one end wants other rails.
    pub(super) is_planned: bool,
    /// The latest attempt for which the peer is ready.
    pub(super) peer_ready: u32,
    /// The reason for the recovery.
    pub(super) cause: Suspicion,
    /// The completions of the fence that are still awaited, and the time until which to wait for them.
    pub(super) awaited: u32,
    pub(super) drained_by_ns: u64,
    /// Whether the fence has stopped all queue pairs, so that their last completions come.
    pub(super) is_fence_whole: bool,
    /// The time before which no new queue pairs are made.
    pub(super) not_before_ns: u64,
    pub(super) pause_ns: u64,
    /// The time after which a peer that has not answered is late, and the pause before it is late again.
    late_ns: Option<u64>,
    late_pause_ns: u64,
    pub(super) trouble: Trouble,
}

/// How long a connection has been without progress.
#[derive(Default)]
pub(super) struct Trouble {
    /// The time at which the connection stopped working.
    pub(super) began_ns: Option<u64>,
    /// The rows that were over by then.
    done: u64,
    /// The time at which it worked again.
    pub(super) resumed_ns: u64,
    /// The rows of both ends when it worked again.
    pub(super) rows: [u64; 2],
    pub(super) attempts: u32,
    /// The reason for which the connection stopped working.
    pub(super) cause: Option<Suspicion>,
    /// The time of the last attempt.
    pub(super) attempt_ns: u64,
    /// The times that a NIC has refused to go on since the last progress.
    refusals: u32,
    /// Whether the sender owed the receiver no message when the connection worked again.
    owes_nothing: bool,
}

/// The position of a recovery.
///
/// ```text
/// Suspected → Draining → Stopped → Reported → Started → Ready → Open
///     ↑                     |          |                  |
///     └─────────────────────┴──────────┴──────────────────┘  an error, or a later attempt of the peer
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryStage {
    /// There is no recovery.
    Open,
    /// A queue pair has failed, or the peer has stopped its queue pairs.
    Suspected,
    /// The queue pairs are stopped, and their last completions are awaited.
    Draining,
    /// All completions are there. The port may be down, so that no new queue pair can be made.
    Stopped,
    /// The peer was told of new queue pairs, and its report is awaited.
    Reported,
    /// The new queue pairs work at this end.
    Started,
    /// The peer's word that its queue pairs work is awaited.
    Ready,
}

impl Recovery {
    pub(super) fn new(is_agreed: bool) -> Self {
        Recovery {
            is_agreed,
            stage: RecoveryStage::Open,
            attempt: 0,
            peer: None,
            peer_rails: None,
            is_new: false,
            is_planned: false,
            peer_ready: 0,
            cause: Suspicion::Peer,
            awaited: 0,
            drained_by_ns: 0,
            is_fence_whole: false,
            not_before_ns: 0,
            pause_ns: *PAUSE_NS.start(),
            late_ns: None,
            late_pause_ns: *LATE_NS.start(),
            trouble: Trouble::default(),
        }
    }

    /// Whether both ends recover.
    pub(super) const fn is_agreed(&self) -> bool {
        self.is_agreed
    }

    /// Whether the last completions of all stopped queue pairs have come.
    pub(super) const fn is_drained(&self) -> bool {
        self.is_fence_whole && self.awaited == 0
    }

    pub(super) const fn stage(&self) -> RecoveryStage {
        self.stage
    }

    /// The number of the queue pairs in use, counted from 0.
    pub(super) const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the queue pairs have been stopped or will be. Then their errors mean nothing.
    pub(super) fn is_under_way(&self) -> bool {
        self.stage != RecoveryStage::Open
    }

    /// Whether new queue pairs may help after an error completion. If a port is down, some drivers report
    /// other errors than a peer that is silent. Linux removes the routes of a link before it marks the port
    /// down, so rdma_rxe may refuse a send (`LOC_QP_OP_ERR`) while its port still looks well. On a busy host it was
    /// seen to refuse a request of the peer (`REM_INV_REQ_ERR`) on queue pairs that worked. The cause is unknown.
    pub(super) fn may_help(&mut self, error: &CompletionError) -> bool {
        use WcStatus as Status;
        let of_network = [Status::RETRY_EXC_ERR, Status::RESP_TIMEOUT_ERR, Status::WR_FLUSH_ERR];
        let refusals = [Status::LOC_QP_OP_ERR, Status::REM_INV_REQ_ERR];
        let is_of_port = error.port_trouble.is_some();
        self.is_agreed && (is_of_port || of_network.contains(&error.status))
            || refusals.contains(&error.status) && self.may_help_after_refusal()
    }

    /// Whether new queue pairs may help after a NIC has refused to go on with a queue pair.
    pub(super) fn may_help_after_refusal(&mut self) -> bool {
        let refusals = self.trouble.refusals;
        let may_help = self.is_agreed && refusals < REFUSALS_MAX;
        self.trouble.refusals += u32::from(may_help);
        may_help
    }

    /// Whether the peer has begun an attempt that this end has not begun.
    pub(super) fn is_behind(&self) -> bool {
        let is_behind = self.peer_attempt() > self.attempt;
        is_behind && !(is_planted(Mutant::IgnoreLaterAttempt) && self.attempt > 0)
    }

    /// Takes an error completion of a queue pair that has failed or was stopped.
    pub(super) fn flushed(&mut self, wc: &Wc) {
        if wc.wr_id == FENCE {
            self.awaited = self.awaited.saturating_sub(1);
        }
    }

    /// Checks that the peer may report on an attempt. An older attempt than this end's is over: the peer sent
    /// the report before it knew of this end's. On each attempt the peer reports once, since what this end does next
    /// rests on it.
    fn expect_report(&self, attempt: u32) -> Result<(), Error> {
        let is_next = attempt > self.peer_attempt();
        match self.is_agreed && is_next && attempt <= self.attempt.saturating_add(AHEAD_MAX) {
            true => Ok(()),
            false => Err(Error::Unexpected),
        }
    }

    /// Takes the peer's report.
    pub(super) fn heard(&mut self, report: RecoveryReport) -> Result<(), Error> {
        self.expect_report(report.attempt)?;
        self.peer = Some(report);
        Ok(())
    }

    /// Takes the peer's report on a connection of several rails.
    pub(super) fn heard_rails(&mut self, report: RailsReport) -> Result<(), Error> {
        self.expect_report(report.attempt)?;
        self.peer_rails = Some(report);
        Ok(())
    }

    /// The number of the attempt of the peer's latest report.
    fn peer_attempt(&self) -> u32 {
        let one = self.peer.as_ref().map_or(0, |report| report.attempt);
        one.max(self.peer_rails.as_ref().map_or(0, |report| report.attempt))
    }

    /// Takes the peer's word that its queue pairs of an attempt work.
    pub(super) fn heard_ready(&mut self, attempt: u32) -> Result<(), Error> {
        self.peer_ready = attempt;
        if self.is_agreed { Ok(()) } else { Err(Error::Unexpected) }
    }

    /// The peer's report of this attempt.
    pub(super) fn report(&self) -> Option<&RecoveryReport> {
        self.peer.as_ref().filter(|report| report.attempt == self.attempt)
    }

    /// The peer's report of this attempt on a connection of several rails.
    pub(super) fn rails_report(&self) -> Option<&RailsReport> {
        self.peer_rails.as_ref().filter(|report| report.attempt == self.attempt)
    }

    /// The number of rows in the peer's report of this attempt.
    pub(super) fn peer_rows(&self) -> Option<u64> {
        let one = self.report().map(|report| report.rows);
        one.or_else(|| self.rails_report().map(|report| report.rows))
    }

    /// Takes the next number: that of the peer's attempt, if the peer is ahead.
    pub(super) fn count_attempt(&mut self, now_ns: u64) {
        let is_reused = is_planted(Mutant::ReuseAttempt) && self.attempt > 0;
        let next = self.attempt.saturating_add(u32::from(!is_reused));
        self.attempt = self.peer_attempt().max(next);
        self.trouble.attempts = self.trouble.attempts.saturating_add(1);
        self.trouble.attempt_ns = now_ns;
    }

    /// Whether new queue pairs have worked since the trouble began, and have carried nothing.
    pub(super) fn is_in_vain(&self) -> bool {
        self.trouble.was_interrupted()
    }

    /// Ends the recovery: the connection works again.
    pub(super) fn resume(&mut self, now_ns: u64, rows: [u64; 2], owes_nothing: bool) {
        (self.stage, self.pause_ns) = (RecoveryStage::Open, *PAUSE_NS.start());
        (self.late_ns, self.late_pause_ns) = (None, *LATE_NS.start());
        self.trouble.resume(now_ns, rows, self.is_planned, owes_nothing);
    }

    /// Begins to wait for the peer's answer.
    pub(super) fn await_peer(&mut self, now_ns: u64) {
        self.late_ns.get_or_insert(now_ns.saturating_add(self.late_pause_ns));
    }

    /// Whether the peer should have answered by now. Then its messages may be held up: after an outage TCP
    /// waits long before it sends again. Says so at growing intervals.
    pub(super) fn is_peer_late(&mut self, now_ns: u64) -> bool {
        let is_late = self.late_ns.is_some_and(|late_ns| now_ns >= late_ns);
        if is_late {
            self.late_pause_ns = (2 * self.late_pause_ns).min(*LATE_NS.end());
            self.late_ns = Some(now_ns.saturating_add(self.late_pause_ns));
        }
        is_late
    }

    /// Puts the next attempt off.
    pub(super) fn pause(&mut self, now_ns: u64) {
        self.not_before_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = (2 * self.pause_ns).min(*PAUSE_NS.end());
    }
}

impl Trouble {
    /// Notes that the connection has stopped working, when `done` rows were over. The earlier trouble goes on
    /// if no row was over since, and if the connection has worked only for a short time. A port that was active
    /// again is new trouble in any case, and a peer that begins counts its own. So is the trouble of a connection
    /// that had nothing to send, and one of whose rails has `answered` since. A rail that joins may carry what is
    /// owed, or not.
    pub(super) fn begin(
        &mut self,
        now_ns: u64,
        short_ns: u64,
        cause: Suspicion,
        done: u64,
        answered: bool,
    ) {
        let has_progress = done != self.done;
        let goes_on = !self.owes_nothing && self.began_ns.is_some() && !has_progress;
        if cause == Suspicion::RailJoins && goes_on {
            return;
        }
        let has_worked = has_progress
            || self.owes_nothing && answered
            || matches!(cause, Suspicion::Port(_) | Suspicion::Peer);
        let is_new = has_worked || now_ns.saturating_sub(self.resumed_ns) > short_ns;
        if is_new || self.began_ns.is_none() {
            (self.began_ns, self.attempts, self.cause) = (Some(now_ns), 0, Some(cause));
            // The refusal that has begun the trouble counts.
            self.refusals = self.refusals.min(1);
        }
        self.done = done;
    }

    /// Notes the rows of both ends. The trouble is over if there are more than before, or if a planned attempt has left
    /// nothing that is owed.
    pub(super) fn resume(
        &mut self,
        now_ns: u64,
        rows: [u64; 2],
        is_planned: bool,
        owes_nothing: bool,
    ) {
        if self.rows != rows || is_planned && owes_nothing {
            (self.rows, self.began_ns, self.refusals) = (rows, None, 0);
        }
        (self.resumed_ns, self.owes_nothing) = (now_ns, owes_nothing);
    }

    /// Whether the connection has worked for a while since the trouble began, without progress.
    fn was_interrupted(&self) -> bool {
        self.began_ns.is_some_and(|began_ns| self.resumed_ns > began_ns)
    }

    pub(super) fn waited_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.began_ns.unwrap_or(now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::super::control::RowSet;
    use super::*;
    use crate::conn::RailSet;

    const SECOND: u64 = 1_000_000_000;
    const SHORT: u64 = 138 * SECOND;
    const ERROR: Suspicion = Suspicion::Completion(WcStatus::RETRY_EXC_ERR);

    #[test]
    fn a_second_report_on_an_attempt_is_refused() {
        let report = |attempt, rows| RailsReport {
            attempt,
            rows,
            arrived: RowSet::default(),
            planned: false,
            usable: RailSet::NONE,
            trusted: RailSet::NONE,
            ends: Default::default(),
        };
        let mut recovery = Recovery::new(true);
        assert!(recovery.heard_rails(report(1, 7)).is_ok());
        assert_eq!(recovery.heard_rails(report(1, 0)), Err(Error::Unexpected));
        assert!(recovery.heard_rails(report(2, 7)).is_ok());
        assert_eq!(recovery.heard_rails(report(1, 7)), Err(Error::Unexpected));
    }

    #[test]
    fn a_rail_that_joins_is_no_trouble() {
        let mut trouble = Trouble::default();
        trouble.begin(SECOND, 0, Suspicion::RailJoins, 0, true);
        trouble.resume(2 * SECOND, [0, 0], true, true);
        trouble.begin(70 * SECOND, SHORT, ERROR, 0, false);
        assert_eq!(trouble.waited_ns(71 * SECOND), SECOND);
    }

    #[test]
    fn trouble_goes_on_while_rails_join_and_what_is_owed_does_not_arrive() {
        let mut trouble = Trouble::default();
        for round in 0..10 {
            trouble.begin((1 + 5 * round) * SECOND, SHORT, Suspicion::Silence, 7, true);
            trouble.resume((2 + 5 * round) * SECOND, [8, 7], false, false);
            trouble.begin((3 + 5 * round) * SECOND, 0, Suspicion::RailJoins, 7, true);
            trouble.resume((4 + 5 * round) * SECOND, [8, 7], true, false);
        }
        // The first attempt found new rows.
        assert_eq!(trouble.waited_ns(61 * SECOND), 58 * SECOND);
    }

    #[test]
    fn a_rail_that_joins_an_idle_connection_late_is_new_trouble() {
        let mut trouble = Trouble::default();
        trouble.begin(SECOND, SHORT, Suspicion::RailFailed, 0, false);
        trouble.resume(2 * SECOND, [0, 0], false, true);
        trouble.begin(100 * SECOND, 0, Suspicion::RailJoins, 0, false);
        assert_eq!(trouble.waited_ns(100 * SECOND), 0);
    }

    #[test]
    fn a_rail_that_fails_later_is_new_trouble_if_a_rail_has_answered_and_nothing_is_owed() {
        for (answered, waited_s) in [(true, 1), (false, 80)] {
            let mut trouble = Trouble::default();
            trouble.begin(SECOND, SHORT, Suspicion::RailFailed, 0, false);
            trouble.resume(2 * SECOND, [0, 0], false, true);
            trouble.begin(80 * SECOND, SHORT, Suspicion::RailFailed, 0, answered);
            assert_eq!(trouble.waited_ns(81 * SECOND), waited_s * SECOND);
        }
    }

    #[test]
    fn trouble_goes_on_until_a_row_is_over_or_a_port_was_active() {
        let mut trouble = Trouble::default();
        let mut waited = |at: u64, cause, done| {
            trouble.begin(at * SECOND, SHORT, cause, done, false);
            let waited_ns = trouble.waited_ns(at * SECOND);
            trouble.resume(at * SECOND, [1, 1], false, true);
            waited_ns / SECOND
        };
        // The first resume has new rows, so that the second error is the first of a trouble.
        assert_eq!([waited(1, ERROR, 0), waited(2, ERROR, 0), waited(30, ERROR, 0)], [0, 0, 28]);
        assert_eq!([waited(40, ERROR, 5), waited(50, ERROR, 5)], [0, 10]);
        assert_eq!([waited(60, Suspicion::Port("down"), 5), waited(61, ERROR, 5)], [0, 1]);
    }

    #[test]
    fn trouble_is_interrupted_only_by_queue_pairs_that_have_worked() {
        let mut trouble = Trouble::default();
        trouble.begin(SECOND, SHORT, ERROR, 0, false);
        trouble.resume(2 * SECOND, [1, 1], false, true);
        trouble.begin(3 * SECOND, SHORT, ERROR, 0, false);
        // Attempts in which no queue pair comes to work.
        trouble.begin(4 * SECOND, SHORT, ERROR, 0, false);
        assert!(!trouble.was_interrupted());
        trouble.resume(5 * SECOND, [1, 1], false, true);
        trouble.begin(6 * SECOND, SHORT, ERROR, 0, false);
        assert!(trouble.was_interrupted());
        trouble.resume(7 * SECOND, [2, 1], false, true);
        trouble.begin(8 * SECOND, SHORT, ERROR, 1, false);
        assert!(!trouble.was_interrupted());
    }
}
