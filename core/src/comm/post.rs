//! Posting the work of matched messages (`net_ib.cc ncclIbMultiSend`).
//!
//! Each queue pair carries one share of every message, in multiples of 128 bytes so that NCCL's
//! LL and LL128 protocols work, and ends in one signaled WRITE_WITH_IMM: the receiver counts one
//! for each queue pair.

use core::sync::atomic::Ordering;

use super::SendBuf;
use super::send::SIZES_ROW_BYTES;
use crate::conn::Verbs;
use crate::fifo::RECVS_MAX;
use crate::math::QpSplit;
use crate::nic::{Memory, Nic, NicError, SendFlags, SendOpcode, SendWr, Sge};
use crate::wr_id;

/// Where messages go, and the work request of a single one.
pub(super) struct Target {
    pub(super) qps: u16,
    /// Below which size a single message is one work request.
    pub(super) single_bytes_end: u32,
    ar_threshold_bytes: u32,
    /// Where the receiver takes the sizes of a group: address and key.
    pub(super) sizes: Option<(u64, u32)>,
    /// Where our copy of them begins in the control memory.
    sizes_offset: u32,
    single: SendWr,
}

impl Target {
    pub(super) fn new<N: Nic>(verbs: &Verbs<N>, sizes_offset: u32) -> Self {
        let qps = verbs.qp_count();
        let ar_threshold_bytes = verbs.settings.ar_threshold_bytes;
        let single_bytes_end = if qps == 1 { ar_threshold_bytes.saturating_add(1) } else { 0 };
        let single = with_imm(NOTHING, 0, 0);
        Target { qps, single_bytes_end, ar_threshold_bytes, sizes: None, sizes_offset, single }
    }

    /// Lays out the work request of a single message; its size is the immediate.
    #[inline(always)]
    pub(super) fn single(
        &mut self,
        buf: &SendBuf,
        size: u32,
        remote_addr: u64,
        rkey: u32,
        index: u8,
    ) -> &SendWr {
        let wr = &mut self.single;
        wr.wr_id = u64::from(index);
        wr.remote_addr = remote_addr;
        wr.rkey = rkey;
        wr.sge.addr = buf.addr;
        wr.sge.length = size;
        wr.sge.lkey = buf.lkey;
        wr.imm_data = size;
        wr
    }
}

/// The WRITE of a whole message.
pub(super) fn write(buf: &SendBuf, size: u32, remote_addr: u64, rkey: u32) -> SendWr {
    SendWr {
        wr_id: 0,
        remote_addr,
        sge: Sge { addr: buf.addr, length: size, lkey: buf.lkey },
        rkey,
        imm_data: 0,
        opcode: SendOpcode::RdmaWrite,
        flags: SendFlags::empty(),
    }
}

/// The work request that ends a message, or group, on each queue pair: `write` with immediate.
#[inline(always)]
fn with_imm(write: SendWr, wr_id: u64, imm_data: u32) -> SendWr {
    let (opcode, flags) = (SendOpcode::RdmaWriteWithImm, SendFlags::SIGNALED);
    SendWr { wr_id, imm_data, opcode, flags, ..write }
}

/// No bytes.
const NOTHING: SendWr = SendWr {
    wr_id: 0,
    remote_addr: 0,
    sge: Sge { addr: 0, length: 0, lkey: 0 },
    rkey: 0,
    imm_data: 0,
    opcode: SendOpcode::RdmaWrite,
    flags: SendFlags::empty(),
};

/// One share of `whole`.
fn part(whole: &SendWr, split: &QpSplit, q: usize) -> SendWr {
    let part = split.part(q as u32);
    let offset = u64::from(part.offset);
    let addr = whole.sge.addr.wrapping_add(offset);
    let sge = Sge { addr, length: part.length, ..whole.sge };
    SendWr { remote_addr: whole.remote_addr.wrapping_add(offset), sge, ..*whole }
}

/// Posts the single message that is laid out, over several queue pairs or with the immediate apart.
#[inline(never)]
pub(super) fn post_split<N: Nic>(verbs: &Verbs<N>, target: &Target) -> Result<(), NicError> {
    // Under adaptive routing data may overtake: a large message goes as a plain WRITE, and an
    // empty WRITE_WITH_IMM follows once it is there.
    let single = &target.single;
    let size = single.sge.length;
    let apart = size > target.ar_threshold_bytes;
    let split = QpSplit::new(size, u32::from(target.qps));
    for (q, qp) in verbs.qps().enumerate() {
        let part = part(single, &split, q);
        if apart && part.sge.length > 0 {
            let write = SendWr { opcode: SendOpcode::RdmaWrite, flags: SendFlags::empty(), ..part };
            verbs.nic.post_send(qp, &[write, with_imm(NOTHING, single.wr_id, size)])?;
        } else {
            verbs.nic.post_send(qp, &[part])?;
        }
    }
    Ok(())
}

/// The work of a group while its messages are matched.
pub(super) struct GroupWork {
    wr_id: u64,
    sizes: [u32; RECVS_MAX],
    /// The WRITEs of what is not empty, whole, and room for the request that ends them.
    writes: [SendWr; RECVS_MAX + 1],
    count: usize,
}

impl GroupWork {
    pub(super) const fn new() -> Self {
        let writes = [NOTHING; RECVS_MAX + 1];
        GroupWork { wr_id: 0, sizes: [0; RECVS_MAX], writes, count: 0 }
    }

    pub(super) fn clear(&mut self) {
        (self.wr_id, self.count) = (0, 0);
    }

    /// Adds the message of buffer `r`.
    #[inline]
    pub(super) fn add(&mut self, r: usize, index: u8, write: SendWr) {
        self.wr_id |= wr_id::pack_one(index, r);
        if let Some(size) = self.sizes.get_mut(r) {
            *size = write.sge.length;
        }
        // An empty message needs no work of its own: the immediate counts for all.
        if write.sge.length > 0
            && let Some(room) = self.writes.get_mut(self.count)
        {
            *room = write;
            self.count += 1;
        }
    }

    /// Posts plain WRITEs, then a WRITE_WITH_IMM with a bit for each buffer, which on our own
    /// wire carries the sizes.
    pub(super) fn post<N: Nic>(
        &mut self,
        verbs: &Verbs<N>,
        target: &Target,
        row: usize,
        nreqs: usize,
    ) -> Result<(), NicError> {
        let sizes = &self.sizes[..nreqs.min(RECVS_MAX)];
        let mut last = with_imm(NOTHING, self.wr_id, wr_id::group_imm(sizes));
        if let Some(at) = target.sizes {
            (last.remote_addr, last.rkey, last.sge) = put_sizes(verbs, target, row, sizes, at);
        }
        if verbs.other_qps.is_empty() {
            let count = self.count.min(RECVS_MAX);
            self.writes[count] = last;
            return verbs.nic.post_send(&verbs.qp, &self.writes[..=count]);
        }
        for (q, qp) in verbs.qps().enumerate() {
            let mut wrs = heapless::Vec::<SendWr, { RECVS_MAX + 1 }>::new();
            for write in self.writes.iter().take(self.count) {
                let split = QpSplit::new(write.sge.length, u32::from(target.qps));
                let part = part(write, &split, q);
                if part.sge.length > 0 && wrs.push(part).is_err() {
                    break;
                }
            }
            let room = wrs.push(last);
            debug_assert!(room.is_ok(), "eight messages and the immediate");
            verbs.nic.post_send(qp, &wrs)?;
            // The sizes go once, before the immediate of the first queue pair completes.
            (last.remote_addr, last.rkey, last.sge) = Default::default();
        }
        Ok(())
    }
}

/// Lays out the sizes of a group for the NIC to read; gives target address, key and local bytes.
fn put_sizes<N: Nic>(
    verbs: &Verbs<N>,
    target: &Target,
    row: usize,
    sizes: &[u32],
    (sizes_addr, rkey): (u64, u32),
) -> (u64, u32, Sge) {
    let row_offset = row * SIZES_ROW_BYTES;
    let offset = target.sizes_offset as usize + row_offset;
    let words = verbs.control.words().get(offset / 8..).unwrap_or_default();
    for (word, pair) in words.iter().zip(sizes.chunks(2)) {
        let high = pair.get(1).map_or(0, |size| u64::from(*size) << 32);
        word.store((u64::from(pair[0]) | high).to_le(), Ordering::Release);
    }
    let addr = verbs.control_addr() + offset as u64;
    let sge = Sge { addr, length: SIZES_ROW_BYTES as u32, lkey: verbs.control_lkey() };
    (sizes_addr + row_offset as u64, rkey, sge)
}
