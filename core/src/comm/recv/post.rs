//! Posting the receive that is laid out in the next row.

use core::ptr;

use super::RecvComm;
use crate::comm::base::{Base, Failed};
use crate::comm::route::Receiving;
use crate::conn::Stream;
use crate::nic::{Nic, Refused};

impl<N: Nic, S: Stream> RecvComm<N, S> {
    /// Posts a receive on each queue pair, then the row of slots on the first. Takes the next
    /// request, which is armed. If the NIC refuses a work request, the comm fails. `AHEAD` says that no
    /// send waits for the row yet.
    #[inline(always)]
    pub(super) fn post_row<const AHEAD: bool>(&mut self) {
        let Self { base: Base { verbs, refusal, .. }, recv_wr, .. } = self;
        if let Err(refused) = verbs.nic.post_empty_recv(&verbs.qp, recv_wr, refusal) {
            self.first_recv_refused(refused);
            return;
        }
        if !verbs.other_qps.is_empty() && self.post_on_others().is_err() {
            return;
        }
        let Self { base: Base { reqs, verbs, refusal, .. }, .. } = self;
        let Receiving { slots, .. } = &mut reqs.at(reqs.next().raw()).value;
        let posted = match AHEAD {
            true => verbs.nic.post_list_ahead(&verbs.qp, slots, 0, refusal),
            false => verbs.nic.post_list(&verbs.qp, slots, 0, refusal),
        };
        if let Err(refused) = posted {
            self.slots_refused(refused);
            return;
        }
        reqs.advance();
        self.idx += 1;
    }

    /// Posts the receive on all queue pairs but the first.
    #[inline(never)]
    fn post_on_others(&mut self) -> Result<(), Failed> {
        let Self { base: Base { verbs, refusal, .. }, recv_wr, .. } = self;
        // To count the queue pairs would cost 5 instructions for each.
        for qp in &verbs.other_qps {
            if let Err(refused) = verbs.nic.post_empty_recv(qp, recv_wr, refusal) {
                let qp = ptr::from_ref(qp);
                return Err(self.recv_refused(qp, refused));
            }
        }
        Ok(())
    }

    /// Fails a call because the NIC refused a receive on the first queue pair. The function finds this queue
    /// pair itself, so that its caller keeps no address for it: this saves 5 instructions per receive.
    #[cold]
    #[inline(never)]
    fn first_recv_refused(&mut self, refused: Refused) -> Failed {
        let qp = ptr::from_ref(&self.base.verbs.qp);
        self.base.refused(qp, &[], refused)
    }

    /// Fails a call because the NIC refused a receive on the queue pair at the address `qp`.
    #[cold]
    #[inline(never)]
    fn recv_refused(&mut self, qp: *const N::Qp, refused: Refused) -> Failed {
        self.base.refused(qp, &[], refused)
    }

    /// Fails a call because the NIC refused to write the slots of the next request.
    #[cold]
    #[inline(never)]
    fn slots_refused(&mut self, refused: Refused) -> Failed {
        let Base { reqs, verbs, refusal, .. } = &mut self.base;
        let slots = &reqs.at(reqs.next().raw()).value.slots;
        let error = refusal.take(refused, &verbs.nic, &verbs.qp, slots.wrs());
        self.base.nic_failed(error)
    }
}
