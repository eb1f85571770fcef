//! SENDs, and the receives that messages take.

use super::{
    INVALID, NO_LOCAL_ACCESS, Receive, Responder, ResponderMessage, ResponderRefusal, TOO_LONG,
};
use crate::nic::{Access, Wc, WcFlags, WcOpcode, WcStatus};
use crate::roce::qp::ring::QueueRing;
use crate::roce::qp::{Env, Path, QpSide, Queue};
use crate::roce::{Foreign, Headers, Ieth, ImmDt, Opcode, Packet, Position};

/// What a message tells the program besides its bytes.
pub(super) enum Told {
    Nothing,
    Immediate(ImmDt),
    /// The message has invalidated this key.
    Invalidated(u32),
}

impl Told {
    pub(super) fn immediate(imm: Option<ImmDt>) -> Self {
        imm.map_or(Told::Nothing, Told::Immediate)
    }
}

impl<const RQ: usize> Responder<RQ> {
    pub(super) fn execute_send(
        &mut self,
        packet: &Packet<'_>,
        position: Position,
        path: &Path,
        env: &mut impl Env,
    ) -> Result<(), ResponderRefusal> {
        let Some(recv) = self.oldest_receive(env) else { return Err(ResponderRefusal::NotReady) };
        let received = match self.message {
            ResponderMessage::Send { received } => received,
            _ => 0,
        };
        let len = packet.payload.len() as u32;
        let fits = match position {
            Position::First | Position::Middle => len == path.mtu_bytes,
            Position::Last => (1..=path.mtu_bytes).contains(&len),
            Position::Only => len <= path.mtu_bytes,
        };
        if !fits {
            return Err(INVALID);
        }
        if len > recv.sge.length.saturating_sub(received) {
            return Err(TOO_LONG);
        }
        self.place_received(&recv, received, packet.payload, env)?;
        let received = received + len;
        self.message = ResponderMessage::Send { received };
        if position.ends() {
            let Headers { bth, imm, foreign, .. } = packet.headers;
            let told = match bth.opcode {
                Opcode::SEND_LAST_INV | Opcode::SEND_ONLY_INV => {
                    // As in rxe, an invalidation that fails is an invalid request.
                    let Some(Foreign::Invalidate(Ieth(key))) = foreign else { return Err(INVALID) };
                    env.invalidate(key).map_err(|_| INVALID)?;
                    Told::Invalidated(key)
                }
                _ => Told::immediate(imm),
            };
            self.complete_receive(WcOpcode::RECV, received, told, bth.solicited, path, env);
        }
        Ok(())
    }

    /// Copies bytes to `offset` in the buffers of the oldest receive.
    pub(super) fn place_received(
        &self,
        recv: &Receive,
        offset: u32,
        bytes: &[u8],
        env: &mut impl Env,
    ) -> Result<(), ResponderRefusal> {
        let len = bytes.len() as u32;
        if len > 0 && recv.has_list {
            let slot = QueueRing::<Receive, RQ>::slot(self.queue.head());
            let placed = env.scatter(Queue::Recv, slot, offset, bytes);
            placed.map_err(|_| NO_LOCAL_ACCESS)?;
        } else if len > 0 {
            let addr = recv.sge.addr.wrapping_add(offset.into());
            let to = env.resolve(recv.sge.lkey, addr, len, Access::LOCAL_WRITE, QpSide::Receive);
            env.place(to.map_err(|_| NO_LOCAL_ACCESS)?, bytes);
        }
        Ok(())
    }

    pub(super) fn complete_receive(
        &mut self,
        opcode: WcOpcode,
        byte_len: u32,
        told: Told,
        solicited: bool,
        path: &Path,
        env: &mut impl Env,
    ) {
        let (flags, imm_data) = match told {
            Told::Nothing => (WcFlags::empty(), 0),
            Told::Immediate(ImmDt(bytes)) => (WcFlags::WITH_IMM, u32::from_ne_bytes(bytes)),
            Told::Invalidated(key) => (WcFlags::WITH_INV, key),
        };
        let Some(recv) = self.queue.pop() else { return };
        let wc = Wc {
            opcode,
            byte_len,
            flags,
            imm_data,
            ..path.completion(recv.wr_id, WcStatus::SUCCESS)
        };
        env.complete(Queue::Recv, wc, solicited);
    }
}
