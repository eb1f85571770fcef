//! Tests of receives of several buffers, and of flushes.

use super::{RecvComm, set_slots};
use crate::comm::base::{Base, Failed, Gate, Settled};
use crate::comm::route::Receiving;
use crate::comm::sizes::{SIZES_ROW_BYTES, SizesRow, sizes_offset};
use crate::conn::{Stream, Wire};
use crate::error::Error;
use crate::nic::{Memory, Nic, SendFlags};
use crate::request::ROWS;

impl<N: Nic, S: Stream> RecvComm<N, S> {
    /// Settles the receives under way, since no peer is left that could send.
    pub(in crate::comm) fn peer_gone(&mut self) {
        self.base.reqs.cut_short();
    }

    /// The slow path of [`RecvComm::test`]: returns whether a receive or flush is done.
    #[inline(never)]
    pub(super) fn test_slow(&mut self, token: u32) -> Result<bool, Failed> {
        match self.base.settle(token) {
            Settled::Pending => Ok(false),
            Settled::Done => {
                self.read_sizes(token)?;
                Ok(true)
            }
            Settled::Unknown => {
                self.received_len = 0;
                self.settle_flush(token)
            }
        }
    }

    /// Returns whether a flush is done, if `token` names a flush.
    fn settle_flush(&mut self, token: u32) -> Result<bool, Failed> {
        let base = &mut self.base;
        while base.gate != Gate::Failed {
            if base.route.flushes.end_if_done(token) {
                return Ok(true);
            }
            if !base.route.flushes.is_pending(token) {
                break;
            }
            if !base.poll() {
                // No attempt follows that would start it again.
                let is_lost = base.gate == Gate::Closed && base.route.flushes.is_broken();
                return if is_lost { Err(base.refuse()) } else { Ok(false) };
            }
        }
        Err(base.unsettled(token))
    }

    /// Reads the sizes of a group: those that the peer wrote before its immediate, or else the
    /// immediate's bits. For a single message, this function reads the size that is too large.
    pub(super) fn read_sizes(&mut self, token: u32) -> Result<(), Failed> {
        let Base { reqs, verbs, .. } = &mut self.base;
        let receiving = &mut reqs.at(token).value;
        let offset = sizes_offset(self.depth) + token as usize % ROWS * SIZES_ROW_BYTES;
        let row = SizesRow::at(verbs.control.words(), offset);
        let nreqs = 1 + receiving.others();
        self.received_len = nreqs as usize;
        let Receiving { imm, sizes: posted, slots, .. } = receiving;
        // The next receive in this row usually has one buffer, so the write of slots returns to one
        // slot.
        if nreqs > 1 {
            if verbs.settings.use_inline {
                slots.set_flags(0, slots.wrs()[0].flags | SendFlags::INLINE);
            }
            set_slots(slots, u64::from(slots.wrs()[0].wr_id as u32), verbs.row_bytes(1));
        }
        let is_told = nreqs > 1 && verbs.settings.wire == Wire::Invar;
        let mut bytes = 0;
        let pairs = self.received.as_chunks_mut().0.iter_mut().zip(posted.as_chunks().0);
        for (i, (received, posted)) in pairs.enumerate() {
            let got = match &row {
                Some(row) if is_told => row.load_pair(i),
                _ if nreqs > 1 => [*imm >> (2 * i) & 1, *imm >> (2 * i + 1) & 1],
                _ => [*imm * u32::from(i == 0), 0],
            };
            let posted: [u32; 2] = *posted;
            *received = got;
            bytes += u64::from(got[0]) + u64::from(got[1]);
            if got[0] > posted[0] {
                return Err(self.overrun(got[0], posted[0]));
            }
            if got[1] > posted[1] {
                return Err(self.overrun(got[1], posted[1]));
            }
        }
        self.base.bytes += bytes;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn overrun(&mut self, got: u32, posted: u32) -> Failed {
        self.base.fail(Error::Overrun { got, posted })
    }
}
