//! What is left of a queue pair that was destroyed.

use super::responder::Answer;
use super::{Counters, Path, Qp, Transmit, responder};
use crate::roce::{Packet, Psn};

/// Answers the peer of a destroyed queue pair, as TCP does in TIME_WAIT: it sends the acknowledge
/// that was due, and acknowledges requests that the peer sends again because an acknowledge was
/// lost. It carries out nothing.
#[derive(Clone, Copy)]
pub struct Lingering {
    path: Path,
    /// Requests before this PSN were carried out.
    expected: Psn,
    msn: u32,
    answer: Answer,
}

impl<const SQ: usize, const RQ: usize> Qp<SQ, RQ> {
    /// What is to stay when this queue pair is destroyed: `None` before RTR, where it has no peer.
    pub fn lingering(&self) -> Option<Lingering> {
        let has_peer = self.path.mtu_bytes > 0;
        has_peer.then(|| self.responder.lingering(self.path))
    }

    /// For how long the peer may send a request again, if its timeout and retries are like ours.
    /// `None`: for ever.
    pub fn retry_time_ns(&self) -> Option<u64> {
        self.requester.retry_time_ns()
    }
}

impl Lingering {
    pub(super) fn new(path: Path, expected: Psn, msn: u32, answer: Answer) -> Self {
        // What needs the peer's request again, or a receive, is no use any more.
        let is_last_word = matches!(answer, Answer::Ack | Answer::Refuse { .. });
        let answer = if is_last_word { answer } else { Answer::None };
        Lingering { path, expected, msn, answer }
    }

    /// Takes a packet for the queue pair, checked as for [`Qp::handle_packet`]; whether it is answered.
    pub fn handle_packet(&mut self, packet: &Packet<'_>) -> bool {
        let bth = &packet.headers.bth;
        let was_carried_out = bth.psn.since(self.expected) < 0;
        let is_answered = was_carried_out && responder::is_acknowledged(bth.opcode);
        if is_answered && self.answer == Answer::None {
            self.answer = Answer::Ack;
        }
        is_answered
    }

    /// The answer to send, if there is one.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let mut counters = Counters::default();
        let answer = core::mem::take(&mut self.answer);
        answer.transmit(&self.path, self.expected, self.msn, 0, &mut counters)
    }
}
