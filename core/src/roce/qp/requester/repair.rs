//! Which marked packets are sent again.

use super::Requester;
use crate::roce::Psn;
use crate::roce::qp::Path;
use crate::roce::qp::psn_set::PsnSet;

/// A packet is sent again at most once in this time, however short round trips are.
const AGAIN_NS_MIN: u64 = 20_000;
/// And in this time before the first round trip is known.
const AGAIN_NS_UNKNOWN: u64 = 100_000;

/// Packets that the responder misses, or may miss.
#[derive(Default)]
pub(super) struct Repair {
    /// To be sent again.
    resend: PsnSet,
    /// Asked for by the responder in this round trip.
    round: PsnSet,
    /// When that is over.
    round_ends_ns: u64,
}

impl Repair {
    /// Whether nothing is to be sent again.
    pub(super) fn is_idle(&self) -> bool {
        self.resend.is_empty()
    }

    pub(super) fn send_again(&mut self, psn: Psn) {
        self.resend.insert(psn);
    }

    /// The responder misses a packet. Whether that is sent again: once each `again_ns`, so that a peer
    /// that asks time and again gets no more than one that acknowledges.
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

    /// The `count` packets from `start` on were acknowledged.
    pub(super) fn on_progress(&mut self, start: Psn, count: u32) {
        self.resend.remove_range(start, count);
        self.round.remove_range(start, count);
    }

    /// The oldest packet to be sent again, of those in flight.
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
    /// The responder misses this marked packet. It tells of no other.
    pub(super) fn packet_missing(&mut self, now: u64, psn: Psn, path: &Path) {
        let again_ns = self.rtt.mean_ns().unwrap_or(AGAIN_NS_UNKNOWN);
        if self.repair.on_missing(now, psn, again_ns) {
            self.rtt.on_resend();
            self.window.on_hole(path.train_packets);
            self.timer.on_nak(now);
        }
    }

    /// Sends the oldest marked packet again and the newest, which lets the responder see what it
    /// misses of those before.
    pub(super) fn probe(&mut self) {
        self.repair.send_again(self.oldest);
        self.repair.send_again(self.end.add(Psn::MASK));
    }
}
