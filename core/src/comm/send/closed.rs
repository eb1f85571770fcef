//! The end of a connection that the receiver has closed: its close notice says which messages have
//! arrived.

use super::SendComm;
use crate::comm::base::Gate;
use crate::conn::{Stream, StreamError};
use crate::error::Error;
use crate::fifo::RECVS_MAX;
use crate::nic::Nic;

impl<N: Nic, S: Stream> SendComm<N, S> {
    /// Finishes the sends that have arrived according to the peer's close notice, even if the NIC has
    /// not completed them. Cuts the other sends short. Returns whether there was a new notice.
    pub(super) fn heed_notice(&mut self) -> bool {
        if self.has_heeded {
            return false;
        }
        let Some(rows_done) = self.base.notice.rows_done() else { return false };
        self.has_heeded = true;
        let depth = u64::from(self.row_mask) + 1;
        let rows_sent = self.rows_sent();
        // An unsent group has taken the requests of the oldest row.
        let rows = if self.group.is_complete() { depth } else { depth - 1 };
        self.base.reqs.cut_short();
        for row in rows_sent.saturating_sub(rows)..rows_sent.min(rows_done) {
            let first = (row % depth) as usize * RECVS_MAX;
            self.base.reqs.row(first as u32).iter_mut().for_each(|entry| entry.finish_late());
        }
        self.base.close(Gate::Closed, Error::PeerClosed(StreamError::Closed));
        true
    }
}
