//! How acknowledges and READ responses change a requester (IBTA §9.7.5).

use super::{Requester, SendWqe};
use crate::nic::{Access, SendFlags, Wc, WcStatus};
use crate::roce::qp::ring::QueueRing;
use crate::roce::qp::{Counters, Env, Fatal, Path, QpSide, Queue};
use crate::roce::{AtomicAckEth, Foreign, NakCode, Opcode, Packet, Psn, Syndrome};

impl<const SQ: usize> Requester<SQ> {
    pub(in crate::roce::qp) fn handle_response(
        &mut self,
        now: u64,
        packet: &Packet<'_>,
        path: &Path,
        counters: &mut Counters,
        env: &mut impl Env,
    ) -> Result<(), Fatal> {
        let psn = packet.headers.bth.psn;
        // No packet in flight has this PSN. The answer came twice, came late, or answers nothing.
        if psn.since(self.oldest) < 0 || psn.since(self.end) >= 0 {
            counters.dropped += 1;
            return Ok(());
        }
        let syndrome = packet.headers.aeth.map(|aeth| aeth.syndrome);
        if packet.headers.bth.opcode != Opcode::ACKNOWLEDGE {
            return self.handle_read_response(now, packet, syndrome, path, counters, env);
        }
        match syndrome {
            Some(Syndrome::Ack { .. }) => {
                if !self.acknowledge(now, psn.add(1), path, env)? {
                    self.response_lost(now, counters);
                }
                Ok(())
            }
            Some(Syndrome::Nak(NakCode::PsnSequenceError)) => {
                counters.sequence_naks_received += 1;
                self.packet_lost(now, psn, path, counters, env)
            }
            Some(Syndrome::Nak(code)) => {
                if !self.acknowledge(now, psn, path, env)? {
                    self.response_lost(now, counters);
                    return Ok(());
                }
                let syndrome = Syndrome::Nak(code).to_byte();
                Err(self.fail_front(status_of(code), syndrome.into(), path, env))
            }
            Some(Syndrome::RnrNak { timer }) => {
                counters.rnr_naks_received += 1;
                self.receiver_not_ready(now, psn, timer, path, counters, env)
            }
            Some(Syndrome::Unknown(_)) | None => {
                counters.dropped += 1;
                Ok(())
            }
        }
    }

    /// Completes requests before `before`, because the responder has carried them out. Only READ
    /// responses tell that a READ is done. So an unanswered READ in the way gives `false`: its
    /// responses are lost.
    fn acknowledge(
        &mut self,
        now: u64,
        before: Psn,
        path: &Path,
        env: &mut impl Env,
    ) -> Result<bool, Fatal> {
        let start = self.oldest;
        let mut unanswered = false;
        while before.since(self.oldest) > 0 {
            let Some(wqe) = self.queue.front() else { break };
            let done = wqe.first.add(wqe.packets);
            unanswered = wqe.is_read();
            if unanswered || wqe.status != WcStatus::SUCCESS {
                break;
            }
            if before.since(done) < 0 {
                self.oldest = before;
                break;
            }
            self.oldest = done;
            self.finish_front(path, env);
        }
        self.progress(now, start);
        self.check_front(path, env)?;
        Ok(!unanswered)
    }

    /// Fails if the oldest work request ended with a local error.
    fn check_front(&mut self, path: &Path, env: &mut impl Env) -> Result<(), Fatal> {
        match self.queue.front() {
            Some(&SendWqe { status, .. }) if status != WcStatus::SUCCESS => {
                Err(self.fail_front(status, 0, path, env))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn finish_front(&mut self, path: &Path, env: &mut impl Env) {
        if let Some(wqe) = self.queue.pop()
            && wqe.wr.flags.contains(SendFlags::SIGNALED)
        {
            let wc = path.completion(wqe.wr.wr_id, WcStatus::SUCCESS);
            let (opcode, byte_len) = (wqe.wc_opcode(), wqe.wr.sge.length);
            env.complete(Queue::Send, Wc { opcode, byte_len, ..wc }, false);
        }
    }

    /// Handles progress since `start`, the value of `oldest` before this packet.
    fn progress(&mut self, now: u64, start: Psn) {
        let acked = self.oldest.since(start) as u32;
        if acked == 0 {
            return;
        }
        if let Some(rtt_ns) = self.rtt.on_ack(now, self.oldest) {
            self.window.on_round_trip(rtt_ns);
        }
        if self.marked
            && let Some(long_ns) = self.rtt.long_ns()
        {
            self.timer.set_late(long_ns.saturating_add(self.ack_delay_ns));
        }
        self.window.on_ack(acked);
        self.timer.on_progress(now, self.oldest != self.end);
        self.repair.on_progress(start, acked);
        self.went_back_to = None;
        // Keep `recover` close behind: a PSN that is too far behind would seem to be ahead.
        if self.recover.since(self.oldest) < 0 {
            self.recover = self.oldest;
        }
        if self.next.since(self.oldest) < 0 {
            self.go_back();
        }
    }

    /// Handles lost READ responses: a later answer came while a READ is unanswered.
    fn response_lost(&mut self, now: u64, counters: &mut Counters) {
        counters.responses_lost += 1;
        self.go_back_once(now);
    }

    /// Handles a NAK for a packet that the responder misses.
    fn packet_lost(
        &mut self,
        now: u64,
        psn: Psn,
        path: &Path,
        counters: &mut Counters,
        env: &mut impl Env,
    ) -> Result<(), Fatal> {
        if self.marked {
            self.packet_missing(now, psn, path);
        } else if self.acknowledge(now, psn, path, env)? {
            self.go_back_once(now);
        } else {
            self.response_lost(now, counters);
        }
        Ok(())
    }

    /// Sends everything from `oldest` on again, unless this was done and `oldest` is unchanged since.
    fn go_back_once(&mut self, now: u64) {
        if self.went_back_to == Some(self.oldest) {
            return;
        }
        self.went_back_to = Some(self.oldest);
        self.timer.on_nak(now);
        // Shrink the window once for all losses of a round trip.
        if self.oldest.since(self.recover) >= 0 {
            self.window.on_loss();
            self.recover = self.end;
        }
        self.go_back();
    }

    fn receiver_not_ready(
        &mut self,
        now: u64,
        psn: Psn,
        code: u8,
        path: &Path,
        counters: &mut Counters,
        env: &mut impl Env,
    ) -> Result<(), Fatal> {
        if !self.acknowledge(now, psn, path, env)? {
            self.response_lost(now, counters);
            return Ok(());
        }
        if self.timer.waits_for_receiver() {
            return Ok(());
        }
        if !self.timer.on_rnr_nak(now, code) {
            let syndrome = Syndrome::RnrNak { timer: code }.to_byte();
            let status = WcStatus::RNR_RETRY_EXC_ERR;
            return Err(self.fail_front(status, syndrome.into(), path, env));
        }
        if self.marked {
            self.repair.send_again(self.oldest);
            self.rtt.on_resend();
        } else {
            self.go_back();
        }
        Ok(())
    }

    fn handle_read_response(
        &mut self,
        now: u64,
        packet: &Packet<'_>,
        syndrome: Option<Syndrome>,
        path: &Path,
        counters: &mut Counters,
        env: &mut impl Env,
    ) -> Result<(), Fatal> {
        let psn = packet.headers.bth.psn;
        // A READ response acknowledges all requests before it.
        if !self.acknowledge(now, psn, path, env)? {
            self.response_lost(now, counters);
            return Ok(());
        }
        match self.take_read_response(packet, syndrome, path, env) {
            Ok(()) => {
                self.progress(now, psn);
                self.check_front(path, env)
            }
            Err(status) => Err(self.fail_front(status, 0, path, env)),
        }
    }

    /// Takes the READ response whose PSN is `oldest`.
    fn take_read_response(
        &mut self,
        packet: &Packet<'_>,
        syndrome: Option<Syndrome>,
        path: &Path,
        env: &mut impl Env,
    ) -> Result<(), WcStatus> {
        let bad_response = Err(WcStatus::BAD_RESP_ERR);
        let Some(wqe) = self.queue.front() else { return bad_response };
        let bth = &packet.headers.bth;
        let Some(position) = bth.opcode.position() else { return bad_response };
        let word;
        let data = match (wqe.atomic, packet.headers.foreign) {
            (None, None) => packet.payload,
            (Some(_), Some(Foreign::AtomicAck(AtomicAckEth(original)))) => {
                word = original.to_ne_bytes();
                &word
            }
            _ => return bad_response,
        };
        if !wqe.is_read() || !matches!(syndrome, None | Some(Syndrome::Ack { .. })) {
            return bad_response;
        }
        let index = bth.psn.since(wqe.first) as u32;
        let offset = index * path.mtu_bytes;
        let len = (wqe.wr.sge.length - offset).min(path.mtu_bytes);
        let ends = index + 1 == wqe.read_request_end(index);
        // In rxe, the start of a repeated request decides whether its first response is a FIRST. So
        // check only the end.
        if position.ends() != ends || data.len() != len as usize {
            return bad_response;
        }
        if len > 0 && wqe.has_list {
            let slot = QueueRing::<SendWqe, SQ>::slot(self.queue.head());
            let placed = env.scatter(Queue::Send, slot, offset, data);
            placed.map_err(|_| WcStatus::LOC_PROT_ERR)?;
        } else if len > 0 {
            let sge = &wqe.wr.sge;
            let addr = sge.addr.wrapping_add(u64::from(offset));
            let to = env.resolve(sge.lkey, addr, len, Access::LOCAL_WRITE, QpSide::Local);
            env.place(to.map_err(|_| WcStatus::LOC_PROT_ERR)?, data);
        }
        let done = index + 1 == wqe.packets;
        self.reads = self.reads.saturating_sub(u8::from(ends));
        self.oldest = bth.psn.add(1);
        if done {
            self.finish_front(path, env);
        }
        Ok(())
    }
}

/// Status of a work request that the responder refused with this code (IBTA §9.7.5.2). Unknown codes
/// get the status that rxe gives.
fn status_of(code: NakCode) -> WcStatus {
    match code {
        NakCode::InvalidRequest => WcStatus::REM_INV_REQ_ERR,
        NakCode::RemoteAccessError => WcStatus::REM_ACCESS_ERR,
        NakCode::InvalidRdRequest => WcStatus::REM_INV_RD_REQ_ERR,
        NakCode::RemoteOperationalError | NakCode::PsnSequenceError | NakCode::Unknown(_) => {
            WcStatus::REM_OP_ERR
        }
    }
}
