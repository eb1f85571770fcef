//! The end of a connection that the receiver has closed: its close notice says which messages have
//! arrived.

use super::SendComm;
use crate::comm::base::Gate;
use crate::conn::{Stream, StreamError};
use crate::error::Error;
use crate::nic::Nic;
use crate::request::Entry;

impl<N: Nic, S: Stream> SendComm<N, S> {
    /// Settles the sends under way, since the connection has ended. The NIC completes those that were posted.
    pub(in crate::comm) fn peer_gone(&mut self) {
        self.heed_notice();
        if !self.group.is_complete() {
            // The group was never posted, and the sends that it lacks are refused now.
            let row = self.base.reqs.row(self.group.first());
            row.iter_mut().for_each(Entry::cut_short);
        }
    }

    /// Finishes the sends that have arrived according to the peer's close notice, even if the NIC has
    /// not completed them. Cuts the other sends short. Returns whether there was a new notice.
    pub(super) fn heed_notice(&mut self) -> bool {
        if self.has_heeded {
            return false;
        }
        let Some(rows_done) = self.base.rows_done else { return false };
        self.has_heeded = true;
        // The program has its buffers back after this, so that no packet may be sent again. If nothing is under way, the
        // queue pairs stay, and answer the receiver's last write.
        if self.outstanding() > 0 {
            self.base.verbs.fence();
        }
        self.base.reqs.cut_short();
        self.finish_rows(rows_done);
        self.base.close(Gate::Closed, Error::PeerClosed(StreamError::Closed));
        true
    }
}
