//! The rest of a destroyed queue pair, which still answers its peer.

use super::responder::{Answer, Progress};
use super::{Counters, Path, Qp, Transmit, responder};
use crate::roce::Packet;

/// Answers the peer of a destroyed queue pair, as TCP does in TIME_WAIT. A lingering queue pair sends
/// the acknowledge that was due. If an acknowledge was lost and the peer repeats requests, the
/// lingering queue pair acknowledges these requests. A lingering queue pair carries out no request.
#[derive(Clone, Copy)]
pub struct Lingering {
    path: Path,
    progress: Progress,
    answer: Answer,
}

impl<const SQ: usize, const RQ: usize> Qp<SQ, RQ> {
    /// Returns the part that stays when this queue pair is destroyed. Before RTR the queue pair has no
    /// peer, and an unreliable one never answers, so the result is `None`.
    pub fn lingering(&self) -> Option<Lingering> {
        let has_peer = self.path.mtu_bytes > 0 && self.path.is_reliable();
        has_peer.then(|| Lingering::new(self.path, self.responder.last_state()))
    }

    /// Time for which the peer may send a request again, if its timeout and retries are like ours.
    /// `None` means for ever.
    pub fn retry_time_ns(&self) -> Option<u64> {
        self.requester.retry_time_ns()
    }
}

impl Lingering {
    fn new(path: Path, (progress, answer): (Progress, Answer)) -> Self {
        // An answer that needs a repeated request or a receive is of no use any more.
        let is_last_word = matches!(answer, Answer::Ack | Answer::Refuse { .. });
        let answer = if is_last_word { answer } else { Answer::None };
        Lingering { path, progress, answer }
    }

    /// Handles a packet for the destroyed queue pair and returns whether it is answered. The adapter
    /// has checked the packet as for [`Qp::handle_packet`].
    pub fn handle_packet(&mut self, packet: &Packet<'_>) -> bool {
        let bth = &packet.headers.bth;
        let was_carried_out = bth.psn.since(self.progress.expected) < 0;
        let is_answered = was_carried_out && responder::is_acknowledged(bth.opcode);
        if is_answered && self.answer == Answer::None {
            self.answer = Answer::Ack;
        }
        is_answered
    }

    /// Takes the answer to send, if there is one.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let mut counters = Counters::default();
        let answer = core::mem::take(&mut self.answer);
        answer.transmit(&self.path, self.progress, &mut counters)
    }
}
