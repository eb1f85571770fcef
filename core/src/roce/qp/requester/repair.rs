//! Decides which marked packets the requester sends again.

use super::Requester;
use crate::roce::Psn;
use crate::roce::qp::Path;
use crate::roce::qp::psn_set::PsnSet;

/// Minimum length of a round, however short round trips are. In a round, each packet is sent again at
/// most once.
const AGAIN_NS_MIN: u64 = 20_000;
/// Length of a round before the first round trip is known.
const AGAIN_NS_UNKNOWN: u64 = 100_000;

/// Packets that the responder misses or may miss.
#[derive(Default)]
pub(super) struct Repair {
    /// PSNs to send again.
    resend: PsnSet,
    /// PSNs that the responder asked for in this round.
    round: PsnSet,
    /// Time at which this round ends.
    round_ends_ns: u64,
}

impl Repair {
    /// Returns whether no packet is to be sent again.
    pub(super) fn is_idle(&self) -> bool {
        self.resend.is_empty()
    }

    pub(super) fn send_again(&mut self, psn: Psn) {
        self.resend.insert(psn);
    }

    /// Handles a report that the responder misses `psn`, and returns whether to send it again. Each
    /// packet is sent again at most once per round of `again_ns`. So a peer that keeps asking gets no
    /// more than a peer that acknowledges.
    fn on_missing(&mut self, now: u64, psn: Psn, again_ns: u64) -> bool {
        if now >= self.round_ends_ns {
            self.round = PsnSet::default();
            self.round_ends_ns = now.saturating_add(again_ns.max(AGAIN_NS_MIN));
        }
        if self.round.contains(psn) {
            return false;
        }
        self.round.insert(psn);
        self.resend.insert(psn);
        true
    }

    /// Forgets the `count` PSNs that start at `start`: the peer has acknowledged them.
    pub(super) fn on_progress(&mut self, start: Psn, count: u32) {
        self.resend.remove_range(start, count);
        self.round.remove_range(start, count);
    }

    /// Takes the oldest packet to send again, among those in flight.
    pub(super) fn take(&mut self, oldest: Psn, end: Psn) -> Option<Psn> {
        if self.resend.is_empty() {
            return None;
        }
        let psn = self.resend.first_present(oldest, end.since(oldest) as u32)?;
        self.resend.remove(psn);
        Some(psn)
    }
}

impl<const SQ: usize> Requester<SQ> {
    /// Handles a NAK for one marked packet. The NAK says nothing about other packets.
    pub(super) fn packet_missing(&mut self, now: u64, psn: Psn, path: &Path) {
        let again_ns = self.rtt.mean_ns().unwrap_or(AGAIN_NS_UNKNOWN);
        if self.repair.on_missing(now, psn, again_ns) {
            self.rtt.on_resend();
            self.window.on_hole(path.train_packets);
            self.timer.on_nak(now);
        }
    }

    /// Sends the oldest and the newest marked packet again. The newest one shows the responder which
    /// packets before it are missing.
    pub(super) fn probe(&mut self) {
        self.repair.send_again(self.oldest);
        self.repair.send_again(self.end.add(Psn::MASK));
    }
}
