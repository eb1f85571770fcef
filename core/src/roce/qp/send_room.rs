//! The room of the send queue, and sends that are taken back.

use super::Qp;

impl<const SQ: usize, const RQ: usize> Qp<SQ, RQ> {
    /// Number of sends that the queue has room for.
    pub fn send_room(&self) -> u32 {
        self.cap.max_send_wr.saturating_sub(self.requester.posted())
    }

    /// Takes back the last `count` sends. The caller has posted them since it last called
    /// [`Qp::poll_transmit_run`] or handed in a packet, so none of them has begun.
    pub fn withdraw_sends(&mut self, count: u32) {
        self.requester.withdraw(count);
    }
}
