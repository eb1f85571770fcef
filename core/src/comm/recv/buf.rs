//! Memory to receive into, and what the peer is told of it.

use crate::fifo::{LEN_MAX, Slot};

/// Memory to receive into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvBuf {
    /// First byte; not 0.
    pub addr: u64,
    /// Bytes, at most 2³¹ − 1.
    pub len: u32,
    /// Only a send with this tag goes here.
    pub tag: u32,
    /// Remote key of the region that holds it; not 0.
    pub rkey: u32,
}

impl RecvBuf {
    /// Whether there can be such a buffer.
    #[inline(always)]
    pub(super) fn is_sound(&self) -> bool {
        // One at a time, so that each is a branch that is not taken.
        if self.addr == 0 {
            return false;
        }
        if self.rkey == 0 {
            return false;
        }
        self.len <= LEN_MAX
    }
}

/// What the peer is told of a buffer.
#[inline(always)]
pub(super) fn slot(buf: &RecvBuf, nreqs: u32, idx: u64) -> Slot {
    let RecvBuf { addr, len, tag, rkey } = *buf;
    Slot { addr, size: len as i32, rkey, nreqs, tag, idx }
}
