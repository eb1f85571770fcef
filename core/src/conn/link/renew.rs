//! The end of a connection's queue pairs, and new ones in their place.

use super::rails::lead_rail;
use super::{FENCE, Verbs, create_qp};
use crate::conn::{QPS_MAX, RAILS_MAX};
use crate::nic::{Access, Nic, NicError, QpTransition, RecvWr, SendFlags, SendOpcode, SendWr};

/// The work requests that end a queue pair: a send and a receive.
const FENCES_EACH: u32 = 2;

impl<N: Nic> Verbs<N> {
    /// Stops all queue pairs: afterwards the peer can neither write through them nor get an answer.
    /// Returns how many completions with the `wr_id` [`FENCE`] will follow, and whether these are all: then every
    /// other completion of the queue pairs has arrived when they have.
    pub(crate) fn fence(&self) -> (u32, bool) {
        let posted = self.all_qps().map(|qp| fence(&self.nic, qp));
        posted.fold((0, true), |(all, is_whole), posted| {
            (all + posted, is_whole && posted == FENCES_EACH)
        })
    }

    /// Replaces the queue pairs by new ones in INIT, on the port as it is now. `is_drained` says that the last
    /// completions of the old queue pairs have come. Otherwise their end must stop them.
    pub(crate) fn renew(&mut self, attempt: u32, is_drained: bool) -> Result<(), NicError> {
        let (rail, port) = lead_rail(&self.nic, Some(self.lead()))?;
        let Self { nic, pd, cq, settings, .. } = &*self;
        let create = || create_qp(nic, rail, pd, cq, &port, settings, Access::REMOTE_WRITE);
        let first = create()?;
        let others = self.other_qps.iter().map(|_| create());
        let others = others.collect::<Result<heapless::Vec<_, { QPS_MAX - 1 }>, _>>()?;
        self.replace_qps(first, others, is_drained);
        (self.port, self.attempt) = (port, attempt);
        self.rails.ports[rail % RAILS_MAX] = port;
        Ok(())
    }

    /// Puts new queue pairs in the place of the old ones, which end.
    pub(super) fn replace_qps(
        &mut self,
        first: N::Qp,
        others: heapless::Vec<N::Qp, { QPS_MAX - 1 }>,
        is_drained: bool,
    ) {
        let first = core::mem::replace(&mut self.qp, first);
        let others = core::mem::replace(&mut self.other_qps, others);
        if is_drained {
            core::iter::once(first).chain(others).for_each(|qp| self.nic.retire(qp));
        }
    }
}

/// Moves a queue pair to ERR and posts work requests that complete last. Returns their number.
fn fence<N: Nic>(nic: &N, qp: &N::Qp) -> u32 {
    let stop = || nic.modify_qp(qp, &QpTransition::Err);
    let (flags, opcode) = (SendFlags::SIGNALED, SendOpcode::RdmaWrite);
    let last = SendWr { wr_id: FENCE, flags, opcode, ..SendWr::default() };
    let recv = RecvWr { wr_id: FENCE, ..RecvWr::default() };
    if stop().is_err() {
        return 0;
    }
    let posted =
        u32::from(nic.post_send(qp, &[last]).is_ok()) + u32::from(nic.post_recv(qp, &recv).is_ok());
    // Some drivers look for new receives of a stopped queue pair only while it changes its state.
    let _ = stop();
    posted
}
