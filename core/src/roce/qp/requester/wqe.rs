//! Work requests on the send queue, and how they are cut into packets.

use crate::nic::{Access, Atomic, LocalOp, SendFlags, SendOpcode, SendWr, Sge, WcOpcode, WcStatus};
use crate::roce::qp::{Destination, Env, Path, Payload, QpSide, Transmit};
use crate::roce::{AtomicEth, Deth, Foreign, Ieth, ImmDt, Opcode, Psn, Reth};

/// Maximum length of one READ request in packets. A longer READ becomes several requests, cut at
/// multiples of this number, so that the window bounds the peer's responses. A repeated request stays
/// within one such piece: rxe answers a duplicate only if it is part of the original.
const READ_REQUEST_PACKETS: u32 = 32;

/// A work request with this bit in its Q_Key sends the Q_Key of its own queue pair (IBTA §10.2.5).
const QKEY_IS_OWN: u32 = 1 << 31;

/// The parts of a work request that the engine needs.
#[derive(Clone, Copy, Default)]
pub(in crate::roce::qp) struct QueuedWr {
    pub(in crate::roce::qp) wr_id: u64,
    pub(super) remote_addr: u64,
    pub(in crate::roce::qp) sge: Sge,
    pub(super) rkey: u32,
    pub(super) imm_data: u32,
    pub(in crate::roce::qp) opcode: SendOpcode,
    pub(in crate::roce::qp) flags: SendFlags,
}

impl From<&SendWr> for QueuedWr {
    fn from(wr: &SendWr) -> Self {
        let SendWr { wr_id, remote_addr, sge, rkey, imm_data, opcode, flags, .. } = *wr;
        QueuedWr { wr_id, remote_addr, sge, rkey, imm_data, opcode, flags }
    }
}

#[derive(Clone, Copy, Default)]
pub(in crate::roce::qp) struct SendWqe {
    pub(in crate::roce::qp) wr: QueuedWr,
    /// PSN of the first packet, once that packet was sent.
    pub(super) first: Psn,
    /// Number of PSNs that the work request takes, or 0 until it starts.
    pub(super) packets: u32,
    /// A local error that ends this work request when its turn to complete comes.
    pub(super) status: WcStatus,
    /// The adapter keeps a list of buffers for this work request; `wr.sge` has only their length.
    pub(super) has_list: bool,
    /// The request is an atomic, whose operands the adapter keeps. For the rest it is like a READ.
    pub(super) atomic: Option<AtomicKind>,
    /// The request sends nothing. The adapter keeps the operation.
    pub(in crate::roce::qp) local: Option<LocalOp>,
}

#[derive(Clone, Copy)]
pub(super) enum AtomicKind {
    CompareSwap,
    FetchAdd,
}

impl SendWqe {
    /// A work request that has not started.
    pub(in crate::roce::qp) fn new(wr: &SendWr, has_list: bool) -> Self {
        SendWqe { wr: wr.into(), has_list, ..SendWqe::default() }
    }

    /// An atomic that has not started.
    pub(in crate::roce::qp) fn atomic(wr: &SendWr, atomic: Atomic) -> Self {
        let kind = match atomic {
            Atomic::CompareSwap { .. } => AtomicKind::CompareSwap,
            Atomic::FetchAdd { .. } => AtomicKind::FetchAdd,
        };
        let sge = Sge { length: Atomic::BYTES, ..wr.sge };
        let wr = SendWr { opcode: SendOpcode::RdmaRead, sge, ..*wr };
        SendWqe { atomic: Some(kind), ..SendWqe::new(&wr, false) }
    }

    /// An operation that sends nothing.
    pub(in crate::roce::qp) fn local(wr_id: u64, flags: SendFlags, operation: LocalOp) -> Self {
        let wr = QueuedWr { wr_id, flags, ..QueuedWr::default() };
        SendWqe { wr, local: Some(operation), ..SendWqe::default() }
    }

    /// Returns whether the request is a READ or an atomic: a response with data ends it.
    pub(super) fn is_read(&self) -> bool {
        self.wr.opcode == SendOpcode::RdmaRead
    }

    fn is_write(&self) -> bool {
        use SendOpcode::{RdmaWrite, RdmaWriteWithImm};
        matches!(self.wr.opcode, RdmaWrite | RdmaWriteWithImm)
    }

    pub(super) fn is_marked(&self, path: &Path) -> bool {
        path.adaptive && self.is_write()
    }

    pub(super) fn wc_opcode(&self) -> WcOpcode {
        match self.atomic {
            Some(AtomicKind::CompareSwap) => return WcOpcode::COMP_SWAP,
            Some(AtomicKind::FetchAdd) => return WcOpcode::FETCH_ADD,
            None => {}
        }
        match self.local {
            Some(LocalOp::BindWindow) => return WcOpcode::BIND_MW,
            Some(LocalOp::Invalidate) => return WcOpcode::LOCAL_INV,
            None => {}
        }
        match self.wr.opcode {
            SendOpcode::RdmaWrite | SendOpcode::RdmaWriteWithImm => WcOpcode::RDMA_WRITE,
            SendOpcode::Send | SendOpcode::SendWithImm | SendOpcode::SendWithInv => WcOpcode::SEND,
            SendOpcode::RdmaRead => WcOpcode::RDMA_READ,
        }
    }

    /// Number of packets that the work request takes.
    pub(super) fn packets_of(&self, path: &Path) -> u32 {
        let len = self.wr.sge.length;
        if len <= path.mtu_bytes { 1 } else { path.packets(len + self.first_less(path)) }
    }

    /// Number of payload bytes by which the first of several packets is shorter.
    fn first_less(&self, path: &Path) -> u32 {
        if self.is_write() && !path.adaptive { path.first_less } else { 0 }
    }

    /// Offset and length of the payload of packet number `packet`.
    fn extent(&self, packet: u32, path: &Path) -> (u32, u32) {
        let less = if self.packets > 1 { self.first_less(path) } else { 0 };
        let (offset, most) = match packet {
            0 => (0, path.mtu_bytes - less),
            _ => (packet * path.mtu_bytes - less, path.mtu_bytes),
        };
        (offset, most.min(self.wr.sge.length - offset))
    }

    /// One past the last packet of the READ request that asks for `packet`.
    pub(super) fn read_request_end(&self, packet: u32) -> u32 {
        (packet - packet % READ_REQUEST_PACKETS + READ_REQUEST_PACKETS).min(self.packets)
    }

    /// Number of packets from `packet` on that differ only in the fields that [`Transmit::advance`]
    /// changes.
    pub(super) fn alike(&self, packet: u32, path: &Path) -> u32 {
        let begins = packet == 0 && !self.is_marked(path);
        if begins || self.is_read() { 1 } else { (self.packets - packet - 1).max(1) }
    }

    /// Builds packet number `packet` with the other `run - 1` packets of its run. `None` means that
    /// its memory does not exist.
    pub(super) fn packet(
        &self,
        slot: u16,
        packet: u32,
        run: u32,
        psn: Psn,
        path: &Path,
        env: &mut impl Env,
    ) -> Option<Transmit> {
        let wr = &self.wr;
        let (offset, len) = self.extent(packet, path);
        let reth = |offset: u32, dma_len| Reth {
            va: wr.remote_addr.wrapping_add(u64::from(offset)),
            rkey: wr.rkey,
            dma_len,
        };
        if self.atomic.is_some() {
            return self.atomic_packet(env.atomic(slot)?, psn, path);
        }
        if self.is_read() {
            let wanted = (self.read_request_end(packet) - packet) * path.mtu_bytes;
            let mut transmit = path.transmit(Opcode::READ_REQUEST, psn, Payload::None);
            transmit.headers.reth = Some(reth(offset, wanted.min(wr.sge.length - offset)));
            transmit.headers.bth.ack_req = true;
            return Some(transmit);
        }
        let marked = self.is_marked(path);
        let first = packet == 0 || marked;
        let last = packet + 1 == self.packets;
        let opcode = opcode(wr.opcode, first, last || marked, last);
        let payload = self.payload(slot, offset, (len, run), env)?;
        let mut transmit = path.transmit(opcode, psn, payload);
        transmit.following = run - 1;
        let headers = &mut transmit.headers;
        headers.bth.adaptive = marked;
        headers.bth.ack_req = last;
        headers.bth.solicited = last && wr.flags.contains(SendFlags::SOLICITED);
        headers.imm = with_imm(opcode).then(|| ImmDt(wr.imm_data.to_ne_bytes()));
        headers.reth = match wr.opcode {
            SendOpcode::Send | SendOpcode::SendWithImm => None,
            SendOpcode::SendWithInv => {
                let key = Ieth(wr.imm_data);
                headers.foreign = last.then_some(Foreign::Invalidate(key));
                None
            }
            _ if !first => None,
            _ if !marked || with_imm(opcode) => Some(reth(0, wr.sge.length)),
            _ => Some(reth(offset, len)),
        };
        Some(transmit)
    }

    /// Builds the packet of a datagram. `None` means that its memory or its receiver does not exist.
    pub(super) fn datagram(
        &self,
        slot: u16,
        psn: Psn,
        path: &Path,
        env: &mut impl Env,
    ) -> Option<Transmit> {
        let Destination { qp_num, qkey } = env.destination(slot)?;
        let with_imm = self.wr.opcode == SendOpcode::SendWithImm;
        let opcode = if with_imm { Opcode::UD_SEND_ONLY_IMM } else { Opcode::UD_SEND_ONLY };
        let payload = self.payload(slot, 0, (self.wr.sge.length, 1), env)?;
        let mut transmit = path.transmit(opcode, psn, payload);
        transmit.slot = slot;
        let headers = &mut transmit.headers;
        headers.bth.dest_qp = qp_num;
        headers.bth.solicited = self.wr.flags.contains(SendFlags::SOLICITED);
        headers.imm = with_imm.then(|| ImmDt(self.wr.imm_data.to_ne_bytes()));
        let qkey = if qkey & QKEY_IS_OWN != 0 { path.qkey } else { qkey };
        headers.foreign = Some(Foreign::Datagram(Deth { qkey, resv8: 0, src_qp: path.qpn }));
        Some(transmit)
    }

    fn atomic_packet(&self, atomic: Atomic, psn: Psn, path: &Path) -> Option<Transmit> {
        let (opcode, swap_or_add, compare) = match atomic {
            Atomic::CompareSwap { compare, swap } => (Opcode::COMPARE_SWAP, swap, compare),
            Atomic::FetchAdd { add } => (Opcode::FETCH_ADD, add, 0),
        };
        let mut transmit = path.transmit(opcode, psn, Payload::None);
        let QueuedWr { remote_addr: va, rkey, .. } = self.wr;
        transmit.headers.foreign =
            Some(Foreign::Atomic(AtomicEth { va, rkey, swap_or_add, compare }));
        transmit.headers.bth.ack_req = true;
        Some(transmit)
    }

    /// Locates the first of `run` payloads of `len` bytes each.
    fn payload(
        &self,
        slot: u16,
        offset: u32,
        (len, run): (u32, u32),
        env: &mut impl Env,
    ) -> Option<Payload> {
        let Sge { addr, lkey, .. } = self.wr.sge;
        if len == 0 {
            return Some(Payload::None);
        }
        if self.wr.flags.contains(SendFlags::INLINE) {
            return Some(Payload::Inline { slot, offset, len });
        }
        if self.has_list {
            return env.gather(slot, offset, len, run).ok();
        }
        let addr = addr.wrapping_add(u64::from(offset));
        let region = env.resolve(lkey, addr, run * len, Access::empty(), QpSide::Local).ok()?;
        Some(Payload::Memory { region, len })
    }
}

fn with_imm(opcode: Opcode) -> bool {
    use crate::roce::Extensions;
    opcode.extensions().contains(Extensions::IMMDT)
}

/// Opcode of a packet that begins or ends its message on the wire. `last` says whether the packet is
/// the last of its work request and so carries the immediate.
fn opcode(operation: SendOpcode, begins: bool, ends: bool, last: bool) -> Opcode {
    use SendOpcode::{RdmaRead, RdmaWrite, RdmaWriteWithImm, Send, SendWithImm, SendWithInv};
    match (operation, begins, ends) {
        (RdmaRead, ..) => Opcode::READ_REQUEST,
        (Send | SendWithImm | SendWithInv, true, false) => Opcode::SEND_FIRST,
        (Send | SendWithImm | SendWithInv, false, false) => Opcode::SEND_MIDDLE,
        (Send, false, true) => Opcode::SEND_LAST,
        (Send, true, true) => Opcode::SEND_ONLY,
        (SendWithImm, false, true) => Opcode::SEND_LAST_IMM,
        (SendWithImm, true, true) => Opcode::SEND_ONLY_IMM,
        (SendWithInv, false, true) => Opcode::SEND_LAST_INV,
        (SendWithInv, true, true) => Opcode::SEND_ONLY_INV,
        (RdmaWrite | RdmaWriteWithImm, true, false) => Opcode::WRITE_FIRST,
        (RdmaWrite | RdmaWriteWithImm, false, false) => Opcode::WRITE_MIDDLE,
        (RdmaWriteWithImm, false, true) if last => Opcode::WRITE_LAST_IMM,
        (RdmaWriteWithImm, true, true) if last => Opcode::WRITE_ONLY_IMM,
        (RdmaWrite | RdmaWriteWithImm, false, true) => Opcode::WRITE_LAST,
        (RdmaWrite | RdmaWriteWithImm, true, true) => Opcode::WRITE_ONLY,
    }
}
