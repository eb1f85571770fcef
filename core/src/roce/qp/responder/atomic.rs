//! Atomic operations of the peer (IBTA §9.4.5). A duplicate gets the result of the first time.

use super::{Answered, INVALID, NO_ACCESS, Responder, ResponderRefusal, ResponderReply};
use crate::nic::{Access, Atomic};
use crate::roce::qp::{Env, Path, QpSide, RD_ATOMIC_MAX};
use crate::roce::{AtomicEth, Foreign, Headers, Opcode, Psn};

impl<const RQ: usize> Responder<RQ> {
    /// Carries out an atomic and returns the number of PSNs that it takes.
    pub(super) fn execute_atomic(
        &mut self,
        headers: &Headers,
        env: &mut impl Env,
    ) -> Result<u32, ResponderRefusal> {
        let Some(Foreign::Atomic(AtomicEth { va, rkey, swap_or_add, compare })) = headers.foreign
        else {
            return Err(INVALID);
        };
        // As in rxe, a misaligned word is an invalid request.
        if !va.is_multiple_of(Atomic::BYTES.into())
            || self.unanswered(false) >= usize::from(self.max_dest_rd_atomic)
        {
            return Err(INVALID);
        }
        let (need, len) = (Access::REMOTE_ATOMIC, Atomic::BYTES);
        let at = env.resolve(rkey, va, len, need, QpSide::Remote).map_err(|_| NO_ACCESS)?;
        let atomic = match headers.bth.opcode {
            Opcode::COMPARE_SWAP => Atomic::CompareSwap { compare, swap: swap_or_add },
            _ => Atomic::FetchAdd { add: swap_or_add },
        };
        let word = env.update(at, atomic).map_err(|_| INVALID)?;
        let psn = headers.bth.psn;
        self.count_message();
        self.answered.write((psn, Answered::Atomic { word }));
        self.reply(ResponderReply::atomic(psn, word, self.msn, false));
        Ok(1)
    }

    /// Answers an atomic again. The responder drops an atomic whose result it does not know any more.
    pub(super) fn repeat_atomic(&mut self, headers: &Headers, path: &Path) {
        let psn = headers.bth.psn;
        let result = |&(first, answered): &(Psn, Answered)| match answered {
            Answered::Atomic { word } if first == psn => Some(word),
            _ => None,
        };
        let Some(word) = self.answered.oldest_ordered().rev().find_map(result) else { return };
        let pending = self.replies.iter().any(|reply| reply.covers(psn, path));
        if !pending && self.unanswered(true) < usize::from(RD_ATOMIC_MAX) {
            self.reply(ResponderReply::atomic(psn, word, self.msn, true));
        }
    }
}
