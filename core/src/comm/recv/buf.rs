//! Memory to receive into, and its FIFO slot.

use core::hint::cold_path;

use crate::fifo::{FifoSlot, LEN_MAX};
use crate::nic::{SendList, SendWr, Sge};

/// Memory to receive into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvBuf {
    /// Address of the first byte; not 0.
    pub addr: u64,
    /// Length in bytes, at most 2³¹ − 1.
    pub len: u32,
    /// Tag of the message: only a send with this tag goes into this buffer.
    pub tag: u32,
    /// Remote key of the region that contains the memory; not 0.
    pub rkey: u32,
}

impl RecvBuf {
    /// Returns whether address, key and length are allowed.
    #[inline(always)]
    pub(super) fn is_sound(&self) -> bool {
        // Each check is a branch of its own, which a valid buffer never takes.
        if self.addr == 0 {
            cold_path();
            return false;
        }
        if self.rkey == 0 {
            cold_path();
            return false;
        }
        self.len <= LEN_MAX
    }
}

/// The slot that describes a buffer to the peer.
#[inline(always)]
pub(super) fn slot(buf: &RecvBuf, nreqs: u32, idx: u64) -> FifoSlot {
    let RecvBuf { addr, len, tag, rkey } = *buf;
    FifoSlot { addr, size: len as i32, rkey, nreqs, tag, idx }
}

/// Makes the write of a row write this number of bytes, with this `wr_id`.
#[inline(always)]
pub(super) fn set_slots(slots: &mut SendList<1>, wr_id: u64, length: u32) {
    let [SendWr { sge, .. }] = *slots.wrs();
    let mut wr = slots.wr(0);
    wr.set_id(wr_id);
    wr.set_sge(Sge { length, ..sge });
}
