//! A FIFO row that groups several receives, while its messages are matched. The slots stay where the
//! peer wrote them: the sender reads and checks a message's destination when it adds the message.
//!
//! The immediate of a group has one bit for each buffer that received data (`net_ib.cc ncclIbMultiSend`).

use super::post::{SendTarget, WRITE, with_imm};
use super::route::GROUP;
use super::send_buf::SendBuf;
use super::sizes::Sizes;
use crate::conn::Verbs;
use crate::fifo::{RECVS_MAX, Room, Row, SlotWords};
use crate::nic::{Nic, NumSge, SendList, SendWr, Sge};
use crate::request::Request;

/// Index of the work request that ends a group.
const END: usize = RECVS_MAX;

pub(super) struct Group {
    /// The request of the group's first message.
    first: Request,
    /// The number of messages in the group.
    nreqs: usize,
    /// The buffers, from index [`Group::start`] on. Buffers that have their message come first, in the
    /// order in which the messages arrived.
    order: [u8; RECVS_MAX],
    /// Index in `order` of the first buffer that waits for its message; [`END`] if none waits.
    waiting: usize,
    /// One bit for each buffer whose message is empty.
    empty: u32,
    /// Bytes of the matched messages.
    sizes: Sizes,
    /// The unsplit WRITE of each message, in the order of `order`, and then the work request that ends
    /// the group. So a group of any size is a chain that ends at the same index.
    wrs: SendList<{ END + 1 }>,
}

/// The order in which the messages of a full row are expected.
const IN_ORDER: u64 = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]);

/// One bit for each of `nreqs` buffers, 1 to 8.
const fn all(nreqs: usize) -> u32 {
    (2 << ((nreqs - 1) % RECVS_MAX)) - 1
}

impl Group {
    /// Creates the group of a comm that sends to `target`.
    pub(super) const fn new(target: &SendTarget) -> Self {
        let mut wrs = [SendWr { num_sge: NumSge::One, ..WRITE }; END + 1];
        let num_sge = if target.has_sizes() { NumSge::One } else { NumSge::Zero };
        wrs[END] = SendWr { num_sge, ..with_imm(0, 0) };
        Group {
            first: Request::from_raw(0),
            nreqs: 0,
            order: [0; RECVS_MAX],
            waiting: END,
            empty: 0,
            sizes: [0; RECVS_MAX],
            wrs: SendList::new(wrs),
        }
    }

    /// Returns whether all `nreqs` slots of a row have arrived. The caller has already seen the first
    /// slot.
    #[inline(always)]
    pub(super) fn is_there(row: &Row<'_>, nreqs: usize, idx: u64) -> bool {
        let is_there = |r: usize| row.load(r, idx).is_some();
        // A full row needs no comparison with the count.
        if nreqs == RECVS_MAX {
            return (1..RECVS_MAX).all(is_there);
        }
        (1..RECVS_MAX).take_while(|r| *r < nreqs).all(is_there)
    }

    /// Begins to match a row of `nreqs` slots, 2 to 8; `first` is the request of its first message.
    #[inline(always)]
    pub(super) fn begin(&mut self, nreqs: usize, first: Request) {
        (self.first, self.nreqs, self.empty) = (first, nreqs, 0);
        self.waiting = self.start();
        self.order = (IN_ORDER << (self.waiting * 8)).to_le_bytes();
        self.sizes = [0; RECVS_MAX];
    }

    /// The first buffer that waits for its message. One buffer always waits while the group is matched.
    #[inline(always)]
    pub(super) fn next(&self) -> usize {
        self.order[self.waiting % RECVS_MAX] as usize % RECVS_MAX
    }

    /// The first buffer of `row` that waits for a message with `tag`, and the buffer's slot.
    pub(super) fn find<'a>(&self, row: &Row<'a>, tag: u32) -> Option<(usize, SlotWords<'a>)> {
        let waiting = self.order[self.waiting.min(END)..].iter();
        let waiting = waiting.map(|r| usize::from(*r) % RECVS_MAX);
        waiting.map(|r| (r, row.seen(r))).find(|(_, slot)| slot.tag() == tag)
    }

    /// Finds a buffer as [`Group::find`] does, and makes this buffer the next one.
    #[inline(always)]
    pub(super) fn select<'a>(&mut self, row: &Row<'a>, tag: u32) -> Option<SlotWords<'a>> {
        // Most messages come in the order of their buffers.
        let slot = row.seen(self.next());
        if slot.tag() == tag { Some(slot) } else { self.select_later(row, tag) }
    }

    #[inline(never)]
    fn select_later<'a>(&mut self, row: &Row<'a>, tag: u32) -> Option<SlotWords<'a>> {
        let (r, slot) = self.find(row, tag)?;
        let waiting = &mut self.order[self.waiting.min(END)..];
        let at = waiting.iter().position(|waiting| usize::from(*waiting) == r)?;
        waiting[..=at].rotate_right(1);
        Some(slot)
    }

    /// Returns whether `request` belongs to a message of the group that began last.
    pub(super) fn has(&self, request: &Request) -> bool {
        (request.raw().wrapping_sub(self.first.raw()) as usize) < self.nreqs
    }

    /// Returns whether each buffer has its message.
    #[inline(always)]
    pub(super) fn is_complete(&self) -> bool {
        self.waiting == END
    }

    /// The number of messages that the group still lacks; 0 if no group is matched.
    pub(super) fn lacking(&self) -> u32 {
        END.saturating_sub(self.waiting) as u32
    }

    /// Adds the message of the next buffer, with destination `room`, and returns its request.
    #[inline(always)]
    pub(super) fn add(&mut self, buf: &SendBuf, room: &Room) -> Request {
        let r = self.next();
        if buf.len == 0 {
            self.empty |= 1 << r;
        }
        self.sizes[r] = buf.len;
        let mut wr = self.wrs.wr(self.waiting % RECVS_MAX);
        wr.set_remote(room.addr, room.rkey);
        wr.set_sge(Sge { addr: buf.addr, length: buf.len, lkey: buf.lkey });
        self.waiting += 1;
        self.first.message(r)
    }

    /// The number of the request of the group's first message.
    pub(super) fn first(&self) -> u32 {
        self.first.raw()
    }

    /// The number of messages in the group.
    pub(super) fn nreqs(&self) -> usize {
        self.nreqs
    }

    /// Lays out the work request that ends the complete group of `row`. Returns the list, and the index
    /// where the group begins in the list.
    pub(super) fn finish<N: Nic>(
        &mut self,
        verbs: &Verbs<N>,
        target: &SendTarget,
        row: u8,
    ) -> (&mut SendList<{ END + 1 }>, usize) {
        let mut end = self.wrs.wr(END);
        // The completion of this work request ends the other requests of the group too.
        end.set_id(u64::from(self.first.raw()) | (self.nreqs as u64 - 1) << 32 | GROUP);
        end.set_imm(all(self.nreqs) & !self.empty);
        target.put_sizes(verbs, row, &self.sizes, &mut end);
        let start = self.start();
        (&mut self.wrs, start)
    }

    /// The index where the group begins, in `order` and in `wrs`.
    #[inline(always)]
    pub(super) fn start(&self) -> usize {
        END - self.nreqs.min(END)
    }

    /// The buffers of the WRITEs: the WRITE at an index is for the buffer at this index.
    pub(super) fn order(&self) -> &[u8; RECVS_MAX] {
        &self.order
    }

    /// The WRITEs, followed by the work request that ends the group.
    pub(super) fn wrs(&self) -> &[SendWr; END + 1] {
        self.wrs.wrs()
    }

    /// Returns whether each message is exactly one work request of at most `message_bytes_max`.
    #[inline(always)]
    pub(super) fn is_full(&self, message_bytes_max: u32) -> bool {
        let is_long =
            self.sizes.iter().fold(false, |is_long, size| is_long | (*size > message_bytes_max));
        self.empty == 0 && !is_long
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
