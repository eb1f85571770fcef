//! The end of a receiving comm. Writes of slots may still be on their way to the peer, and destroying
//! the queue pair would cancel them.

use super::flush::Flushes;
use crate::conn::{Stream, Verbs};
use crate::nic::{Nic, SendFlags, SendWr, Sge, Wc, WcStatus};

/// The largest number of completions taken in one poll.
const POLL_BATCH: usize = 32;
/// The `wr_id` of the last write; no row of the FIFO has it.
const LAST: u64 = u64::MAX;

/// A closed [`RecvComm`](super::RecvComm), which lives until its last write of slots has arrived.
///
/// The caller may drop it at any time. Until then, data for posted receives may still arrive.
pub struct Closing<N: Nic, S> {
    // The flushes own a queue pair, which must be dropped before the completion queue in `verbs`.
    _flushes: Flushes<N>,
    verbs: Verbs<N>,
    stream: S,
    is_done: bool,
}

impl<N: Nic, S: Stream> Closing<N, S> {
    /// `slots` is any write of slots, if such writes may be on their way.
    pub(super) fn new(
        flushes: Flushes<N>,
        verbs: Verbs<N>,
        stream: S,
        slots: Option<&SendWr>,
    ) -> Self {
        // Requests of a queue pair complete in order, so an empty write behind the others completes
        // last.
        let posted = slots.map(|slots| {
            let flags = SendFlags::SIGNALED;
            let last = SendWr { wr_id: LAST, flags, sge: Sge::default(), ..*slots };
            verbs.nic.post_send(&verbs.qp, &[last])
        });
        let is_done = !matches!(posted, Some(Ok(())));
        Closing { _flushes: flushes, verbs, stream, is_done }
    }

    /// Returns `true` once no write is on its way any more, or once the peer has gone. After `false`,
    /// call again or drop the object: the NIC gives up a silent peer only after all its retries.
    pub fn poll(&mut self) -> bool {
        let mut wcs = [Wc::default(); POLL_BATCH];
        while !self.is_done {
            self.is_done = match self.verbs.nic.poll(&self.verbs.cq, &mut wcs) {
                // What the sender says does not matter any more; only the end of the stream does.
                Ok(0) if self.stream.recv(&mut [0; 256]).is_ok() => return false,
                Ok(0) | Err(_) => true,
                Ok(n) => wcs[..n as usize].iter().any(is_last),
            };
        }
        true
    }
}

/// Returns whether no more completions follow: this is the last one, or the queue pair is in error.
fn is_last(wc: &Wc) -> bool {
    wc.wr_id == LAST || wc.status != WcStatus::SUCCESS
}
