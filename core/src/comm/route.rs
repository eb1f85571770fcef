//! How completions find the requests that await them, and what stands beside these.

use static_assertions::assert_eq_size;

use super::Request;
use super::base::Usual;
use super::flush::Flushes;
use super::sizes::Sizes;
use crate::nic::{Nic, SendList, Wc, WcOpcode, WcStatus};
use crate::request::{Entry, MESSAGES, ROWS, Ring};

/// Completions of one kind of comm.
pub(super) trait Route<T, const N: usize> {
    /// Ends a request that is done, of one size, and gives that. [`Usual::Unusual`] where there is
    /// more to it: then it is still to be ended.
    fn take(entry: &mut Entry<T>) -> Usual<u32>;
    /// The same for a live request, if these completions are of it alone, and all that it still
    /// awaits. `None` where they are not, or there is more to it: then nothing is booked.
    fn take_by(reqs: &mut Ring<T, N>, wcs: &[Wc], request: &Request) -> Option<u32>;
    /// Books a completion of the kind that comes all the time; `false` where it is another, has
    /// failed, or nobody awaited it: one that succeeded is then still to be given to [`Route::book`].
    fn book_usual(&mut self, reqs: &mut Ring<T, N>, wc: &Wc) -> bool;
    /// Books any completion that succeeded; whether it was awaited.
    fn book(&mut self, reqs: &mut Ring<T, N>, wc: &Wc) -> bool;
}

/// What stands beside the request of a message.
#[repr(align(8))]
pub(super) struct Sending {
    /// Bytes.
    pub(super) len: u32,
}

assert_eq_size!(Entry<Sending>, [u8; 16]);

/// What stands beside the request of a receive, which is that of a row of the FIFO too.
pub(super) struct Receiving {
    /// The write of the row to the peer, the same each time around: of one slot, but of a group
    /// while that is under way. Its `wr_id`, which is the receive's too, is the row, and in the upper
    /// half how many buffers more than one it has.
    pub(super) slots: SendList<1>,
    /// Completions that a receive in this row awaits.
    pub(super) events: u32,
    /// The immediate that came: bytes, or of a group a bit for each buffer with data.
    pub(super) imm: u32,
    /// Bytes posted.
    pub(super) sizes: Sizes,
}

assert_eq_size!(Entry<Receiving>, [u8; 128]);

impl Receiving {
    /// Buffers more than one.
    #[inline(always)]
    pub(super) fn others(&self) -> u32 {
        let [slots_wr] = self.slots.wrs();
        (slots_wr.wr_id >> 32) as u32
    }
}

/// Tells the `wr_id` of a group from that of a message of its own: the sign, which one test sees.
pub(super) const GROUP: u64 = 1 << 63;

/// Completions of sends: each queue pair brings one. Their `wr_id` is the token of the request; of a
/// group, of its first, with how many others it ends in the upper half, and [`GROUP`].
pub(super) struct Sent {
    /// Messages of groups that the NIC is not yet done with: at most as many as there are rows, as
    /// the send queue has room for no more.
    pub(super) grouped: u64,
}

impl Route<Sending, MESSAGES> for Sent {
    #[inline(always)]
    fn take(entry: &mut Entry<Sending>) -> Usual<u32> {
        Usual::Done(entry.end().len)
    }

    #[inline(always)]
    fn take_by(reqs: &mut Ring<Sending, MESSAGES>, wcs: &[Wc], request: &Request) -> Option<u32> {
        for wc in wcs {
            if wc.status != WcStatus::SUCCESS {
                return None;
            }
            if u64::from(request.raw()) != wc.wr_id {
                return None;
            }
        }
        let entry = reqs.at(request.raw());
        if !entry.awaits(wcs.len()) {
            return None;
        }
        Some(entry.end().len)
    }

    /// The end of a message of its own.
    #[inline(always)]
    fn book_usual(&mut self, reqs: &mut Ring<Sending, MESSAGES>, wc: &Wc) -> bool {
        wc.status == WcStatus::SUCCESS && wc.wr_id & GROUP == 0 && reqs.at(wc.wr_id as u32).book()
    }

    /// The end of a group too.
    #[inline(never)]
    fn book(&mut self, reqs: &mut Ring<Sending, MESSAGES>, wc: &Wc) -> bool {
        let [first, others @ ..] = reqs.row(wc.wr_id as u32);
        let is_awaited = first.book();
        if wc.wr_id & GROUP != 0 && first.is_complete() {
            let nreqs = 1 + u64::from((wc.wr_id >> 32) as u8);
            self.grouped = self.grouped.saturating_sub(nreqs);
            // Those that the group did not have are free, and stay so.
            others.iter_mut().for_each(Entry::finish);
        }
        is_awaited
    }
}

/// Completions of receives, of writes of slots, and of flushes.
impl<N: Nic> Route<Receiving, ROWS> for Flushes<N> {
    #[inline(always)]
    fn take(entry: &mut Entry<Receiving>) -> Usual<u32> {
        let Receiving { imm, sizes, .. } = &entry.value;
        if entry.value.others() != 0 {
            return Usual::Unusual;
        }
        if *imm > sizes[0] {
            return Usual::Unusual;
        }
        Usual::Done(entry.end().imm)
    }

    #[inline(always)]
    fn take_by(reqs: &mut Ring<Receiving, ROWS>, wcs: &[Wc], request: &Request) -> Option<u32> {
        let imm = wcs.last()?.imm_data;
        for wc in wcs {
            if !wc.is_success_of(WcOpcode::RECV_RDMA_WITH_IMM) {
                return None;
            }
            // Of a group it has more to say.
            if request.row() as u64 != wc.wr_id {
                return None;
            }
        }
        let entry = reqs.at(request.raw());
        if !entry.awaits(wcs.len()) {
            return None;
        }
        if imm > entry.value.sizes[0] {
            return None;
        }
        entry.end();
        Some(imm)
    }

    /// Data that came. Each queue pair brings the same immediate: the whole size of a single
    /// message, not its share.
    #[inline(always)]
    fn book_usual(&mut self, reqs: &mut Ring<Receiving, ROWS>, wc: &Wc) -> bool {
        if !wc.is_success_of(WcOpcode::RECV_RDMA_WITH_IMM) {
            return false;
        }
        let entry = reqs.at(wc.wr_id as u32);
        entry.value.imm = wc.imm_data;
        entry.book()
    }

    #[inline(never)]
    fn book(&mut self, reqs: &mut Ring<Receiving, ROWS>, wc: &Wc) -> bool {
        match wc.opcode {
            WcOpcode::RECV_RDMA_WITH_IMM => self.book_usual(reqs, wc),
            WcOpcode::RDMA_READ => self.end(wc.wr_id),
            _ => reqs.at(wc.wr_id as u32).book(),
        }
    }
}
