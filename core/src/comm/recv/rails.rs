//! Receives on a connection of several rails.

use super::buf::slot;
use super::{RecvBuf, RecvComm};
use crate::comm::base::{Base, Failed};
use crate::comm::route::Receiving;
use crate::comm::row_keys::{KEYS_BYTES, RailKeys, SlotKeys, keys_offset};
use crate::conn::{RAILS_MAX, Stream, Verbs};
use crate::fifo::{ROW_BYTES, Row, SLOT_BYTES};
use crate::nic::{
    Memory, Nic, NicError, RecvWr, Refusal, Refused, SendFlags, SendList, SendWr, Sge,
};

impl<N: Nic, S: Stream> RecvComm<N, S> {
    /// Posts the receive of the next row on its queue pairs, then the row of slots. If the NIC refuses a
    /// work request, an attempt on the other rails posts the row again.
    #[inline(never)]
    pub(super) fn post_on_rails(&mut self, only: Option<usize>) -> Result<(), Failed> {
        let Self { base: Base { verbs, reqs, .. }, recv_wr, .. } = self;
        let posted = post_recvs(verbs, recv_wr, only);
        let next = reqs.next();
        let Receiving { slots, .. } = &mut reqs.at(next.raw()).value;
        let posted = posted.and_then(|()| match verbs.rails.count {
            1 => verbs.nic.post_send(&verbs.qp, slots.wrs()),
            _ => post_row_of_rails(verbs, slots, next.row()),
        });
        if let Err(error) = posted {
            self.base.rail_refused(error)?;
        }
        self.base.reqs.advance();
        self.idx += 1;
        Ok(())
    }

    /// Posts the receive of the next row on its only queue pair, then the row's slot and keys. Takes the next
    /// request, which is armed. If the NIC refuses a work request, an attempt on the other rails posts the row
    /// again.
    #[inline(always)]
    pub(super) fn post_on_one_rail(&mut self, only: usize) {
        let Self { base: Base { verbs, reqs, refusal, .. }, recv_wr, .. } = self;
        let slots = &mut reqs.at(reqs.next().raw()).value.slots;
        let received = verbs.nic.post_empty_recv(verbs.data_qp(only), recv_wr, refusal);
        let written = received.map(|()| verbs.nic.post_list(&verbs.qp, slots, 0, refusal));
        if !matches!(written, Ok(Ok(()))) && self.refused_on_rail(only, written).is_err() {
            return;
        }
        self.base.reqs.advance();
        self.idx += 1;
    }

    /// Goes on after the NIC has refused the receive of the next row on the queue pair with the index `only`, or
    /// the write of the row's slot.
    #[cold]
    #[inline(never)]
    fn refused_on_rail(
        &mut self,
        only: usize,
        written: Result<Result<(), Refused>, Refused>,
    ) -> Result<(), Failed> {
        let Base { verbs, reqs, refusal, .. } = &mut self.base;
        let slots = reqs.at(reqs.next().raw()).value.slots.wrs();
        let error = match written {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(refused)) => refusal.take(refused, &verbs.nic, &verbs.qp, slots),
            Err(refused) => refusal.take(refused, &verbs.nic, verbs.data_qp(only), &[]),
        };
        self.base.rail_refused(error)
    }

    /// Directs all rows of slots to the peer's FIFO on the rail that is first now.
    pub(super) fn move_slots(&mut self) {
        let Base { reqs, rails, verbs, .. } = &mut self.base;
        let lkey = verbs.control_lkey();
        for row in 0..self.depth {
            let slots = &mut reqs.at(row as u32).value.slots;
            let [SendWr { remote_addr, sge, .. }] = *slots.wrs();
            slots.wr(0).set_remote(remote_addr, rails.peer_rkey);
            slots.wr(0).set_sge(Sge { lkey, ..sge });
        }
    }
}

/// Posts the receive of a row on its queue pairs.
pub(super) fn post_recvs<N: Nic>(
    verbs: &Verbs<N>,
    recv: &RecvWr,
    only: Option<usize>,
) -> Result<(), NicError> {
    let (skipped, taken) = (only.unwrap_or(0), only.map_or(usize::MAX, |_| 1));
    let mut qps = verbs.qps().skip(skipped).take(taken);
    let mut refusal = Refusal::default();
    qps.try_for_each(|qp| {
        let posted = verbs.nic.post_empty_recv(qp, recv, &mut refusal);
        posted.map_err(|refused| refusal.take(refused, &verbs.nic, qp, &[]))
    })
}

/// The number of completions that the receive of a row awaits on several rails, if `qps` queue pairs carry it.
pub(super) fn awaited_on_rails(row: usize, qps: u32) -> u32 {
    qps + u32::from(row == 0)
}

/// Writes the slots and the keys of a row.
pub(super) fn post_row_of_rails<N: Nic>(
    verbs: &Verbs<N>,
    slots: &SendList<1>,
    row: usize,
) -> Result<(), NicError> {
    let [slots] = *slots.wrs();
    let nreqs = 1 + (slots.wr_id >> 32) as usize;
    if nreqs == 1 {
        return verbs.nic.post_send(&verbs.qp, &[slots]);
    }
    let fifo_addr = slots.remote_addr.wrapping_sub((row * ROW_BYTES) as u64);
    let offset = keys_offset(row, nreqs) as u64;
    let keys = SendWr {
        remote_addr: fifo_addr.wrapping_add(offset),
        sge: Sge {
            addr: verbs.control_addr().wrapping_add(offset),
            length: (nreqs * KEYS_BYTES) as u32,
            lkey: slots.sge.lkey,
        },
        flags: SendFlags::empty(),
        ..slots
    };
    verbs.nic.post_send(&verbs.qp, &[keys, slots])
}

impl<N: Nic> Verbs<N> {
    /// The number of bytes that the write of a row of `nreqs` slots has. Over several rails the keys of a row of one
    /// slot are among them.
    #[inline(always)]
    pub(super) fn row_bytes(&self, nreqs: usize) -> u32 {
        let keys_bytes = if self.has_rails() && nreqs == 1 { KEYS_BYTES } else { 0 };
        (nreqs * SLOT_BYTES + keys_bytes) as u32
    }

    /// Fills slot `r` of a row of `nreqs` slots in the shadow, and its keys. The row has the index `at`. `last` has
    /// the keys of the buffer before.
    #[inline(always)]
    pub(super) fn store_slot(
        &self,
        (row, at): (&Row<'_>, usize),
        (nreqs, r): (usize, usize),
        buf: &RecvBuf,
        idx: u64,
        last: &mut (u32, RailKeys),
    ) {
        if N::RAILS_MAX == 1 {
            return row.store(r, &slot(buf, nreqs as u32, idx));
        }
        let (number, keys) = last;
        if *number != buf.rkey {
            (*number, *keys) = (buf.rkey, self.nic.rail_rkeys(buf.rkey));
        }
        let first = if self.has_rails() { 0 } else { self.lead() };
        let buf = RecvBuf { rkey: keys[first % RAILS_MAX], ..*buf };
        row.store(r, &slot(&buf, nreqs as u32, idx));
        if self.has_rails()
            && let Some(there) = SlotKeys::of(self.control.words(), at, nreqs, r)
        {
            there.store(keys, idx);
        }
    }
}
