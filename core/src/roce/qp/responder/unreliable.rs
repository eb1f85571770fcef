//! Requests that nobody acknowledges: of unreliable connections, and datagrams (IBTA §9.8).

use super::{
    INVALID, Queue, RemoteOperation, Responder, ResponderMessage, ResponderRefusal, operation,
    permitted,
};
use crate::nic::{Wc, WcFlags, WcOpcode, WcStatus};
use crate::roce::qp::{Counters, Env, Fatal, Path};
use crate::roce::{Foreign, Packet, Position};

/// Length of the global route header in front of a received datagram. With IPv4 its last 20 bytes are the
/// IP header.
pub const GRH_BYTES: usize = 40;

/// What a datagram's completion has in place of a service level, as mlx5 and UCX have it: a bit for UDP, and
/// one for the version of IP.
const IPV6_UDP: u8 = 0b1001;
const IPV4_UDP: u8 = 0b1010;

impl<const RQ: usize> Responder<RQ> {
    /// Handles a request of an unreliable connection. A message that misses a packet is dropped as a
    /// whole, and the receive that it began to fill takes the next message.
    pub(in crate::roce::qp) fn handle_unreliable(
        &mut self,
        packet: &Packet<'_>,
        path: &Path,
        counters: &mut Counters,
        env: &mut impl Env,
    ) -> Result<(), Fatal> {
        let psn = packet.headers.bth.psn;
        if psn != self.expected {
            counters.out_of_order += 1;
            self.message = ResponderMessage::None;
        }
        self.expected = psn.add(1);
        match self.execute_unreliable(packet, path, env) {
            Ok(()) => Ok(()),
            Err(ResponderRefusal::Error(_, WcStatus::LOC_PROT_ERR)) => self.fail_receive(path, env),
            Err(_) => {
                counters.dropped += 1;
                self.message = ResponderMessage::None;
                Ok(())
            }
        }
    }

    fn execute_unreliable(
        &mut self,
        packet: &Packet<'_>,
        path: &Path,
        env: &mut impl Env,
    ) -> Result<(), ResponderRefusal> {
        let opcode = packet.headers.bth.opcode;
        let connected = opcode.connected().filter(|same| *same != opcode).ok_or(INVALID)?;
        let operation = operation(connected).ok_or(INVALID)?;
        let position = connected.position().ok_or(INVALID)?;
        if position.begins() {
            self.message = ResponderMessage::None;
        }
        let goes_on = match self.message {
            ResponderMessage::None => position.begins(),
            ResponderMessage::Send { .. } => operation == RemoteOperation::Send,
            ResponderMessage::Write { .. } => operation == RemoteOperation::Write,
        };
        if !goes_on || !permitted(operation, path) {
            return Err(INVALID);
        }
        match operation {
            RemoteOperation::Send => self.execute_send(packet, position, path, env)?,
            RemoteOperation::Write => self.execute_write(packet, position, path, env)?,
            RemoteOperation::Read | RemoteOperation::Atomic => return Err(INVALID),
        }
        if matches!(position, Position::Last | Position::Only) {
            self.message = ResponderMessage::None;
            self.count_message();
        }
        Ok(())
    }

    /// Handles a datagram, and returns whether a receive took it. A datagram is dropped if its Q_Key is
    /// wrong, if no receive is posted, and, as rxe does, if it is longer than the receive.
    pub(in crate::roce::qp) fn handle_datagram(
        &mut self,
        packet: &Packet<'_>,
        grh: &[u8; GRH_BYTES],
        path: &Path,
        env: &mut impl Env,
    ) -> Result<bool, Fatal> {
        let headers = &packet.headers;
        let Some(Foreign::Datagram(deth)) = headers.foreign else { return Ok(false) };
        let len = packet.payload.len() as u32;
        if deth.qkey != path.qkey || len > path.mtu_bytes {
            return Ok(false);
        }
        let Some(recv) = self.oldest_receive(env) else { return Ok(false) };
        let byte_len = GRH_BYTES as u32 + len;
        if byte_len > recv.sge.length {
            return Ok(false);
        }
        let placed = self
            .place_received(&recv, 0, grh, env)
            .and_then(|()| self.place_received(&recv, GRH_BYTES as u32, packet.payload, env));
        if placed.is_err() {
            return self.fail_receive(path, env).map(|()| true);
        }
        self.queue.pop();
        let with_imm = if headers.imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() };
        let wc = Wc {
            opcode: WcOpcode::RECV,
            byte_len,
            flags: WcFlags::GRH | with_imm,
            imm_data: headers.imm.map_or(0, |imm| u32::from_ne_bytes(imm.0)),
            src_qp: deth.src_qp,
            sl: if grh[0] >> 4 == 6 { IPV6_UDP } else { IPV4_UDP },
            ..path.completion(recv.wr_id, WcStatus::SUCCESS)
        };
        env.complete(Queue::Recv, wc, headers.bth.solicited);
        Ok(true)
    }

    /// Completes the oldest receive, whose memory does not exist.
    fn fail_receive(&mut self, path: &Path, env: &mut impl Env) -> Result<(), Fatal> {
        if let Some(recv) = self.queue.pop() {
            let wc = path.completion(recv.wr_id, WcStatus::LOC_PROT_ERR);
            env.complete(Queue::Recv, wc, false);
        }
        Err(Fatal)
    }
}
