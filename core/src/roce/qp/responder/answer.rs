//! The packets that a responder sends. READ responses leave first, then one acknowledge or NAK for all
//! that arrived, then NAKs for the holes of adaptive routing.
//!
//! An acknowledge says that everything before it was carried out, READ responses included. So an
//! acknowledge waits until these responses are sent.

use super::Responder;
use crate::nic::Access;
use crate::roce::qp::{Counters, Env, Fatal, Path, Payload, QpSide, Transmit};
use crate::roce::{Aeth, AtomicAckEth, Foreign, NakCode, Opcode, Psn, Reth, Syndrome};

/// The acknowledge or NAK to send.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::roce::qp) enum Answer {
    #[default]
    None,
    /// Everything is done up to the last SEND or WRITE.
    Ack,
    /// The packet with this PSN is missing.
    Missing { psn: Psn },
    /// The expected PSN needs a receive, and none is posted.
    NotReady,
    /// A request is refused, which ends the connection.
    Refuse { psn: Psn, code: NakCode },
}

/// How far the peer's requests have come.
#[derive(Clone, Copy)]
pub(in crate::roce::qp) struct Progress {
    /// Requests before this PSN were carried out.
    pub(in crate::roce::qp) expected: Psn,
    /// The last packet of a SEND or WRITE that was carried out.
    pub(in crate::roce::qp) acked: Psn,
    pub(in crate::roce::qp) msn: u32,
    pub(in crate::roce::qp) min_rnr_timer: u8,
}

/// Describes the messages that the acknowledge to send is for. These facts decide how long the
/// acknowledge may wait.
#[derive(Clone, Copy, Default)]
pub(super) struct Due {
    /// Each message has one packet.
    pub(super) short: bool,
    /// Each message is a WRITE that this end does not report to anybody.
    pub(super) silent: bool,
    /// Time at which the first of the messages arrived.
    pub(super) since_ns: u64,
}

/// The unanswered rest of a READ, or the answer to an atomic.
#[derive(Clone, Copy)]
pub(super) struct ResponderReply {
    psn: Psn,
    data: Data,
    left: u32,
    msn: u32,
    /// A part of the READ was answered already.
    begun: bool,
    /// A duplicate asked for this reply, and the reply does not take the place of the first one.
    repeated: bool,
}

#[derive(Clone, Copy)]
enum Data {
    Memory {
        va: u64,
        rkey: u32,
    },
    /// The word before an atomic.
    Word(u64),
}

impl ResponderReply {
    pub(super) fn new(psn: Psn, reth: &Reth, msn: u32) -> ResponderReply {
        let Reth { va, rkey, dma_len } = *reth;
        let data = Data::Memory { va, rkey };
        ResponderReply { psn, data, left: dma_len, msn, begun: false, repeated: false }
    }

    /// Answers an atomic by the word before the operation.
    pub(super) fn atomic(psn: Psn, word: u64, msn: u32, repeated: bool) -> ResponderReply {
        ResponderReply { psn, data: Data::Word(word), left: 0, msn, begun: false, repeated }
    }

    /// Answers a duplicate. If the duplicate asks for the rest of a READ, the answer goes on with
    /// MIDDLE or LAST. rxe gives no other answer and accepts no other.
    pub(super) fn again(
        psn: Psn,
        reth: &Reth,
        msn: u32,
        begun: bool,
        repeated: bool,
    ) -> ResponderReply {
        ResponderReply { begun, repeated, ..ResponderReply::new(psn, reth, msn) }
    }

    /// Returns whether the response with this PSN is still to be sent.
    pub(super) fn covers(&self, psn: Psn, path: &Path) -> bool {
        let ahead = psn.since(self.psn);
        ahead >= 0 && (ahead as u32) < path.packets(self.left)
    }

    /// Returns whether all responses that are still to be sent are among the `packets` from `psn` on.
    fn lies_within(&self, psn: Psn, packets: u32, path: &Path) -> bool {
        let skipped = self.psn.since(psn);
        skipped >= 0 && skipped as u32 + path.packets(self.left) <= packets
    }
}

impl<const RQ: usize> Responder<RQ> {
    /// Queues an acknowledge that must not wait, unless a NAK is queued: a NAK reports the progress
    /// too.
    pub(super) fn acknowledge(&mut self) {
        self.due = Due::default();
        if self.answer == Answer::None {
            self.answer = Answer::Ack;
        }
    }

    /// Returns whether an acknowledge is the only thing to send.
    pub(in crate::roce::qp) fn only_acknowledges(&self) -> bool {
        self.answer == Answer::Ack && self.replies.is_empty()
    }

    /// Returns whether an acknowledge is the only thing to send, and covers only one-packet messages
    /// that arrived after `since_ns`.
    pub(in crate::roce::qp) fn may_wait(&self, since_ns: u64) -> bool {
        self.due.short && self.due.since_ns > since_ns && self.only_acknowledges()
    }

    /// Returns whether all messages to acknowledge are WRITEs that this end does not report to
    /// anybody.
    pub(in crate::roce::qp) fn is_silent(&self) -> bool {
        self.due.silent
    }

    /// Number of READs and atomics that are being answered for the first time, or again if `repeated`.
    pub(super) fn unanswered(&self, repeated: bool) -> usize {
        self.replies.iter().filter(|reply| reply.repeated == repeated).count()
    }

    /// Queues the answer to a READ or atomic. The caller has checked that there is room.
    pub(super) fn reply(&mut self, reply: ResponderReply) {
        let before = |other: &&ResponderReply| other.psn.since(reply.psn) <= 0;
        let at = self.replies.iter().take_while(before).count();
        let _ = self.replies.insert(at, reply);
    }

    /// Removes the replies whose remaining responses are among the `packets` from `psn` on. Returns whether
    /// one of them was the first reply to its request.
    pub(super) fn withdraw_replies(&mut self, psn: Psn, packets: u32, path: &Path) -> bool {
        let first_replies = self.unanswered(false);
        self.replies.retain(|reply| !reply.lies_within(psn, packets, path));
        self.unanswered(false) < first_replies
    }

    /// Drops all answers that are still to be sent.
    pub(in crate::roce::qp) fn silence(&mut self) {
        self.answer = Answer::None;
        self.replies.clear();
        self.reorder.clear();
    }

    pub(in crate::roce::qp) fn poll_transmit(
        &mut self,
        path: &Path,
        counters: &mut Counters,
        env: &mut impl Env,
    ) -> Result<Option<Transmit>, Fatal> {
        while let Some(reply) = self.replies.first_mut() {
            let (psn, is_repeated) = (reply.psn, reply.repeated);
            let response = reply.next_response(path, env);
            if response.is_none() && !is_repeated {
                // The memory is gone.
                self.replies.clear();
                self.answer = Answer::Refuse { psn, code: NakCode::RemoteAccessError };
                env.refused(NakCode::RemoteAccessError);
                return Err(Fatal);
            }
            // The first answer may have told the requester that it may take the memory of a repeated READ away.
            if response.is_none() || reply.left == 0 {
                self.replies.remove(0);
            }
            if response.is_some() {
                return Ok(response);
            }
        }
        let mut answer = core::mem::take(&mut self.answer);
        if answer == Answer::None
            && let Some(psn) = self.reorder.next_ask(self.expected)
        {
            answer = Answer::Missing { psn };
        }
        Ok(answer.transmit(path, self.progress(), counters))
    }
}

impl Answer {
    /// Builds the packet for a peer whose requests have come so far.
    pub(in crate::roce::qp) fn transmit(
        self,
        path: &Path,
        progress: Progress,
        counters: &mut Counters,
    ) -> Option<Transmit> {
        let Progress { expected, acked, msn, min_rnr_timer } = progress;
        let (psn, syndrome) = match self {
            Answer::None => return None,
            Answer::Ack => (acked, Syndrome::Ack { credits: Syndrome::CREDITS_INVALID }),
            Answer::Missing { psn } => {
                counters.sequence_naks_sent += 1;
                (psn, Syndrome::Nak(NakCode::PsnSequenceError))
            }
            Answer::NotReady => {
                counters.rnr_naks_sent += 1;
                (expected, Syndrome::RnrNak { timer: min_rnr_timer })
            }
            Answer::Refuse { psn, code } => (psn, Syndrome::Nak(code)),
        };
        let mut transmit = path.transmit(Opcode::ACKNOWLEDGE, psn, Payload::None);
        transmit.headers.aeth = Some(Aeth { syndrome, msn });
        Some(transmit)
    }
}

impl ResponderReply {
    /// Builds the next response and steps past it. `None` means that its memory does not exist.
    fn next_response(&mut self, path: &Path, env: &mut impl Env) -> Option<Transmit> {
        let syndrome = Syndrome::Ack { credits: Syndrome::CREDITS_INVALID };
        let aeth = Some(Aeth { syndrome, msn: self.msn });
        let (va, rkey) = match self.data {
            Data::Memory { va, rkey } => (va, rkey),
            Data::Word(word) => {
                let mut transmit =
                    path.transmit(Opcode::ATOMIC_ACKNOWLEDGE, self.psn, Payload::None);
                transmit.headers.aeth = aeth;
                transmit.headers.foreign = Some(Foreign::AtomicAck(AtomicAckEth(word)));
                return Some(transmit);
            }
        };
        let len = self.left.min(path.mtu_bytes);
        let payload = if len == 0 {
            Payload::None
        } else {
            let need = Access::REMOTE_READ;
            let region = env.resolve(rkey, va, len, need, QpSide::Remote).ok()?;
            Payload::Memory { region, len }
        };
        let opcode = match (self.begun, len == self.left) {
            (false, true) => Opcode::READ_RESPONSE_ONLY,
            (false, false) => Opcode::READ_RESPONSE_FIRST,
            (true, false) => Opcode::READ_RESPONSE_MIDDLE,
            (true, true) => Opcode::READ_RESPONSE_LAST,
        };
        let mut transmit = path.transmit(opcode, self.psn, payload);
        let has_aeth = opcode != Opcode::READ_RESPONSE_MIDDLE;
        transmit.headers.aeth = aeth.filter(|_| has_aeth);
        self.psn = self.psn.add(1);
        self.data = Data::Memory { va: va.wrapping_add(len.into()), rkey };
        self.left -= len;
        self.begun = true;
        Some(transmit)
    }
}
