//! Receives on a connection of several rails.

use super::RecvComm;
use crate::comm::base::{Base, Failed};
use crate::comm::route::Receiving;
use crate::comm::row_keys::{KEYS_BYTES, RailKeys, keys_offset, store};
use crate::conn::{Stream, Verbs};
use crate::fifo::{ROW_BYTES, SLOT_BYTES};
use crate::nic::{Memory, Nic, NicError, RecvWr, Refusal, SendFlags, SendList, SendWr, Sge};

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

    /// Directs all rows of slots to the peer's FIFO on the rail that is first now.
    pub(super) fn move_slots(&mut self) {
        let Base { reqs, rails, .. } = &mut self.base;
        for row in 0..self.depth {
            let slots = &mut reqs.at(row as u32).value.slots;
            let remote_addr = slots.wrs()[0].remote_addr;
            slots.wr(0).set_remote(remote_addr, rails.peer_rkey);
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

/// Writes the keys and the slots of a row.
pub(super) fn post_row_of_rails<N: Nic>(
    verbs: &Verbs<N>,
    slots: &SendList<1>,
    row: usize,
) -> Result<(), NicError> {
    let [slots] = *slots.wrs();
    let nreqs = slots.sge.length as usize / SLOT_BYTES;
    let fifo_addr = slots.remote_addr.wrapping_sub((row * ROW_BYTES) as u64);
    let offset = keys_offset(row) as u64;
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
    /// The key of a buffer that its slot holds.
    #[inline(always)]
    pub(super) fn slot_rkey(&self, rkey: u32) -> u32 {
        match self.rails.count {
            _ if N::RAILS_MAX == 1 => rkey,
            1 => self.nic.rail_rkey(self.lead(), rkey),
            _ => self.nic.rail_rkey(0, rkey),
        }
    }

    /// Fills the keys of a slot in the shadow.
    pub(super) fn store_keys(&self, row: usize, slot: usize, rkey: u32, idx: u64) {
        let count = self.rails.count;
        if count > 1 {
            let key = |rail| if rail < count { self.nic.rail_rkey(rail, rkey) } else { 0 };
            let keys: RailKeys = core::array::from_fn(key);
            store(self.control.words(), row, slot, &keys, idx);
        }
    }
}
