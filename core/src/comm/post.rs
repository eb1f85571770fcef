//! Posting the work of matched messages (`net_ib.cc ncclIbMultiSend`).
//!
//! Each queue pair carries one share of every message, in multiples of 128 bytes so that NCCL's
//! LL and LL128 protocols work, and ends in one signaled WRITE_WITH_IMM: the receiver counts one
//! for each queue pair.

use core::sync::atomic::Ordering;

use super::SendBuf;
use super::send::SIZES_ROW_BYTES;
use crate::conn::Verbs;
use crate::fifo::{RECVS_MAX, Row};
use crate::math::QpSplit;
use crate::nic::{Memory, Nic, NicError, SendFlags, SendOpcode, SendWr, Sge};
use crate::wr_id;

/// Where messages go.
pub(super) struct Target {
    pub(super) qps: u32,
    /// Below which size a message of its own is one work request.
    pub(super) single_bytes_end: u32,
    ar_threshold_bytes: u32,
    /// Where the receiver takes the sizes of a group: address and key.
    pub(super) sizes: Option<(u64, u32)>,
    /// Where our copy of them begins in the control memory, in rows of sizes.
    sizes_row: usize,
}

impl Target {
    pub(super) fn new<N: Nic>(verbs: &Verbs<N>, sizes_row: usize) -> Self {
        let qps = u32::from(verbs.qp_count());
        let ar_threshold_bytes = verbs.settings.ar_threshold_bytes;
        let single_bytes_end = if qps == 1 { ar_threshold_bytes.saturating_add(1) } else { 0 };
        Target { qps, single_bytes_end, ar_threshold_bytes, sizes: None, sizes_row }
    }
}

/// A WRITE of no bytes.
const WRITE: SendWr = SendWr {
    wr_id: 0,
    remote_addr: 0,
    sge: Sge { addr: 0, length: 0, lkey: 0 },
    rkey: 0,
    imm_data: 0,
    opcode: SendOpcode::RdmaWrite,
    flags: SendFlags::empty(),
};

/// The work request that ends a message, or group, on each queue pair, of no bytes.
pub(super) const fn with_imm(wr_id: u64, imm_data: u32) -> SendWr {
    let (opcode, flags) = (SendOpcode::RdmaWriteWithImm, SendFlags::SIGNALED);
    SendWr { wr_id, imm_data, opcode, flags, ..WRITE }
}

/// One share of `whole`.
fn part(whole: &SendWr, split: &QpSplit, q: usize) -> SendWr {
    let part = split.part(q as u32);
    let offset = u64::from(part.offset);
    let addr = whole.sge.addr.wrapping_add(offset);
    let sge = Sge { addr, length: part.length, ..whole.sge };
    SendWr { remote_addr: whole.remote_addr.wrapping_add(offset), sge, ..*whole }
}

/// Posts a message of its own.
pub(super) fn post_single<N: Nic>(
    verbs: &Verbs<N>,
    target: &Target,
    whole: &SendWr,
) -> Result<(), NicError> {
    // Under adaptive routing data may overtake: a large message goes as a plain WRITE, and an
    // empty WRITE_WITH_IMM follows once it is there.
    let size = whole.sge.length;
    let is_apart = size > target.ar_threshold_bytes;
    let split = QpSplit::new(size, target.qps);
    for (q, qp) in verbs.qps().enumerate() {
        let part = part(whole, &split, q);
        if is_apart && part.sge.length > 0 {
            let write = SendWr { opcode: SendOpcode::RdmaWrite, flags: SendFlags::empty(), ..part };
            verbs.nic.post_send(qp, &[write, with_imm(whole.wr_id, size)])?;
        } else {
            verbs.nic.post_send(qp, &[part])?;
        }
    }
    Ok(())
}

/// The row at the head of the FIFO while its messages are matched, where it groups several.
pub(super) struct Group {
    pub(super) nreqs: usize,
    /// A bit for each buffer that has no message yet.
    pub(super) unmatched: u32,
    pub(super) tags: [u32; RECVS_MAX],
    /// Bytes that there is room for.
    pub(super) rooms: [u32; RECVS_MAX],
    /// Bytes to send.
    sizes: [u32; RECVS_MAX],
    pub(super) indices: [u8; RECVS_MAX],
    /// The WRITEs of the messages, whole, and behind them the WRITE_WITH_IMM that ends them.
    wrs: [SendWr; RECVS_MAX + 1],
}

impl Group {
    pub(super) const fn new() -> Self {
        let wrs = [WRITE; RECVS_MAX + 1];
        let zeros = [0; RECVS_MAX];
        let (tags, rooms, sizes, indices) = (zeros, zeros, zeros, [0; RECVS_MAX]);
        Group { nreqs: 0, unmatched: 0, tags, rooms, sizes, indices, wrs }
    }

    /// Takes a row of `nreqs` slots as a group; `false` where not all of them are there. The error
    /// is what a slot says that no working receiver writes, and its value.
    #[inline(never)]
    pub(super) fn load(
        &mut self,
        row: &Row<'_>,
        nreqs: usize,
        idx: u64,
    ) -> Result<bool, (&'static str, u64)> {
        if !(1..=RECVS_MAX).contains(&nreqs) {
            return Err(("a group of", nreqs as u64));
        }
        let all = wr_id::imm_full(nreqs);
        let Group { wrs, tags, rooms, .. } = self;
        wrs[self.nreqs % wrs.len()] = WRITE;
        for (r, ((wr, tag), bytes)) in wrs.iter_mut().zip(tags).zip(rooms).enumerate().take(nreqs) {
            let Some(slot) = row.load(r, idx) else { return Ok(false) };
            let room = slot.room();
            room.check()?;
            (wr.remote_addr, wr.rkey) = (room.addr, room.rkey);
            *tag = slot.nreqs_tag().1;
            *bytes = room.size as u32;
        }
        wrs[nreqs % wrs.len()] = with_imm(0, all);
        (self.nreqs, self.unmatched) = (nreqs, all);
        (self.sizes, self.indices) = ([0; RECVS_MAX], [0; RECVS_MAX]);
        Ok(true)
    }

    /// The first buffer that waits for a message of this tag.
    #[inline(always)]
    pub(super) fn find(&self, tag: u32) -> Option<usize> {
        let mut candidates = self.unmatched;
        while candidates != 0 {
            let r = candidates.trailing_zeros() as usize % RECVS_MAX;
            if self.tags[r] == tag {
                return Some(r);
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// Adds the message of buffer `r`; whether it was the last.
    #[inline(always)]
    pub(super) fn add(&mut self, r: usize, index: u8, buf: &SendBuf) -> bool {
        let r = r % RECVS_MAX;
        self.indices[r] = index;
        self.sizes[r] = buf.len;
        self.wrs[r].sge = Sge { addr: buf.addr, length: buf.len, lkey: buf.lkey };
        if buf.len == 0 {
            self.wrs[self.nreqs % self.wrs.len()].imm_data &= !wr_id::imm_bit(r);
        }
        self.unmatched &= !wr_id::imm_bit(r);
        self.unmatched == 0
    }

    /// Posts plain WRITEs, then a WRITE_WITH_IMM with a bit for each buffer, which on our own
    /// wire carries the sizes.
    #[inline(never)]
    pub(super) fn post<N: Nic>(
        &mut self,
        verbs: &Verbs<N>,
        target: &Target,
        row: usize,
    ) -> Result<(), NicError> {
        let wrs = &mut self.wrs[..=self.nreqs.min(RECVS_MAX)];
        let Some(last) = wrs.last_mut() else { return Ok(()) };
        last.wr_id = wr_id::pack(self.indices);
        if let Some(at) = target.sizes {
            (last.remote_addr, last.rkey, last.sge) =
                put_sizes(verbs, target, row, &self.sizes, at);
        }
        let is_full = last.imm_data == wr_id::imm_full(self.nreqs);
        if is_full && verbs.other_qps.is_empty() {
            verbs.nic.post_send(&verbs.qp, wrs)
        } else {
            post_parts(verbs, target, wrs)
        }
    }
}

/// Posts the shares of a group over several queue pairs, or without its empty messages: these
/// need no work of their own, as the immediate counts for all.
fn post_parts<N: Nic>(verbs: &Verbs<N>, target: &Target, wrs: &[SendWr]) -> Result<(), NicError> {
    let Some((last, writes)) = wrs.split_last() else { return Ok(()) };
    let mut last = *last;
    for (q, qp) in verbs.qps().enumerate() {
        let mut wrs = heapless::Vec::<SendWr, { RECVS_MAX + 1 }>::new();
        for write in writes {
            let part = part(write, &QpSplit::new(write.sge.length, target.qps), q);
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

/// Lays out the sizes of a group for the NIC to read; gives target address, key and local bytes.
fn put_sizes<N: Nic>(
    verbs: &Verbs<N>,
    target: &Target,
    row: usize,
    sizes: &[u32; RECVS_MAX],
    (sizes_addr, rkey): (u64, u32),
) -> (u64, u32, Sge) {
    let row_offset = (row * SIZES_ROW_BYTES) as u64;
    let (rows, _) = verbs.control.words().as_chunks::<{ SIZES_ROW_BYTES / 8 }>();
    if let Some(words) = rows.get(target.sizes_row + row) {
        for (word, [low, high]) in words.iter().zip(sizes.as_chunks().0) {
            let pair = u64::from(*low) | u64::from(*high) << 32;
            word.store(pair.to_le(), Ordering::Release);
        }
    }
    let addr = verbs.control_addr() + (target.sizes_row * SIZES_ROW_BYTES) as u64 + row_offset;
    let sge = Sge { addr, length: SIZES_ROW_BYTES as u32, lkey: verbs.control_lkey() };
    (sizes_addr.wrapping_add(row_offset), rkey, sge)
}
