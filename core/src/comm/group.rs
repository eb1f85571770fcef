//! A row of the FIFO that groups several receives, while its messages are matched.
//!
//! The immediate of a group has one bit for each buffer that got data (`net_ib.cc
//! ncclIbMultiSend`).

use core::hint::cold_path;

use super::SendBuf;
use super::post::{Target, WRITE, post_parts, with_imm};
use super::route::GROUP;
use super::sizes::Sizes;
use crate::conn::Verbs;
use crate::fifo::{RECVS_MAX, Row};
use crate::nic::{Nic, NicError, SendWr, Sge};
use crate::request::Request;

pub(super) struct Group {
    /// The request of its first message.
    first: Request,
    /// A bit for each buffer.
    all: u32,
    /// A bit for each buffer that has no message yet.
    unmatched: u32,
    /// A bit for each buffer, but for those whose message is empty.
    imm_data: u32,
    tags: [u32; RECVS_MAX],
    /// Bytes that there is room for; of a message that is matched, its bytes.
    sizes: Sizes,
    /// The WRITEs of the messages, whole; and behind them that which ends the group.
    wrs: [SendWr; RECVS_MAX + 1],
    /// Messages, and where that which ends them is.
    nreqs: usize,
}

/// A bit for each of `nreqs` buffers, 1 to 8.
const fn all(nreqs: usize) -> u32 {
    (2 << ((nreqs - 1) % RECVS_MAX)) - 1
}

impl Group {
    pub(super) const fn new() -> Self {
        let mut wrs = [WRITE; RECVS_MAX + 1];
        wrs[0] = with_imm(0, 0);
        Group {
            first: Request::from_raw(0),
            all: 0,
            unmatched: 0,
            imm_data: 0,
            tags: [0; RECVS_MAX],
            sizes: [0; RECVS_MAX],
            wrs,
            nreqs: 0,
        }
    }

    /// Takes a row of `nreqs` slots as a group; `false` where not all of them are there. The error
    /// is what a slot says that no working receiver writes, and its value.
    #[inline(always)]
    pub(super) fn load(
        &mut self,
        row: &Row<'_>,
        nreqs: u32,
        idx: u64,
    ) -> Result<bool, (&'static str, u64)> {
        // One of its own ends by size, not by a group's bits.
        if !(2..=RECVS_MAX as u32).contains(&nreqs) {
            return Err(("a group of", nreqs.into()));
        }
        let nreqs = nreqs as usize;
        self.sizes = [0; RECVS_MAX];
        if self.nreqs != nreqs {
            self.wrs.swap(self.nreqs, nreqs);
            self.nreqs = nreqs;
        }
        let places = self.wrs.iter_mut().zip(&mut self.tags).zip(&mut self.sizes);
        for (r, ((wr, tag), size)) in places.enumerate().take(nreqs) {
            let Some(slot) = row.load(r, idx) else { return Ok(false) };
            let room = slot.room();
            room.check()?;
            (wr.remote_addr, wr.rkey) = (room.addr, room.rkey);
            *tag = slot.nreqs_tag().1;
            *size = room.size as u32;
        }
        let all = all(nreqs);
        (self.all, self.unmatched, self.imm_data) = (all, all, all);
        Ok(true)
    }

    /// Begins to be matched; `first` is the request of its first message.
    #[inline(always)]
    pub(super) fn begin(&mut self, first: Request) {
        self.first = first;
    }

    /// The request of its first message.
    #[inline(always)]
    pub(super) fn first(&self) -> &Request {
        &self.first
    }

    /// The first buffer that waits for a message of this tag, and the bytes that it takes.
    #[inline(always)]
    pub(super) fn find(&self, tag: u32) -> Option<(usize, u32)> {
        let mut candidates = self.unmatched;
        loop {
            // As a rule messages come in the order in which they were asked for. There is always
            // a buffer that waits.
            let r = candidates.trailing_zeros() as usize % RECVS_MAX;
            if self.tags[r] == tag {
                return Some((r, self.sizes[r]));
            }
            candidates &= candidates.wrapping_sub(1);
            if candidates == 0 {
                return None;
            }
        }
    }

    /// Whether each buffer has its message.
    #[inline(always)]
    pub(super) fn is_complete(&self) -> bool {
        self.unmatched == 0
    }

    /// Adds the message of buffer `r`.
    #[inline(always)]
    pub(super) fn add(&mut self, r: usize, buf: &SendBuf) {
        let r = r % RECVS_MAX;
        self.sizes[r] = buf.len;
        self.wrs[r].sge = Sge { addr: buf.addr, length: buf.len, lkey: buf.lkey };
        if buf.len == 0 {
            cold_path();
            self.imm_data &= !(1 << r);
        }
        self.unmatched &= !(1 << r);
    }

    /// How many messages it has, once it is complete.
    pub(super) fn nreqs(&self) -> usize {
        self.nreqs
    }

    /// Posts plain WRITEs, and behind them that which ends the group of `row`, on each queue pair.
    #[inline(always)]
    pub(super) fn post<N: Nic>(
        &mut self,
        verbs: &Verbs<N>,
        target: &Target,
        row: u8,
    ) -> Result<(), NicError> {
        let nreqs = self.nreqs;
        let Some(wrs) = self.wrs.get_mut(..=nreqs) else { return Ok(()) };
        let Some((end, writes)) = wrs.split_last_mut() else { return Ok(()) };
        // Its completion ends the others too.
        end.wr_id = u64::from(self.first.raw()) | (nreqs as u64 - 1) << 32 | GROUP;
        end.imm_data = self.imm_data;
        target.put_sizes(verbs, row, &self.sizes, end);
        if self.imm_data == self.all && target.qps == 1 {
            verbs.nic.post_send(&verbs.qp, wrs)
        } else {
            post_parts(verbs, writes, *end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_buffer_has_a_bit_of_its_own() {
        for nreqs in 1..=RECVS_MAX {
            assert_eq!(all(nreqs), (0..nreqs).map(|r| 1 << r).sum());
        }
    }
}
