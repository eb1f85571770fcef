//! The end of a receiving comm: slots that the peer was told of are on their way, and a queue pair
//! that is destroyed would take them back.

use super::flush::Flushes;
use crate::conn::{Stream, Verbs};
use crate::nic::{Nic, SendFlags, SendWr, Sge, Wc, WcStatus};

/// Completions taken in one poll.
const POLL_BATCH: usize = 32;
/// Of no row.
const LAST: u64 = u64::MAX;

/// A [`RecvComm`](super::RecvComm) that is closed, until the last write of slots has arrived.
///
/// It ends when it is dropped, at any time; what it was to receive may still come in until then.
pub struct Closing<N: Nic, S> {
    // Its queue pair goes before the completion queue, which is among the verbs.
    _flushes: Flushes<N>,
    verbs: Verbs<N>,
    stream: S,
    is_done: bool,
}

impl<N: Nic, S: Stream> Closing<N, S> {
    /// `slots`: a write of slots, if there are any on their way.
    pub(super) fn new(
        flushes: Flushes<N>,
        verbs: Verbs<N>,
        stream: S,
        slots: Option<&SendWr>,
    ) -> Self {
        // A queue pair's requests complete in order: behind all others a write of no bytes.
        let posted = slots.map(|slots| {
            let flags = SendFlags::SIGNALED;
            let last = SendWr { wr_id: LAST, flags, sge: Sge::default(), ..*slots };
            verbs.nic.post_send(&verbs.qp, &[last])
        });
        let is_done = !matches!(posted, Some(Ok(())));
        Closing { _flushes: flushes, verbs, stream, is_done }
    }

    /// Whether nothing is on its way any more, or nobody is there to get it. `false`: call again,
    /// or drop it: a peer that does not answer is only given up after all its retries.
    pub fn poll(&mut self) -> bool {
        let mut wcs = [Wc::default(); POLL_BATCH];
        while !self.is_done {
            self.is_done = match self.verbs.nic.poll(&self.verbs.cq, &mut wcs) {
                // Between comms nothing travels over the stream but its end.
                Ok(0) if self.stream.recv(&mut [0; 8]) == Ok(0) => return false,
                Ok(0) | Err(_) => true,
                Ok(n) => wcs[..n as usize].iter().any(is_last),
            };
        }
        true
    }
}

/// Whether nothing comes behind a completion: it is the last one, or the queue pair is in error.
fn is_last(wc: &Wc) -> bool {
    wc.wr_id == LAST || wc.status != WcStatus::SUCCESS
}
