//! The phases of a queue pair's two halves, for tests and diagnoses.

use super::{Qp, Requester, Responder};

/// The phase of a requester. The phase of a queue pair that is not in RTS has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequesterPhase {
    /// No request is posted.
    Idle,
    /// Requests are posted, and no packet in flight is known to be lost.
    Sending,
    /// The requester noticed a loss. Packets that were in flight then are not acknowledged yet.
    Recovering,
    /// The requester waits after an RNR NAK.
    ReceiverNotReady,
}

/// The phase of a responder. The phase of a queue pair that is in neither RTR nor RTS has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderPhase {
    /// No message has begun, and no packet is missing.
    Ready,
    /// A message of several packets has begun, and no packet is missing.
    InMessage,
    /// The peer must send a packet again.
    PacketMissing,
}

impl<const SQ: usize, const RQ: usize> Qp<SQ, RQ> {
    /// The phases of requester and responder.
    pub fn phases(&self) -> (RequesterPhase, ResponderPhase) {
        (self.requester.phase(), self.responder.phase())
    }
}

impl<const SQ: usize> Requester<SQ> {
    fn phase(&self) -> RequesterPhase {
        if self.waits_for_receiver() {
            RequesterPhase::ReceiverNotReady
        } else if self.posted() == 0 {
            RequesterPhase::Idle
        } else if self.is_recovering() {
            RequesterPhase::Recovering
        } else {
            RequesterPhase::Sending
        }
    }
}

impl<const RQ: usize> Responder<RQ> {
    fn phase(&self) -> ResponderPhase {
        if self.misses_packet() {
            ResponderPhase::PacketMissing
        } else if self.is_in_message() {
            ResponderPhase::InMessage
        } else {
            ResponderPhase::Ready
        }
    }
}
