//! A row of the FIFO that groups several receives, while its messages are matched. Its slots stay
//! where the peer wrote them: where a message goes is read, and checked, when that is added.
//!
//! The immediate of a group has one bit for each buffer that got data (`net_ib.cc
//! ncclIbMultiSend`).

use core::hint::cold_path;

use super::SendBuf;
use super::post::{Target, WRITE, with_imm};
use super::route::GROUP;
use super::sizes::Sizes;
use crate::conn::Verbs;
use crate::fifo::{RECVS_MAX, Room, Row, SlotWords};
use crate::nic::{Nic, SendList, SendWr, Sge};
use crate::request::Request;

/// Where the work request is that ends a group.
const END: usize = RECVS_MAX;

pub(super) struct Group {
    /// The request of its first message.
    first: Request,
    /// Messages.
    nreqs: usize,
    /// A bit for each buffer that has no message yet.
    unmatched: u32,
    /// A bit for each buffer, but for those whose message is empty.
    imm_data: u32,
    /// Bytes of the messages that are matched.
    sizes: Sizes,
    /// The WRITEs of the messages, whole, that of the first last; and behind it that which ends the
    /// group. So any number of them is a chain that ends at the same place.
    wrs: SendList<{ END + 1 }>,
}

/// Where the WRITE of buffer `r` is.
const fn write_of(r: usize) -> usize {
    END - 1 - r % RECVS_MAX
}

/// A bit for each of `nreqs` buffers, 1 to 8.
const fn all(nreqs: usize) -> u32 {
    (2 << ((nreqs - 1) % RECVS_MAX)) - 1
}

impl Group {
    /// For the groups of a comm that goes to `target`.
    pub(super) const fn new(target: &Target) -> Self {
        let mut wrs = [SendWr { num_sge: 1, ..WRITE }; END + 1];
        wrs[END] = SendWr { num_sge: target.has_sizes() as u32, ..with_imm(0, 0) };
        Group {
            first: Request::from_raw(0),
            nreqs: 0,
            unmatched: 0,
            imm_data: 0,
            sizes: [0; RECVS_MAX],
            wrs: SendList::new(wrs),
        }
    }

    /// Whether all slots of a row of `nreqs` are there, of which the first is.
    #[inline(always)]
    pub(super) fn is_there(row: &Row<'_>, nreqs: usize, idx: u64) -> bool {
        (1..nreqs.min(RECVS_MAX)).all(|r| row.load(r, idx).is_some())
    }

    /// Begins to match a row of `nreqs` slots, 2 to 8; `first` is the request of its first message.
    #[inline(always)]
    pub(super) fn begin(&mut self, nreqs: usize, first: Request) {
        let all = all(nreqs);
        (self.first, self.nreqs) = (first, nreqs);
        (self.unmatched, self.imm_data) = (all, all);
        self.sizes = [0; RECVS_MAX];
    }

    /// The request of its first message.
    #[inline(always)]
    pub(super) fn first(&self) -> &Request {
        &self.first
    }

    /// The first buffer of `row` that waits for a message of this tag, and what the peer says of it.
    #[inline(always)]
    pub(super) fn find<'a>(&self, row: &Row<'a>, tag: u32) -> Option<(usize, SlotWords<'a>)> {
        let mut candidates = self.unmatched;
        loop {
            // As a rule messages come in the order in which they were asked for. There is always
            // a buffer that waits.
            let r = candidates.trailing_zeros() as usize % RECVS_MAX;
            let slot = row.seen(r);
            if slot.tag() == tag {
                return Some((r, slot));
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

    /// Adds the message of buffer `r`, which goes to `room`.
    #[inline(always)]
    pub(super) fn add(&mut self, r: usize, buf: &SendBuf, room: &Room) {
        let r = r % RECVS_MAX;
        self.sizes[r] = buf.len;
        if buf.len == 0 {
            cold_path();
            self.imm_data &= !(1 << r);
        }
        let mut wr = self.wrs.wr(write_of(r));
        wr.set_remote(room.addr, room.rkey);
        wr.set_sge(Sge { addr: buf.addr, length: buf.len, lkey: buf.lkey });
        self.unmatched &= !(1 << r);
    }

    /// How many messages it has.
    #[inline(always)]
    pub(super) fn nreqs(&self) -> usize {
        self.nreqs
    }

    /// Lays out what ends the group of `row`, once it is complete; gives the list, and where the
    /// group begins in it.
    #[inline(always)]
    pub(super) fn finish<N: Nic>(
        &mut self,
        verbs: &Verbs<N>,
        target: &Target,
        row: u8,
    ) -> (&mut SendList<{ END + 1 }>, usize) {
        let mut end = self.wrs.wr(END);
        // Its completion ends the others too.
        end.set_id(u64::from(self.first.raw()) | (self.nreqs as u64 - 1) << 32 | GROUP);
        end.set_imm(self.imm_data);
        target.put_sizes(verbs, row, &self.sizes, &mut end);
        (&mut self.wrs, END - self.nreqs.min(END))
    }

    /// The WRITEs, and behind them that which ends the group.
    pub(super) fn wrs(&self) -> &[SendWr; END + 1] {
        self.wrs.wrs()
    }

    /// Whether all messages have bytes, so that each is a work request.
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.imm_data == all(self.nreqs)
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
