//! What is at work for a transfer, for who traces it: NCCL tells its profilers of each work request
//! (`net_ib.cc ncclIbMultiSend`, `ncclIbIrecv`).

use super::base::Gate;
use super::{RecvComm, Request, SendComm};
use crate::conn::Stream;
use crate::math::QpSplit;
use crate::nic::{Nic, SendOpcode};

/// A work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Number of its queue pair.
    pub qpn: u32,
    /// What it was posted with.
    pub wr_id: u64,
    /// What it does; `None` for a receive.
    pub opcode: Option<SendOpcode>,
    /// Bytes; a receive has no buffer, as the data comes by WRITE_WITH_IMM.
    pub length: u32,
}

impl<N: Nic, S: Stream> SendComm<N, S> {
    /// The work requests that carry a message under way, one for each queue pair; of a group, those of
    /// no bytes stand for none. `None` while it waits for others of its group; once these are there, ask
    /// before the next group.
    pub fn work(&mut self, request: &Request) -> Option<impl Iterator<Item = Work>> {
        let is_grouped = self.group.has(request);
        if is_grouped && self.base.gate == Gate::Group {
            return None;
        }
        let Self { base, target, .. } = self;
        let len = base.reqs.at(request.raw()).value.len;
        let wr_id = if is_grouped { 0 } else { request.raw().into() };
        let is_apart = target.is_apart(len);
        let mut split = QpSplit::new(len, target.qps);
        let nic = &base.verbs.nic;
        Some(base.verbs.qps().map(move |qp| {
            let length = split.next_part().length;
            let opcode = if is_grouped || is_apart && length > 0 {
                SendOpcode::RdmaWrite
            } else {
                SendOpcode::RdmaWriteWithImm
            };
            Work { qpn: nic.qp_num(qp), wr_id, opcode: Some(opcode), length }
        }))
    }
}

impl<N: Nic, S: Stream> RecvComm<N, S> {
    /// The work requests that await the end of a receive under way: one on each queue pair.
    pub fn work(&mut self, request: &Request) -> impl Iterator<Item = Work> {
        let base = &mut self.base;
        let [slots] = *base.reqs.at(request.raw()).value.slots.wrs();
        let nic = &base.verbs.nic;
        let qps = base.verbs.qps();
        qps.map(move |qp| Work { qpn: nic.qp_num(qp), wr_id: slots.wr_id, opcode: None, length: 0 })
    }
}
