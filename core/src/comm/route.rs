//! Assigns each completion to its request, and defines the data stored beside each request's key.

use static_assertions::assert_eq_size;

use super::base::Fast;
use super::flush::Flushes;
use super::sizes::Sizes;
use crate::nic::{Nic, SendList, Wc, WcOpcode};
use crate::request::{Entry, MESSAGES, ROWS, RequestRing};

/// Books the completions of one kind of comm.
pub(super) trait Route<T, const N: usize> {
    /// Ends a request that is done and returns its bytes. Returns [`Fast::Slow`] and keeps the request
    /// if it has several sizes, or a size that is too large.
    fn take(entry: &mut Entry<T>) -> Fast<u32>;
    /// Whether a completion ends no other request than its own.
    fn is_single(wc: &Wc) -> bool;
    /// Books a completion that succeeded; `false` if no request awaits it.
    fn book(&mut self, reqs: &mut RequestRing<T, N>, wc: &Wc) -> bool;
}

/// The data beside the request of a sent message.
#[repr(align(8))]
pub(super) struct Sending {
    /// Length of the message in bytes.
    pub(super) len: u32,
}

assert_eq_size!(Entry<Sending>, [u8; 16]);

/// The data beside the request of a receive, which also belongs to one row of the FIFO.
pub(super) struct Receiving {
    /// The work request that writes this row's slots to the peer, reused on each turn of the ring. The
    /// request writes one slot, or several while a group is under way. The receive has the same
    /// `wr_id`: the row in the lower half, and the number of buffers beyond the first in the upper
    /// half.
    pub(super) slots: SendList<1>,
    /// The number of completions that a receive in this row awaits.
    pub(super) events: u32,
    /// The immediate that arrived: the size in bytes or, for a group, a bit for each buffer with data.
    pub(super) imm: u32,
    /// Bytes of each posted buffer.
    pub(super) sizes: Sizes,
}

assert_eq_size!(Entry<Receiving>, [u8; 128]);

impl Receiving {
    /// The number of buffers beyond the first.
    #[inline(always)]
    pub(super) fn others(&self) -> u32 {
        let [slots_wr] = self.slots.wrs();
        (slots_wr.wr_id >> 32) as u32
    }
}

/// The bit that marks the `wr_id` of a group. The sign bit serves as this mark, so one instruction
/// tests it.
pub(super) const GROUP: u64 = 1 << 63;

/// Books the completions of sends. Each queue pair brings one completion for a single message or for a
/// group. The `wr_id` of a single message is the token of its request. The `wr_id` of a group holds
/// [`GROUP`] and the token of the group's first request. Bits 32 to 39 say how many other requests end
/// with the first one.
pub(super) struct Sent {
    /// The number of grouped messages that the NIC has not completed yet. At most as many as there are
    /// rows may be under way, since the send queue has room for no more.
    pub(super) grouped: u64,
}

impl Route<Sending, MESSAGES> for Sent {
    #[inline(always)]
    fn take(entry: &mut Entry<Sending>) -> Fast<u32> {
        Fast::Done(entry.end().len)
    }

    #[inline(always)]
    fn is_single(wc: &Wc) -> bool {
        wc.wr_id & GROUP == 0
    }

    #[inline(always)]
    fn book(&mut self, reqs: &mut RequestRing<Sending, MESSAGES>, wc: &Wc) -> bool {
        let is_awaited = reqs.at(wc.wr_id as u32).book();
        if wc.wr_id & GROUP != 0 {
            self.book_group(reqs, wc.wr_id);
        }
        is_awaited
    }
}

impl Sent {
    /// Ends the other messages of a group once the group's last completion is booked.
    #[inline(never)]
    fn book_group(&mut self, reqs: &mut RequestRing<Sending, MESSAGES>, wr_id: u64) {
        let [first, others @ ..] = reqs.row(wr_id as u32);
        if first.is_complete() {
            let nreqs = 1 + u64::from((wr_id >> 32) as u8);
            self.grouped = self.grouped.saturating_sub(nreqs);
            // Entries that the group did not use are free, and stay free.
            others.iter_mut().for_each(Entry::finish);
        }
    }
}

/// Books receives, writes of slots, and flushes.
impl<N: Nic> Route<Receiving, ROWS> for Flushes<N> {
    #[inline(always)]
    fn take(entry: &mut Entry<Receiving>) -> Fast<u32> {
        let Receiving { imm, sizes, .. } = &entry.value;
        if entry.value.others() != 0 || *imm > sizes[0] {
            return Fast::Slow;
        }
        Fast::Done(entry.end().imm)
    }

    #[inline(always)]
    fn is_single(_: &Wc) -> bool {
        true
    }

    /// Each queue pair brings the same immediate: the whole size of a single message, not the share
    /// of that queue pair.
    #[inline(always)]
    fn book(&mut self, reqs: &mut RequestRing<Receiving, ROWS>, wc: &Wc) -> bool {
        match wc.opcode {
            WcOpcode::RECV_RDMA_WITH_IMM => {
                let entry = reqs.at(wc.wr_id as u32);
                entry.value.imm = wc.imm_data;
                entry.book()
            }
            WcOpcode::RDMA_READ => self.end(wc.wr_id),
            _ => reqs.at(wc.wr_id as u32).book(),
        }
    }
}
