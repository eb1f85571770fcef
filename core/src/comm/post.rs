//! Posting the work requests of matched messages (`net_ib.cc ncclIbMultiSend`).
//!
//! Each queue pair carries one share of every message. All shares but the last are multiples of 128
//! bytes, since NCCL's LL and LL128 protocols need this. On each queue pair a message or group ends
//! with one signaled WRITE_WITH_IMM, and the receiver counts one completion for each queue pair.

use super::rail_shares::{Backlog, Shares};
use super::row_keys::SlotKeys;
use super::sizes::{SIZES_ROW_BYTES, Sizes, SizesRow, sizes_offset};
use crate::conn::Verbs;
use crate::fifo::{LEN_MAX, RECVS_MAX};
use crate::math::{QP_SPLIT_ALIGN, QpPart, QpSplit};
use crate::nic::{
    Link, Listed, Memory, Nic, NicError, NumSge, PortAttr, SendFlags, SendOpcode, SendWr, Sge,
};

/// Rows of one buffer of at most this length take one queue pair, if the connection has several rails.
pub(super) const SMALL_BYTES_MAX: u32 = 4096;

/// The index of the only queue pair of a row, if the row takes just one. On a connection of several rails, small
/// rows take the queue pairs in turn. If one queue pair carries all data, every row takes this one. Both ends
/// decide so, by the row's first slot.
#[inline(always)]
pub(super) fn only_qp<N: Nic>(
    verbs: &Verbs<N>,
    row: u64,
    nreqs: usize,
    size: u32,
) -> Option<usize> {
    if !verbs.has_rails() {
        return None;
    }
    match verbs.rails.data_others as u64 {
        0 => Some(0),
        _ if nreqs != 1 || size > SMALL_BYTES_MAX => None,
        others => Some((row % (1 + others)) as usize),
    }
}

/// The number of queue pairs of a row.
#[inline(always)]
pub(super) fn qps_of<N: Nic>(verbs: &Verbs<N>, only: Option<usize>) -> u32 {
    if only.is_some() { 1 } else { u32::from(verbs.qp_count()) }
}

/// The key for the rail of a queue pair of buffer `r` of a row of `nreqs` buffers. `first` is the key in the
/// buffer's slot.
#[inline(always)]
fn rkey_for<N: Nic>(
    verbs: &Verbs<N>,
    qp: &N::Qp,
    row: u8,
    (nreqs, r): (usize, usize),
    first: u32,
) -> u32 {
    if !verbs.has_rails() {
        return first;
    }
    let keys = SlotKeys::of(verbs.control.words(), row.into(), nreqs, r);
    keys.map_or(first, |keys| keys.key(verbs.nic.rail_of(qp), first))
}

/// Divides the `bytes` of the row with index `row` among the rails, if there are several.
#[inline(always)]
fn divide<N: Nic>(verbs: &Verbs<N>, backlog: &mut Backlog, row: u8, bytes: u32) -> Shares {
    match verbs.has_rails() {
        false => Shares::NONE,
        true => backlog.divide(&verbs.rails.weights, row, bytes),
    }
}

/// The part of the next queue pair, `qp`, of a message of `len` bytes, if its rail has a share of `shares`.
#[inline(always)]
pub(super) fn next_split<N: Nic>(
    verbs: &Verbs<N>,
    shares: &Shares,
    split: &mut QpSplit,
    qp: &N::Qp,
    len: u32,
) -> QpPart {
    if N::RAILS_MAX == 1 {
        return split.next_part();
    }
    let (sum, part) = shares.of(verbs.nic.rail_of(qp));
    let all = sum * verbs.rails.qps as u64;
    if all == 0 {
        return split.next_part();
    }
    let share = u64::from(len) * part;
    split.next_part_of(share.div_ceil(all).next_multiple_of(u64::from(QP_SPLIT_ALIGN)))
}

/// Returns the length in bytes of the longest work request on a port: a multiple of [`QP_SPLIT_ALIGN`] if a message may
/// be longer.
#[inline(always)]
fn message_bytes_max(port: &PortAttr) -> u32 {
    match port.max_message_bytes {
        1..LEN_MAX => (port.max_message_bytes & !(QP_SPLIT_ALIGN - 1)).max(QP_SPLIT_ALIGN),
        _ => LEN_MAX,
    }
}

/// Returns the most work requests that carry the bytes of one message on a queue pair.
pub(crate) fn pieces_max(port: &PortAttr) -> u32 {
    if message_bytes_max(port) < LEN_MAX { 2 } else { 1 }
}

/// Returns the size in bytes of the largest message that fits whole into one work request.
fn whole_bytes_max<N: Nic>(verbs: &Verbs<N>) -> u64 {
    let first_bytes_max = match verbs.qp_count() {
        1 => u32::MAX,
        // One queue pair takes a small row.
        _ if verbs.has_rails() => SMALL_BYTES_MAX,
        _ => QP_SPLIT_ALIGN,
    };
    let bytes_max = first_bytes_max.min(message_bytes_max(&verbs.port));
    verbs.settings.ar_threshold_bytes.min(bytes_max).into()
}

/// The destination of a comm's messages.
pub(super) struct SendTarget {
    pub(super) qps: u32,
    /// Size in bytes of the largest message that is a single work request on each queue pair.
    ar_threshold_bytes: u32,
    /// Size in bytes of the largest message that fits whole into the work request of its first queue
    /// pair.
    pub(super) whole_bytes_max: u64,
    /// Size in bytes of the longest work request.
    pub(super) message_bytes_max: u32,
    /// Address and key of the memory where the receiver takes the sizes of a group.
    sizes: Option<(u64, u32)>,
    /// Offset of the sender's own copy of the sizes in the control memory.
    sizes_offset: usize,
}

impl SendTarget {
    pub(super) fn new<N: Nic>(verbs: &Verbs<N>, sizes: Option<(u64, u32)>) -> Self {
        SendTarget {
            qps: verbs.qp_count().into(),
            ar_threshold_bytes: verbs.settings.ar_threshold_bytes,
            whole_bytes_max: whole_bytes_max(verbs),
            message_bytes_max: message_bytes_max(&verbs.port),
            sizes,
            sizes_offset: sizes_offset(verbs.settings.depth().into()),
        }
    }

    /// Takes the peer's key for the sizes, and the number of queue pairs, of a new attempt on several rails.
    pub(super) fn move_to<N: Nic>(&mut self, verbs: &Verbs<N>, rkey: u32) {
        *self = SendTarget::new(verbs, self.sizes.map(|(addr, _)| (addr, rkey)));
    }

    /// Returns whether an ungrouped message of `len` bytes has a WRITE for its data, and an empty
    /// WRITE_WITH_IMM after it. Under adaptive routing packets may overtake each other, so a large
    /// message is sent this way.
    pub(super) const fn is_apart(&self, len: u32) -> bool {
        len > self.ar_threshold_bytes
    }

    /// Returns whether the work request that ends a group carries the sizes, as on Invar's own wire.
    pub(super) const fn has_sizes(&self) -> bool {
        self.sizes.is_some()
    }

    /// Makes `end`, the work request that ends a group, carry the group's sizes, if the wire has them.
    #[inline(always)]
    pub(super) fn put_sizes<N: Nic>(
        &self,
        verbs: &Verbs<N>,
        row: u8,
        sizes: &Sizes,
        end: &mut Listed<'_>,
    ) {
        let Some((sizes_addr, rkey)) = self.sizes else { return };
        let row = usize::from(row) * SIZES_ROW_BYTES;
        let offset = self.sizes_offset + row;
        if let Some(row) = SizesRow::at(verbs.control.words(), offset) {
            row.store(sizes);
        }
        let (addr, lkey) = (verbs.control_addr() + offset as u64, verbs.control_lkey());
        end.set_remote(sizes_addr.wrapping_add(row as u64), rkey);
        end.set_sge(Sge { addr, length: SIZES_ROW_BYTES as u32, lkey });
    }
}

/// A WRITE without bytes.
pub(super) const WRITE: SendWr = SendWr {
    wr_id: 0,
    next: Link::NULL,
    sg_list: Link::NULL,
    num_sge: NumSge::Zero,
    opcode: SendOpcode::RdmaWrite,
    flags: SendFlags::empty(),
    imm_data: 0,
    remote_addr: 0,
    rkey: 0,
    sge: Sge { addr: 0, length: 0, lkey: 0 },
};

/// The empty work request that ends a message or group on a queue pair. `token` names the request of
/// the message, or of the group's first message.
#[inline(always)]
pub(super) const fn with_imm(token: u32, imm_data: u32) -> SendWr {
    let (opcode, flags) = (SendOpcode::RdmaWriteWithImm, SendFlags::SIGNALED);
    SendWr { wr_id: token as u64, imm_data, opcode, flags, ..WRITE }
}

/// Posts WRITEs of the first bytes of `wr` until the port can carry the rest in one work request, and leaves the rest
/// in `wr`. The send queue has room for [`pieces_max`] work requests of each message.
#[inline(always)]
fn post_excess<N: Nic>(verbs: &Verbs<N>, qp: &N::Qp, wr: &mut SendWr) -> Result<(), NicError> {
    let max = message_bytes_max(verbs.port_of(verbs.nic.rail_of(qp)));
    while wr.sge.length > max {
        let (opcode, flags) = (SendOpcode::RdmaWrite, SendFlags::empty());
        let piece = SendWr { opcode, flags, sge: Sge { length: max, ..wr.sge }, ..*wr };
        verbs.nic.post_send(qp, &[piece])?;
        wr.sge.addr = wr.sge.addr.wrapping_add(max.into());
        wr.remote_addr = wr.remote_addr.wrapping_add(max.into());
        wr.sge.length -= max;
    }
    Ok(())
}

/// Posts the shares of an ungrouped message; `whole` is the work request of the whole message. The message
/// belongs to the row with index `row`. If it has an `only` queue pair, this one takes all of it.
#[inline(never)]
pub(super) fn post_single<N: Nic>(
    verbs: &Verbs<N>,
    backlog: &mut Backlog,
    target: &SendTarget,
    whole: &SendWr,
    row: u8,
    only: Option<usize>,
) -> Result<(), NicError> {
    let mut wr = *whole;
    let mut split = QpSplit::new(whole.sge.length, qps_of(verbs, only));
    let is_apart = target.is_apart(whole.sge.length);
    let (skipped, taken) = (only.unwrap_or(0), only.map_or(usize::MAX, |_| 1));
    let shares = match only {
        None => divide(verbs, backlog, row, whole.sge.length),
        Some(_) => Shares::NONE,
    };
    for qp in verbs.qps().skip(skipped).take(taken) {
        wr.sge.length = next_split(verbs, &shares, &mut split, qp, whole.sge.length).length;
        wr.rkey = rkey_for(verbs, qp, row, (1, 0), whole.rkey);
        wr.sge.lkey = verbs.lkey_for(qp, whole.sge.lkey);
        post_excess(verbs, qp, &mut wr)?;
        let length = wr.sge.length;
        if is_apart && length > 0 {
            let write = SendWr { opcode: SendOpcode::RdmaWrite, flags: SendFlags::empty(), ..wr };
            let end = with_imm(whole.wr_id as u32, whole.imm_data);
            verbs.nic.post_send(qp, &[write, end])?;
        } else {
            verbs.nic.post_send(qp, core::slice::from_ref(&wr))?;
        }
        wr.sge.addr = wr.sge.addr.wrapping_add(length.into());
        wr.remote_addr = wr.remote_addr.wrapping_add(length.into());
    }
    Ok(())
}

/// Posts a group in shares over several queue pairs, or without its empty messages. An empty message
/// needs no work request of its own, since the immediate counts for all. The group's WRITEs begin at
/// `start`; `order` has their buffers in the row with index `row`.
#[inline(never)]
pub(super) fn post_parts<N: Nic>(
    verbs: &Verbs<N>,
    backlog: &mut Backlog,
    [writes @ .., end]: &[SendWr; RECVS_MAX + 1],
    order: &[u8; RECVS_MAX],
    start: usize,
    row: u8,
) -> Result<(), NicError> {
    let (writes, mut end) = (writes.get(start..).unwrap_or_default(), *end);
    let order = order.get(start..).unwrap_or_default();
    let qps = u32::from(verbs.qp_count());
    let split = |write: &SendWr| (*write, QpSplit::new(write.sge.length, qps));
    let mut writes: heapless::Vec<_, RECVS_MAX> = writes.iter().map(split).collect();
    let bytes = writes.iter().map(|(write, _)| write.sge.length);
    let shares = divide(verbs, backlog, row, bytes.fold(0, u32::saturating_add));
    verbs.qps().try_for_each(|qp| {
        let parts = writes.iter_mut().zip(order).map(|((write, split), r)| {
            let of = (RECVS_MAX - start.min(RECVS_MAX), usize::from(*r));
            let part = next_split(verbs, &shares, split, qp, write.sge.length);
            let mut wr = next_part(write, part);
            wr.rkey = rkey_for(verbs, qp, row, of, write.rkey);
            wr.sge.lkey = verbs.lkey_for(qp, write.sge.lkey);
            wr
        });
        let parts = parts.filter(|part| part.sge.length > 0);
        let mut wrs: heapless::Vec<_, { RECVS_MAX + 1 }> = parts.chain([end]).collect();
        wrs.iter_mut().try_for_each(|wr| post_excess(verbs, qp, wr))?;
        // The sizes are sent once, before the immediate of the first queue pair completes.
        (end.remote_addr, end.rkey, end.sge) = Default::default();
        verbs.nic.post_send(qp, &wrs)
    })
}

/// The work request of a share of `whole`.
fn next_part(whole: &SendWr, part: QpPart) -> SendWr {
    let offset = u64::from(part.offset);
    let addr = whole.sge.addr.wrapping_add(offset);
    let sge = Sge { addr, length: part.length, ..whole.sge };
    SendWr { remote_addr: whole.remote_addr.wrapping_add(offset), sge, ..*whole }
}
