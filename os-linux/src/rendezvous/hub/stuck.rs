//! Finds out why ranks do not go on: asks all ranks, and tells all of them what is wrong.

use std::time::{Duration, Instant};

use invar_core::conn::Stream;
use invar_core::rendezvous::{
    NOBODY, RankCause, RankState, RankView, RendezvousHeader, RendezvousKind, SEALED_BYTES_MAX,
    judge_ranks,
};

use super::{Meeting, Rank};

/// Time in which a rank must answer. Its watching thread answers, not its program.
const ANSWER_WITHIN: Duration = Duration::from_millis(1500);
/// Time between two questions while a rank is stuck.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// A rank that is stuck says so every second.
const STUCK_FOR: Duration = Duration::from_millis(2500);

/// The hub's questions to all ranks.
#[derive(Default)]
pub(super) struct Stuck {
    /// When a rank last said that it is stuck.
    heard: Option<Instant>,
    /// When all ranks were asked, if a verdict is due.
    asked: Option<Instant>,
    /// When a verdict was told last.
    told: Option<Instant>,
}

/// The last view of a rank, and when it came.
pub(super) type LastView = Option<(RankView, Instant)>;

impl Meeting {
    /// Takes the view of the rank at a place in the list.
    pub(super) fn heard_view(&mut self, at: usize, body: &[u8]) {
        let Some(view) = RankView::parse(body) else { return };
        let now = Instant::now();
        if view.is_stuck {
            self.stuck.heard = Some(now);
        }
        self.ranks[at].view = Some((view, now));
    }

    /// Asks all ranks while one is stuck. Tells all ranks why, once all have answered or had time to.
    pub(super) fn look_for_stuck(&mut self) {
        let is_within = |at: Option<Instant>, time| at.is_some_and(|at| at.elapsed() < time);
        if !self.started || !is_within(self.stuck.heard, STUCK_FOR) {
            self.stuck.asked = None;
            return;
        }
        let Some(asked) = self.stuck.asked else {
            if !is_within(self.stuck.told, ASK_EVERY) {
                self.stuck.asked = Some(Instant::now());
                self.tell(RendezvousHeader::new(RendezvousKind::Ask, 0), &[]);
            }
            return;
        };
        let states: Vec<RankState> =
            (0..self.roster.nranks()).map(|rank| self.state(rank, asked)).collect();
        if asked.elapsed() < ANSWER_WITHIN && states.contains(&RankState::Unknown) {
            return;
        }
        (self.stuck.asked, self.stuck.told) = (None, Some(Instant::now()));
        let Some(verdict) = judge_ranks(&states) else { return };
        let mut text = verdict.to_string();
        text.truncate(text.floor_char_boundary(SEALED_BYTES_MAX - 2 * size_of::<u32>()));
        let (_, waiting) = verdict.waiting;
        let culprit = verdict.culprit.unwrap_or(NOBODY);
        let body =
            [&waiting.still_ms.to_le_bytes()[..], &culprit.to_le_bytes(), text.as_bytes()].concat();
        let tag = u32::from(matches!(verdict.cause, RankCause::Mismatch { .. }));
        let header = RendezvousHeader::new(RendezvousKind::Verdict, body.len());
        self.tell(RendezvousHeader { tag, ..header }, &body);
    }

    /// What is known about a rank, if all ranks were asked at `asked`.
    fn state(&self, rank: u32, asked: Instant) -> RankState {
        let Some(Rank { view, left, connection, .. }) =
            self.ranks.iter().find(|of| of.rank == rank)
        else {
            // A rank without a connection has left, or all ranks know that it has failed.
            return RankState::Left;
        };
        match view {
            _ if *left => RankState::Left,
            Some((view, at)) if *at >= asked => RankState::View(view.clone()),
            _ if asked.elapsed() < ANSWER_WITHIN => RankState::Unknown,
            last => RankState::Silent {
                last: last.as_ref().map(|(view, _)| view.clone()),
                host_answers: connection.stream().host_answers(),
            },
        }
    }
}
