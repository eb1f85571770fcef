//! The state behind every [`NullNic`](super::NullNic): queue pairs, regions, completion queues.

use std::collections::VecDeque;

use invar_core::nic::{
    Access, Memory, NicError, QpCap, QpState, QpTransition, RecvWr, RtrAttr, RtsAttr, SendFlags,
    SendOpcode, SendWr, Sge, Verb, Wc, WcFlags, WcOpcode, WcStatus,
};
use invar_linux::memory::HostMemory;

const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
/// The lowest queue pair numbers are for management (IBTA §10.2.4).
const FIRST_QPN: usize = 0x10;
/// A key has the region's index above this tag, so that no key is 0.
const KEY_TAG: u32 = 0x5a;
const COPY_BYTES: usize = 4096;
const SMALL_BYTES: usize = 64;

/// The resources that all ports of one fabric share.
///
/// # Panics
/// Methods panic on the index of a destroyed object, and if a completion queue overruns.
#[derive(Default)]
pub struct Fabric {
    qps: Vec<Option<Qp>>,
    regions: Vec<Option<Region>>,
    cqs: Vec<Option<Cq>>,
    pds: usize,
}

struct Region {
    pd: usize,
    /// The address of the first byte in work requests.
    start: u64,
    memory: HostMemory,
    access: Access,
}

struct Cq {
    depth: usize,
    completions: VecDeque<Completion>,
}

struct Completion {
    wc: Wc,
    /// The index of the queue pair.
    qp: usize,
    /// The number of work requests that leave the send queue when this completion is polled.
    retires: u32,
}

struct Qp {
    pd: usize,
    cq: usize,
    cap: QpCap,
    state: QpState,
    access: Access,
    rtr: RtrAttr,
    rts: RtsAttr,
    receives: VecDeque<RecvWr>,
    /// The work requests in the send queue. One leaves the queue when its completion, or that of a
    /// later one, is polled.
    queued: u32,
    /// The number of these that were carried out since the last completion.
    silent: u32,
    /// The work requests that wait for a receive of the peer, each with its inline bytes.
    stalled: VecDeque<(SendWr, [u8; Qp::INLINE_BYTES])>,
}

impl Qp {
    const INLINE_BYTES: usize = 64;
}

impl Fabric {
    /// The number of a queue pair.
    pub fn qpn(index: usize) -> u32 {
        (index + FIRST_QPN) as u32
    }

    /// The key of a region, which serves as lkey and rkey.
    pub fn key(index: usize) -> u32 {
        (index as u32) << 8 | KEY_TAG
    }

    /// Performs `ibv_alloc_pd`. The index in the result names the object, as in all calls of the
    /// fabric.
    pub fn alloc_pd(&mut self) -> usize {
        self.pds += 1;
        self.pds
    }

    /// Performs `ibv_reg_mr_iova`.
    pub fn reg_mr(&mut self, pd: usize, start: u64, memory: HostMemory, access: Access) -> usize {
        self.regions.push(Some(Region { pd, start, memory, access }));
        self.regions.len() - 1
    }

    /// Performs `ibv_dereg_mr`.
    pub fn dereg_mr(&mut self, index: usize) {
        self.regions[index] = None;
    }

    /// Performs `ibv_create_cq`.
    pub fn create_cq(&mut self, depth: usize) -> usize {
        self.cqs.push(Some(Cq { depth, completions: VecDeque::with_capacity(depth) }));
        self.cqs.len() - 1
    }

    /// Performs `ibv_destroy_cq`.
    pub fn destroy_cq(&mut self, index: usize) {
        self.cqs[index] = None;
    }

    /// Performs `ibv_create_qp`.
    pub fn create_qp(&mut self, pd: usize, cq: usize, cap: QpCap) -> usize {
        self.qps.push(Some(Qp {
            pd,
            cq,
            cap,
            state: QpState::Reset,
            access: Access::empty(),
            rtr: RtrAttr::default(),
            rts: RtsAttr::default(),
            receives: VecDeque::with_capacity(cap.max_recv_wr as usize),
            queued: 0,
            silent: 0,
            stalled: VecDeque::new(),
        }));
        self.qps.len() - 1
    }

    /// Performs `ibv_destroy_qp`.
    pub fn destroy_qp(&mut self, index: usize) {
        self.qps[index] = None;
        // A peer that waits for a receive of this queue pair would wait forever otherwise.
        self.retry_stalled_towards(index);
    }

    /// Performs `ibv_modify_qp`.
    pub fn modify_qp(&mut self, index: usize, transition: &QpTransition) -> Result<(), NicError> {
        let qp = self.qps[index].as_mut().expect("a live handle");
        let from = qp.state;
        qp.state = match (from, transition) {
            (_, QpTransition::Reset) => {
                qp.receives.clear();
                qp.stalled.clear();
                (qp.queued, qp.silent) = (0, 0);
                QpState::Reset
            }
            (QpState::Reset, QpTransition::Init { access, .. }) => {
                qp.access = *access;
                QpState::Init
            }
            (QpState::Init, QpTransition::Rtr(rtr)) => {
                qp.rtr = *rtr;
                QpState::Rtr
            }
            (QpState::Rtr, QpTransition::Rts(rts)) => {
                qp.rts = *rts;
                QpState::Rts
            }
            (QpState::Rts, QpTransition::Sqd) => QpState::Sqd,
            (QpState::Sqd, QpTransition::Resume) => QpState::Rts,
            (_, QpTransition::Err) => {
                self.fail(index);
                return Ok(());
            }
            _ => {
                let cause = "the queue pair's state does not allow this move";
                return Err(NicError::new(Verb::ModifyQp, EINVAL, cause));
            }
        };
        if qp.state == QpState::Rts && from == QpState::Sqd {
            self.run_stalled(index);
        }
        Ok(())
    }

    /// Performs `ibv_post_recv`.
    pub fn post_recv(&mut self, index: usize, wr: &RecvWr) -> Result<(), NicError> {
        let qp = self.qps[index].as_mut().expect("a live handle");
        if qp.state == QpState::Reset {
            return Err(NicError::new(Verb::PostRecv, EINVAL, "queue pair in state RESET"));
        }
        if qp.receives.len() >= qp.cap.max_recv_wr as usize {
            return Err(NicError::new(Verb::PostRecv, ENOMEM, "receive queue full"));
        }
        qp.receives.push_back(*wr);
        if qp.state == QpState::Err {
            self.fail(index);
        } else if self.has_stalled_towards(index) {
            self.retry_stalled_towards(index);
        }
        Ok(())
    }

    /// Performs `ibv_post_send`. Carries out every request that need not wait, before it returns.
    pub fn post_send(&mut self, index: usize, wrs: &[SendWr]) -> Result<(), NicError> {
        for (i, wr) in wrs.iter().enumerate() {
            let qp = self.qps[index].as_mut().expect("a live handle");
            let refuse = |errno, cause| NicError {
                index: i as u8,
                ..NicError::new(Verb::PostSend, errno, cause)
            };
            if !matches!(qp.state, QpState::Rts | QpState::Sqd | QpState::Err) {
                return Err(refuse(EINVAL, "queue pair not in state RTS"));
            }
            let inline = wr.flags.contains(SendFlags::INLINE);
            if inline && wr.sge.length > qp.cap.max_inline_data.min(Qp::INLINE_BYTES as u32) {
                return Err(refuse(EINVAL, "more inline data than the queue pair takes"));
            }
            if qp.queued >= qp.cap.max_send_wr {
                return Err(refuse(ENOMEM, "send queue full"));
            }
            qp.queued += 1;
            if qp.state == QpState::Rts && qp.stalled.is_empty() && self.run(index, wr, None) {
                continue;
            }
            let mut bytes = [0; Qp::INLINE_BYTES];
            if inline {
                self.read_address(wr.sge.addr, &mut bytes[..wr.sge.length as usize]);
            }
            let qp = self.qps[index].as_mut().expect("a live handle");
            qp.stalled.push_back((*wr, bytes));
            if qp.state == QpState::Err {
                self.fail(index);
            }
        }
        Ok(())
    }

    /// Performs `ibv_poll_cq`.
    pub fn poll(&mut self, index: usize, wcs: &mut [Wc]) -> u32 {
        let cq = self.cqs[index].as_mut().expect("a live handle");
        let n = wcs.len().min(cq.completions.len());
        for (to, Completion { wc, qp, retires }) in wcs.iter_mut().zip(cq.completions.drain(..n)) {
            *to = wc;
            if let Some(qp) = &mut self.qps[qp] {
                // After a reset the send queue has fewer requests than this completion retires.
                qp.queued = qp.queued.saturating_sub(retires);
            }
        }
        n as u32
    }

    /// Carries out a work request. Returns `false` if the request must wait for a receive of the peer.
    fn run(&mut self, index: usize, wr: &SendWr, inline: Option<&[u8]>) -> bool {
        let qp = self.qps[index].as_ref().expect("a live handle");
        let (pd, rnr_retry) = (qp.pd, qp.rts.rnr_retry);
        let peer_index = (qp.rtr.dest_qp_num as usize).wrapping_sub(FIRST_QPN);
        let outcome = match self.qps.get(peer_index) {
            Some(Some(peer))
                if matches!(peer.state, QpState::Rtr | QpState::Rts | QpState::Sqd) =>
            {
                self.carry(pd, peer_index, wr, inline)
            }
            _ => Err(WcStatus::RETRY_EXC_ERR),
        };
        match outcome {
            Ok(None) if rnr_retry == 7 => return false,
            Ok(None) => self.end_in_error(index, wr, WcStatus::RNR_RETRY_EXC_ERR),
            Ok(Some(opcode)) if wr.flags.contains(SendFlags::SIGNALED) => {
                let byte_len = wr.sge.length;
                let wc = Wc { wr_id: wr.wr_id, opcode, byte_len, ..Wc::default() };
                self.complete_send(index, wc);
            }
            Ok(Some(_)) => {
                if let Some(qp) = &mut self.qps[index] {
                    qp.silent += 1;
                }
            }
            Err(status) => self.end_in_error(index, wr, status),
        }
        true
    }

    /// Moves the bytes of a work request. Returns `Ok(None)` if a receive is missing.
    fn carry(
        &mut self,
        pd: usize,
        peer: usize,
        wr: &SendWr,
        inline: Option<&[u8]>,
    ) -> Result<Option<WcOpcode>, WcStatus> {
        let len = wr.sge.length;
        let needs_receive = !matches!(wr.opcode, SendOpcode::RdmaWrite | SendOpcode::RdmaRead);
        let at = self.qps[peer].as_ref().expect("checked by the caller");
        if needs_receive && at.receives.is_empty() {
            return Ok(None);
        }
        let (peer_pd, peer_access) = (at.pd, at.access);
        let remote = |need: Access| {
            let granted = peer_access.contains(need);
            let found = self.region(peer_pd, wr.rkey, wr.remote_addr, len, need);
            if len == 0 || granted {
                found.ok_or(WcStatus::REM_ACCESS_ERR)
            } else {
                Err(WcStatus::REM_ACCESS_ERR)
            }
        };
        let local = |need: Access| {
            let found = self.region(pd, wr.sge.lkey, wr.sge.addr, len, need);
            found.ok_or(WcStatus::LOC_PROT_ERR)
        };
        let is_inline = wr.flags.contains(SendFlags::INLINE);
        let source = |fabric: &Fabric, to: &HostMemory, offset: usize| match inline {
            Some(bytes) => to.write_at(offset, &bytes[..len as usize]).expect("checked"),
            None if is_inline => {
                let mut bytes = [0; Qp::INLINE_BYTES];
                fabric.read_address(wr.sge.addr, &mut bytes[..len as usize]);
                to.write_at(offset, &bytes[..len as usize]).expect("checked");
            }
            None => {
                if let Some((from, at)) =
                    fabric.region(pd, wr.sge.lkey, wr.sge.addr, len, Access::empty())
                {
                    copy(from, at, to, offset, len as usize);
                }
            }
        };
        if wr.opcode != SendOpcode::RdmaRead && len > 0 && !is_inline {
            local(Access::empty())?;
        }
        match wr.opcode {
            SendOpcode::RdmaWrite | SendOpcode::RdmaWriteWithImm => {
                if len > 0 {
                    let (to, offset) = remote(Access::REMOTE_WRITE)?;
                    source(self, to, offset);
                }
                if needs_receive {
                    self.receive(peer, wr, WcOpcode::RECV_RDMA_WITH_IMM);
                }
                Ok(Some(WcOpcode::RDMA_WRITE))
            }
            SendOpcode::RdmaRead => {
                if len > 0 {
                    let (from, offset) = remote(Access::REMOTE_READ)?;
                    let (to, at) = local(Access::LOCAL_WRITE)?;
                    copy(from, offset, to, at, len as usize);
                }
                Ok(Some(WcOpcode::RDMA_READ))
            }
            SendOpcode::Send | SendOpcode::SendWithImm | SendOpcode::SendWithInv => {
                let Sge { addr, length, lkey } = at.receives.front().expect("checked above").sge;
                if len > length {
                    let status = WcStatus::LOC_LEN_ERR;
                    let wr_id = self.take_receive(peer);
                    self.complete(peer, Wc { wr_id, status, ..Wc::default() });
                    self.fail(peer);
                    return Err(WcStatus::REM_OP_ERR);
                }
                if len > 0 {
                    let found = self.region(peer_pd, lkey, addr, len, Access::LOCAL_WRITE);
                    let (to, offset) = found.ok_or(WcStatus::REM_OP_ERR)?;
                    source(self, to, offset);
                }
                self.receive(peer, wr, WcOpcode::RECV);
                Ok(Some(WcOpcode::SEND))
            }
        }
    }

    /// Completes the oldest receive.
    fn receive(&mut self, peer: usize, wr: &SendWr, opcode: WcOpcode) {
        let with_imm = matches!(wr.opcode, SendOpcode::RdmaWriteWithImm | SendOpcode::SendWithImm);
        let (flags, imm_data) =
            if with_imm { (WcFlags::WITH_IMM, wr.imm_data) } else { Default::default() };
        let wr_id = self.take_receive(peer);
        let byte_len = wr.sge.length;
        let wc = Wc { wr_id, opcode, byte_len, flags, imm_data, ..Wc::default() };
        self.complete(peer, wc);
    }

    fn take_receive(&mut self, index: usize) -> u64 {
        let qp = self.qps[index].as_mut().expect("a live peer");
        qp.receives.pop_front().expect("checked by the caller").wr_id
    }

    /// Completes a receive.
    fn complete(&mut self, index: usize, wc: Wc) {
        self.push(index, wc, 0);
    }

    /// Completes a work request of the send queue, and the earlier ones that completed silently.
    fn complete_send(&mut self, index: usize, wc: Wc) {
        let silent = self.qps[index].as_mut().map_or(0, |qp| std::mem::take(&mut qp.silent));
        self.push(index, wc, silent + 1);
    }

    fn push(&mut self, index: usize, wc: Wc, retires: u32) {
        let Some(qp) = &self.qps[index] else { return };
        let Some(cq) = self.cqs.get_mut(qp.cq).and_then(Option::as_mut) else { return };
        assert!(cq.completions.len() < cq.depth, "completion queue overrun");
        let wc = Wc { qp_num: Fabric::qpn(index), ..wc };
        cq.completions.push_back(Completion { wc, qp: index, retires });
    }

    fn end_in_error(&mut self, index: usize, wr: &SendWr, status: WcStatus) {
        self.complete_send(index, Wc { wr_id: wr.wr_id, status, ..Wc::default() });
        self.fail(index);
    }

    /// Moves a queue pair to ERR. Every posted request completes as flushed.
    fn fail(&mut self, index: usize) {
        let Some(qp) = &mut self.qps[index] else { return };
        qp.state = QpState::Err;
        let (sends, receives) = (std::mem::take(&mut qp.stalled), std::mem::take(&mut qp.receives));
        let flushed = |wr_id| Wc { wr_id, status: WcStatus::WR_FLUSH_ERR, ..Wc::default() };
        for (wr, _) in sends {
            self.complete_send(index, flushed(wr.wr_id));
        }
        for wr in receives {
            self.complete(index, flushed(wr.wr_id));
        }
    }

    fn has_stalled_towards(&self, index: usize) -> bool {
        let qp = self.qps[index].as_ref().expect("a live handle");
        let peer = (qp.rtr.dest_qp_num as usize).wrapping_sub(FIRST_QPN);
        matches!(self.qps.get(peer), Some(Some(peer)) if !peer.stalled.is_empty())
    }

    fn retry_stalled_towards(&mut self, index: usize) {
        for from in 0..self.qps.len() {
            let qpn = Fabric::qpn(index);
            let waits = |qp: &Qp| qp.rtr.dest_qp_num == qpn && !qp.stalled.is_empty();
            if self.qps[from].as_ref().is_some_and(waits) {
                self.run_stalled(from);
            }
        }
    }

    fn run_stalled(&mut self, index: usize) {
        while let Some(qp) = &mut self.qps[index]
            && qp.state == QpState::Rts
            && let Some((wr, bytes)) = qp.stalled.pop_front()
        {
            let inline = wr.flags.contains(SendFlags::INLINE).then_some(&bytes[..]);
            if !self.run(index, &wr, inline) {
                if let Some(qp) = &mut self.qps[index] {
                    qp.stalled.push_front((wr, bytes));
                }
                return;
            }
        }
    }

    /// The memory that a key names, and the offset of the address in it.
    fn region(
        &self,
        pd: usize,
        key: u32,
        addr: u64,
        len: u32,
        need: Access,
    ) -> Option<(&HostMemory, usize)> {
        let region = self.regions.get((key >> 8) as usize)?.as_ref()?;
        let offset = addr.checked_sub(region.start)? as usize;
        let inside = offset.checked_add(len as usize)? <= region.memory.len();
        let ok = inside && key & 0xff == KEY_TAG && region.pd == pd && region.access.contains(need);
        ok.then_some((&region.memory, offset))
    }

    /// Reads inline bytes. They need no key, and lie in some registered memory of this fabric.
    fn read_address(&self, addr: u64, to: &mut [u8]) {
        for region in self.regions.iter().flatten() {
            if let Some(offset) = addr.checked_sub(region.memory.addr())
                && region.memory.read_at(offset as usize, to).is_ok()
            {
                return;
            }
        }
    }
}

fn copy(from: &HostMemory, at: usize, to: &HostMemory, offset: usize, len: usize) {
    if len <= SMALL_BYTES {
        copy_by::<SMALL_BYTES>(from, at, to, offset, len);
    } else {
        copy_by::<COPY_BYTES>(from, at, to, offset, len);
    }
}

fn copy_by<const N: usize>(
    from: &HostMemory,
    mut at: usize,
    to: &HostMemory,
    mut offset: usize,
    len: usize,
) {
    let mut left = len;
    let mut buffer = [0; N];
    while left > 0 {
        let n = left.min(N);
        from.read_at(at, &mut buffer[..n]).expect("checked by the caller");
        to.write_at(offset, &buffer[..n]).expect("checked by the caller");
        (at, offset, left) = (at + n, offset + n, left - n);
    }
}
