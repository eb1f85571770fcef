//! The work requests of a transfer, for tracing. NCCL tells its profilers about each work request
//! (`net_ib.cc ncclIbMultiSend`, `ncclIbIrecv`).

use super::base::{Base, Gate};
use super::post::next_split;
use super::{RecvComm, Request, SendComm};
use crate::conn::Stream;
use crate::math::QpSplit;
use crate::nic::{Nic, SendOpcode};

/// One work request, described for a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Number of the queue pair that carries the work request.
    pub qpn: u32,
    /// The `wr_id` that the work request was posted with.
    pub wr_id: u64,
    /// Operation of the work request; `None` for a receive.
    pub opcode: Option<SendOpcode>,
    /// Length in bytes. A receive has no buffer and so no length, since the data comes by
    /// WRITE_WITH_IMM.
    pub length: u32,
}

impl<N: Nic, S: Stream> SendComm<N, S> {
    /// The work requests that carry a message under way, one for each queue pair. In a group, an entry
    /// of length 0 stands for no work request. An entry longer than the port carries at once stands for
    /// several. Returns `None` while the message waits for others of its group. Once the group is posted,
    /// call this before the next group begins.
    pub fn work(&mut self, request: &Request) -> Option<impl Iterator<Item = Work>> {
        let is_grouped = self.group.has(request);
        if is_grouped && self.base.gate == Gate::Group {
            return None;
        }
        let Self { base, target, .. } = self;
        let len = base.reqs.at(request.raw()).value.0.len;
        let wr_id = if is_grouped { 0 } else { request.raw().into() };
        let is_apart = target.is_apart(len);
        let mut split = QpSplit::new(len, target.qps);
        let Base { verbs, route, .. } = &*base;
        let shares = route.backlog.last;
        let nic = &verbs.nic;
        Some(verbs.qps().map(move |qp| {
            let length = next_split(verbs, &shares, &mut split, qp, len).length;
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
    /// The receive work requests that end a receive under way: one on each queue pair.
    pub fn work(&mut self, request: &Request) -> impl Iterator<Item = Work> {
        let base = &mut self.base;
        let [slots] = *base.reqs.at(request.raw()).value.slots.wrs();
        let nic = &base.verbs.nic;
        let qps = base.verbs.qps();
        qps.map(move |qp| Work { qpn: nic.qp_num(qp), wr_id: slots.wr_id, opcode: None, length: 0 })
    }
}
