//! Requests without acknowledges: of unreliable connections, and datagrams.

use super::{Requester, SendWqe};
use crate::nic::{QpType, WcStatus};
use crate::roce::qp::ring::QueueRing;
use crate::roce::qp::{Env, Fatal, Path, Transmit};

impl<const SQ: usize> Requester<SQ> {
    /// Returns the next packets. Requests whose packets the adapter has taken before complete now: the
    /// adapter needs their memory no more.
    pub(in crate::roce::qp) fn poll_unreliable(
        &mut self,
        now: u64,
        start: bool,
        packets_max: u32,
        path: &Path,
        env: &mut impl Env,
    ) -> Result<Option<Transmit>, Fatal> {
        self.finish_sent(path, env);
        if !self.pacer.allows(now) || (self.cursor_packet == 0 && !start) {
            return Ok(None);
        }
        let Some(wqe) = self.queue.get_mut(self.cursor) else { return Ok(None) };
        if self.cursor_packet == 0 {
            wqe.first = self.next;
            wqe.packets = wqe.packets_of(path);
        }
        let most = if self.pacer.is_limited() { 1 } else { packets_max };
        let run = wqe.alike(self.cursor_packet, path).min(most);
        let slot = QueueRing::<SendWqe, SQ>::slot(self.cursor);
        let transmit = match path.qp_type {
            QpType::Ud => wqe.datagram(slot, self.next, path, env),
            _ => wqe.packet(slot, self.cursor_packet, run, self.next, path, env),
        };
        let Some(mut transmit) = transmit else {
            return Err(self.fail_front(WcStatus::LOC_PROT_ERR, 0, path, env));
        };
        let bth = &mut transmit.headers.bth;
        bth.ack_req = false;
        if path.qp_type == QpType::Uc {
            bth.opcode = bth.opcode.unreliable();
        }
        self.advance(run, transmit.headers.bth.opcode);
        let bytes = transmit.payload.len().saturating_mul(run);
        self.pacer.on_transmit(now, bytes);
        Ok(Some(transmit))
    }

    /// Completes the requests before the cursor.
    pub(super) fn finish_sent(&mut self, path: &Path, env: &mut impl Env) {
        // A request that failed or was flushed leaves the head behind the cursor.
        while self.cursor.wrapping_sub(self.queue.head()) as i32 > 0 && self.queue.len() > 0 {
            self.finish_front(path, env);
        }
        self.oldest = match self.queue.front() {
            Some(wqe) if self.cursor_packet > 0 => wqe.first,
            _ => self.next,
        };
        self.recover = self.oldest;
    }
}
