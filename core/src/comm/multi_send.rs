//! Posting the work of matched messages (`net_ib.cc ncclIbMultiSend`).
//!
//! Each queue pair carries one share of every message, in multiples of 128 bytes so that NCCL's
//! LL and LL128 protocols work, and ends in one signaled WRITE_WITH_IMM: the receiver counts one
//! for each queue pair.

use core::sync::atomic::Ordering;

use crate::conn::Verbs;
use crate::fifo::{RECVS_MAX, Slot};
use crate::nic::{Memory, Nic, NicError, SendFlags, SendOpcode, SendWr, Sge};
use crate::wr_id;

use super::SendBuf;
use super::send::SIZES_ROW_BYTES;

/// A message whose receive is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Of its request.
    pub(super) index: u8,
    pub(super) size: u32,
    pub(super) addr: u64,
    pub(super) lkey: u32,
    pub(super) remote: u64,
    pub(super) rkey: u32,
}

/// What does not change from message to message.
pub(super) struct Target {
    pub(super) qps: u16,
    ar_threshold_bytes: u32,
    /// Where the receiver takes the sizes of a group.
    pub(super) sizes: Option<(u64, u32)>,
    /// Where our copy of them begins in the control memory.
    sizes_offset: u32,
}

impl Target {
    pub(super) fn new<N: Nic>(verbs: &Verbs<N>, sizes_offset: u32) -> Self {
        Target {
            qps: verbs.qps.len() as u16,
            ar_threshold_bytes: verbs.settings.ar_threshold_bytes,
            sizes: None,
            sizes_offset,
        }
    }
}

/// The share of one queue pair in a message.
struct Share {
    offset: u32,
    length: u32,
}

/// Share number `q` of `qps`.
fn share(size: u32, qps: u16, q: usize) -> Share {
    let chunk = u64::from(size).div_ceil(u64::from(qps)).next_multiple_of(128);
    let offset = (chunk * q as u64).min(u64::from(size));
    let length = chunk.min(u64::from(size) - offset);
    Share { offset: offset as u32, length: length as u32 }
}

impl Member {
    #[inline]
    pub(super) fn new(index: u8, size: u32, buf: &SendBuf, slot: &Slot) -> Self {
        let (addr, lkey) = (buf.addr, buf.lkey);
        Member { index, size, addr, lkey, remote: slot.addr, rkey: slot.rkey }
    }

    /// The WRITE of one share.
    fn write(&self, Share { offset, length }: Share) -> SendWr {
        let offset = u64::from(offset);
        SendWr {
            remote_addr: self.remote + offset,
            sge: Sge { addr: self.addr.wrapping_add(offset), length, lkey: self.lkey },
            rkey: self.rkey,
            ..SendWr::default()
        }
    }
}

/// One message of its own: its size is the immediate.
#[inline]
pub(super) fn post_one<N: Nic>(
    verbs: &Verbs<N>,
    target: &Target,
    member: &Member,
) -> Result<(), NicError> {
    let last = SendWr {
        wr_id: u64::from(member.index),
        imm_data: member.size,
        opcode: SendOpcode::RdmaWriteWithImm,
        flags: SendFlags::SIGNALED,
        ..SendWr::default()
    };
    if let ([qp], false) = (&verbs.qps[..], member.size > target.ar_threshold_bytes) {
        let sge = Sge { addr: member.addr, length: member.size, lkey: member.lkey };
        let wr = SendWr { remote_addr: member.remote, rkey: member.rkey, sge, ..last };
        return verbs.nic.post_send(qp, &[wr]);
    }
    post_split(verbs, target, member, last)
}

/// One message over several queue pairs, or with the immediate apart.
fn post_split<N: Nic>(
    verbs: &Verbs<N>,
    target: &Target,
    member: &Member,
    last: SendWr,
) -> Result<(), NicError> {
    // Under adaptive routing data may overtake: a large message goes as a plain WRITE, and an
    // empty WRITE_WITH_IMM follows once it is there.
    let apart = member.size > target.ar_threshold_bytes;
    for (q, qp) in verbs.qps.iter().enumerate() {
        let write = member.write(share(member.size, target.qps, q));
        if apart && write.sge.length > 0 {
            verbs.nic.post_send(qp, &[write, last])?;
        } else {
            let SendWr { remote_addr, sge, rkey, .. } = write;
            verbs.nic.post_send(qp, &[SendWr { remote_addr, sge, rkey, ..last }])?;
        }
    }
    Ok(())
}

/// A group: plain WRITEs, then a WRITE_WITH_IMM with a bit for each buffer, which on our own wire
/// carries the sizes.
pub(super) fn post_group<N: Nic>(
    verbs: &Verbs<N>,
    target: &Target,
    row: usize,
    members: &[Option<Member>],
) -> Result<(), NicError> {
    let mut wrs = heapless::Vec::<SendWr, { RECVS_MAX + 1 }>::new();
    let mut indices = [0; RECVS_MAX];
    let mut sizes = [0; RECVS_MAX];
    for (r, member) in members.iter().flatten().enumerate() {
        (indices[r], sizes[r]) = (member.index, member.size);
    }
    let mut last = SendWr {
        wr_id: wr_id::pack(&indices[..members.len()]),
        imm_data: wr_id::group_imm(&sizes[..members.len()]),
        opcode: SendOpcode::RdmaWriteWithImm,
        flags: SendFlags::SIGNALED,
        ..SendWr::default()
    };
    let sizes_write = target.sizes.map(|at| put_sizes(verbs, target, row, &sizes, at));
    for (q, qp) in verbs.qps.iter().enumerate() {
        wrs.clear();
        for member in members.iter().flatten() {
            let write = member.write(share(member.size, target.qps, q));
            // A share of no bytes needs no work request: the immediate counts for all.
            if write.sge.length > 0 && wrs.push(write).is_err() {
                break;
            }
        }
        // Sizes go once, before the immediate of the first queue pair completes.
        let (remote_addr, rkey, sge) = match sizes_write {
            Some(write) if q == 0 => write,
            _ => Default::default(),
        };
        last = SendWr { remote_addr, rkey, sge, ..last };
        let room = wrs.push(last);
        debug_assert!(room.is_ok(), "eight members and the immediate");
        verbs.nic.post_send(qp, &wrs)?;
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
    let row_offset = row * SIZES_ROW_BYTES;
    let offset = target.sizes_offset as usize + row_offset;
    let words = verbs.control.words().iter().skip(offset / 8);
    for (word, pair) in words.zip(sizes.chunks_exact(2)) {
        let value = u64::from(pair[0]) | u64::from(pair[1]) << 32;
        word.store(value.to_le(), Ordering::Release);
    }
    let addr = verbs.control_addr() + offset as u64;
    let sge = Sge { addr, length: SIZES_ROW_BYTES as u32, lkey: verbs.control_lkey() };
    (sizes_addr + row_offset as u64, rkey, sge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_cover_the_message_once_in_multiples_of_128(
            size in 0u32..=i32::MAX as u32, qps in 1u16..=128,
        ) {
            let mut at = 0;
            for q in 0..usize::from(qps) {
                let Share { offset, length } = share(size, qps, q);
                prop_assert_eq!(offset, at);
                prop_assert!(length % 128 == 0 || offset + length == size);
                at += length;
            }
            prop_assert_eq!(at, size);
        }

        #[test]
        fn shares_are_those_of_nccl(size in 1i64..1 << 31, qps in 1i64..=128) {
            let div_up = |x: i64, y: i64| (x + y - 1) / y;
            let mut offset = 0;
            for q in 0..qps {
                let chunk = div_up(div_up(size, qps), 128) * 128;
                let length = (size - offset).min(chunk).max(0);
                let ours = share(size as u32, qps as u16, q as usize);
                prop_assert_eq!(i64::from(ours.length), length);
                if length > 0 {
                    prop_assert_eq!(i64::from(ours.offset), offset);
                }
                offset += chunk;
            }
        }
    }
}
