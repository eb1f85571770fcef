//! Packets of adaptive routing: the responder places them as they come and completes them in order.

use super::{
    Answer, Due, INVALID, RemoteOperation, Responder, ResponderMessage, ResponderRefusal, Told,
    check_memory, permitted, place_write,
};
use crate::nic::{Access, WcOpcode};
use crate::roce::qp::reorder::Immediate;
use crate::roce::qp::{Counters, Env, Fatal, Path};
use crate::roce::{Headers, Opcode, Packet};

impl<const RQ: usize> Responder<RQ> {
    pub(super) fn handle_marked(
        &mut self,
        now: u64,
        packet: &Packet<'_>,
        path: &Path,
        counters: &mut Counters,
        env: &mut impl Env,
    ) -> Result<(), Fatal> {
        let bth = &packet.headers.bth;
        let Ok(ahead) = u32::try_from(bth.psn.since(self.expected)) else {
            counters.duplicates += 1;
            self.acknowledge();
            return Ok(());
        };
        let has_imm = packet.headers.imm.is_some();
        if ahead > 0 && !self.reorder.has_room(ahead, has_imm) {
            counters.dropped += 1;
            return Ok(());
        }
        if self.reorder.contains(bth.psn) {
            counters.duplicates += 1;
            if ahead == 0 {
                // The packet had arrived before and was only waiting for a receive.
                self.resume(path, env);
            }
            return Ok(());
        }
        self.reorder.on_arrival(now, bth.psn);
        if ahead == 0 {
            if has_imm && self.queue.front().is_none() {
                return self.refuse(ResponderRefusal::NotReady, bth.opcode, path, env);
            }
            return match self.place_marked(packet, path, env) {
                Ok(immediate) => {
                    if let Some(immediate) = immediate {
                        self.complete_immediate(immediate, path, env);
                    }
                    self.count_message();
                    self.note_due(now, packet);
                    self.step(1, bth.ack_req || self.answer == Answer::Ack, false);
                    self.resume(path, env);
                    Ok(())
                }
                Err(refusal) => self.refuse(refusal, bth.opcode, path, env),
            };
        }
        counters.out_of_order += 1;
        // A packet that must be refused is refused when its turn comes. The packet leaves a hole, and
        // the responder asks for the packet again.
        if let Ok(immediate) = self.place_marked(packet, path, env) {
            self.reorder.note(now, self.expected, bth.psn, immediate);
            if bth.ack_req {
                self.acknowledge();
            }
        } else {
            counters.dropped += 1;
        }
        Ok(())
    }

    /// Notes how long the acknowledge of a packet in its turn may wait.
    fn note_due(&mut self, now: u64, packet: &Packet<'_>) {
        let Headers { bth, reth, imm, .. } = packet.headers;
        if self.answer != Answer::Ack {
            self.due = Due { short: true, silent: true, since_ns: now };
        }
        // The last packet of a message asks for an acknowledge. So this packet is a whole message if
        // it asks and the packet before it asked. With an immediate, the RETH tells whether the packet
        // is a whole message.
        let is_whole = reth.is_some_and(|reth| reth.dma_len as usize == packet.payload.len());
        self.due.short &=
            bth.ack_req && self.asked_before && is_whole && !packet.payload.is_empty();
        self.due.silent &= imm.is_none();
        self.asked_before = bth.ack_req;
    }

    /// Completes packets that have arrived and whose turn has come.
    pub(in crate::roce::qp) fn resume(&mut self, path: &Path, env: &mut impl Env) {
        while self.reorder.contains(self.expected) {
            if let Some(immediate) = self.reorder.immediate(self.expected) {
                if self.queue.front().is_none() {
                    self.answer = Answer::NotReady;
                    return;
                }
                self.complete_immediate(immediate, path, env);
            }
            self.reorder.release(self.expected);
            self.count_message();
            // Packets were lost or late, so their sender waits for the acknowledge.
            (self.due, self.asked_before) = (Due::default(), false);
            self.step(1, true, false);
        }
    }

    fn complete_immediate(&mut self, immediate: Immediate, path: &Path, env: &mut impl Env) {
        let Immediate { imm, byte_len, solicited, .. } = immediate;
        let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
        self.complete_receive(opcode, byte_len, Told::Immediate(imm), solicited, path, env);
    }

    fn place_marked(
        &mut self,
        packet: &Packet<'_>,
        path: &Path,
        env: &mut impl Env,
    ) -> Result<Option<Immediate>, ResponderRefusal> {
        let Headers { bth, reth, imm, .. } = packet.headers;
        let (Some(reth), ResponderMessage::None) = (reth, self.message) else {
            return Err(INVALID);
        };
        if !matches!(bth.opcode, Opcode::WRITE_ONLY | Opcode::WRITE_ONLY_IMM)
            || !permitted(RemoteOperation::Write, path)
            || packet.payload.len() > path.mtu_bytes as usize
        {
            return Err(INVALID);
        }
        // With an immediate, the RETH names the whole message, and the payload is the message's end.
        let before = reth.dma_len.checked_sub(packet.payload.len() as u32).ok_or(INVALID)?;
        if before > 0 {
            if imm.is_none() {
                return Err(INVALID);
            }
            check_memory(reth.va, reth.rkey, reth.dma_len, Access::REMOTE_WRITE, env)?;
        }
        place_write(reth.va.wrapping_add(before.into()), reth.rkey, packet.payload, env)?;
        let (psn, byte_len, solicited) = (bth.psn, reth.dma_len, bth.solicited);
        let immediate = |imm| Immediate { psn, imm, byte_len, solicited };
        Ok(imm.map(immediate))
    }
}
