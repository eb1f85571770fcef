//! Assigns each completion to its request, and defines the data stored beside each request's key.

use core::hint::cold_path;
use core::ops::Range;

use static_assertions::assert_eq_size;

use super::control::RowSet;
use super::fast::Fast;
use super::flush::Flushes;
use super::post::SMALL_BYTES_MAX;
use super::rail_shares::Backlog;
use super::rails::RailWork;
use super::send_buf::SendBuf;
use super::sizes::Sizes;
use crate::conn::rail_of;
use crate::mutant::{Mutant, is_planted};
use crate::nic::{Nic, SendList, Wc, WcOpcode};
use crate::request::{Entry, MESSAGES, ROWS, RequestRing};

/// Books the completions of one kind of comm.
pub(super) trait Route<N: Nic, T, const REQS: usize> {
    /// Ends a request that is done and returns its bytes. Returns [`Fast::Slow`] and keeps the request
    /// if it has several sizes, or a size that is too large. Adds the bytes to `total`.
    fn take(entry: &mut Entry<T>, total: &mut u64) -> Fast<u32>;
    /// The entry of the message whose completion this is; `None` for a group, and for other work.
    fn of_message<'a>(reqs: &'a mut RequestRing<T, REQS>, wc: &Wc) -> Option<&'a mut Entry<T>>;
    /// Takes the request of a message whose [last](Entry::is_last) completion this is, as [`Route::take`]
    /// does.
    fn take_last(&mut self, entry: &mut Entry<T>, wc: &Wc, total: &mut u64) -> Fast<u32>;
    /// Books a completion that succeeded; `false` if no request awaits it.
    fn book(&mut self, reqs: &mut RequestRing<T, REQS>, wc: &Wc) -> bool;
    /// The number of rows to report to the peer, after the queue pairs have stopped. `rows` is the number
    /// of rows that this end has sent or posted.
    fn rows_to_report(&self, reqs: &mut RequestRing<T, REQS>, rows: u64, depth: u64) -> u64;
    /// Whether this end sends messages.
    const IS_SENDER: bool = false;
    /// The rows that have arrived, after the queue pairs have stopped.
    fn arrived(&self, _reqs: &mut RequestRing<T, REQS>, _rows: u64, _depth: u64) -> RowSet {
        RowSet::default()
    }
    /// The counts of completions on each rail.
    fn rail_work(&mut self) -> &mut RailWork;
    /// The flushes, if this end has any.
    fn flushes(&mut self) -> Option<&mut Flushes<N>> {
        None
    }
}

/// The data beside the request of a sent message: its bytes, which may have to be sent again.
#[derive(Clone, Copy, Default)]
pub(super) struct Sending(pub(super) SendBuf);

assert_eq_size!(Entry<Sending>, [u8; 24]);

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

/// The bit that marks the `wr_id` of a group.
pub(super) const GROUP: u64 = 1 << 63;

/// Books the completions of sends. Each queue pair brings one completion for a single message or for a
/// group. The `wr_id` of a single message is the token of its request. The `wr_id` of a group holds
/// [`GROUP`] and the token of the group's first request. Bits 32 to 39 say how many other requests end
/// with the first one.
pub(super) struct Sent {
    /// The number of grouped messages that the NIC has not completed yet. At most as many as there are
    /// rows may be under way, since the send queue has room for no more.
    pub(super) grouped: u64,
    rail_work: RailWork,
    pub(super) backlog: Backlog,
}

impl<N: Nic> Route<N, Sending, MESSAGES> for Sent {
    const IS_SENDER: bool = true;

    #[inline(always)]
    fn take(entry: &mut Entry<Sending>, total: &mut u64) -> Fast<u32> {
        let len = entry.end().0.len;
        *total += u64::from(len);
        Fast::Done(len)
    }

    #[inline(always)]
    fn of_message<'a>(
        reqs: &'a mut RequestRing<Sending, MESSAGES>,
        wc: &Wc,
    ) -> Option<&'a mut Entry<Sending>> {
        (wc.wr_id & GROUP == 0).then(|| reqs.at(wc.wr_id as u32))
    }

    #[inline(always)]
    fn take_last(&mut self, entry: &mut Entry<Sending>, wc: &Wc, total: &mut u64) -> Fast<u32> {
        if N::RAILS_MAX > 1 {
            self.book_on_rail(wc);
            self.note_last(wc, entry);
        }
        <Self as Route<N, Sending, MESSAGES>>::take(entry, total)
    }

    #[inline(always)]
    fn book(&mut self, reqs: &mut RequestRing<Sending, MESSAGES>, wc: &Wc) -> bool {
        if N::RAILS_MAX > 1 && self.book_on_rail(wc) {
            return true;
        }
        let entry = reqs.at(wc.wr_id as u32);
        if !entry.book() {
            return false;
        }
        if N::RAILS_MAX > 1 && entry.is_complete() {
            self.note_last(wc, entry);
        }
        if wc.wr_id & GROUP != 0 {
            self.book_group(reqs, wc.wr_id);
        }
        true
    }

    fn rows_to_report(&self, _: &mut RequestRing<Sending, MESSAGES>, rows: u64, _: u64) -> u64 {
        rows
    }

    fn rail_work(&mut self) -> &mut RailWork {
        &mut self.rail_work
    }
}

impl Sent {
    pub(super) const fn new() -> Self {
        Sent { grouped: 0, rail_work: RailWork::NONE, backlog: Backlog::NONE }
    }

    /// Books a completion on its rail. Returns whether it is only the answer of a rail.
    #[inline(always)]
    fn book_on_rail(&mut self, wc: &Wc) -> bool {
        let is_answer = self.rail_work.book(wc);
        if !is_answer {
            self.backlog.finish(wc.wr_id as u32, rail_of(wc.qp_num));
        }
        is_answer
    }

    /// Notes which rail has finished a long message after all other rails.
    #[inline(always)]
    fn note_last(&mut self, wc: &Wc, entry: &Entry<Sending>) {
        if entry.value.0.len > SMALL_BYTES_MAX {
            self.rail_work.was_last(wc);
        }
    }

    /// Ends the other messages of a group once the group's last completion is booked.
    #[inline(always)]
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
pub(super) struct Arrivals<N: Nic> {
    pub(super) flushes: Flushes<N>,
    /// The number of signaled writes of slots that have completed: one in each turn of the ring.
    pub(super) turns_written: u64,
    pub(super) rail_work: RailWork,
}

impl<N: Nic> Arrivals<N> {
    /// The number of rows that have arrived, of which `rows` are those that may not have. Rows arrive in
    /// order.
    ///
    /// A row in which the write of its slots is signaled awaits one completion more, which says nothing
    /// about the row's arrival.
    pub(super) fn rows_arrived(
        &self,
        reqs: &mut RequestRing<Receiving, ROWS>,
        mut rows: Range<u64>,
        depth: u64,
    ) -> u64 {
        let posted = rows.end;
        rows.find(|row| !self.has_arrived(reqs, *row, depth)).unwrap_or(posted)
    }

    /// Whether a posted row has arrived.
    pub(super) fn has_arrived(
        &self,
        reqs: &mut RequestRing<Receiving, ROWS>,
        row: u64,
        depth: u64,
    ) -> bool {
        let is_unwritten = row.is_multiple_of(depth) && row / depth >= self.turns_written;
        reqs.at((row % depth) as u32).awaited() <= i32::from(is_unwritten)
    }
}

impl<N: Nic> Route<N, Receiving, ROWS> for Arrivals<N> {
    #[inline(always)]
    fn take(entry: &mut Entry<Receiving>, total: &mut u64) -> Fast<u32> {
        let Receiving { imm, sizes, .. } = &entry.value;
        if entry.value.others() != 0 || *imm > sizes[0] {
            return Fast::Slow;
        }
        let len = entry.end().imm;
        *total += u64::from(len);
        Fast::Done(len)
    }

    #[inline(always)]
    fn of_message<'a>(
        reqs: &'a mut RequestRing<Receiving, ROWS>,
        wc: &Wc,
    ) -> Option<&'a mut Entry<Receiving>> {
        (wc.opcode == WcOpcode::RECV_RDMA_WITH_IMM).then(|| reqs.at(wc.wr_id as u32))
    }

    #[inline(always)]
    fn take_last(&mut self, entry: &mut Entry<Receiving>, wc: &Wc, total: &mut u64) -> Fast<u32> {
        entry.value.imm = wc.imm_data;
        let taken = Self::take(entry, total);
        if taken == Fast::Slow {
            entry.finish();
        }
        taken
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
            WcOpcode::RDMA_READ => {
                // Otherwise each message would be compared with this opcode first.
                cold_path();
                self.flushes.end(wc.wr_id)
            }
            _ if N::RAILS_MAX > 1 && self.rail_work.book(wc) => true,
            _ => {
                self.turns_written += 1;
                reqs.at(wc.wr_id as u32).book()
            }
        }
    }

    fn rows_to_report(
        &self,
        reqs: &mut RequestRing<Receiving, ROWS>,
        rows: u64,
        depth: u64,
    ) -> u64 {
        let arrived = self.rows_arrived(reqs, rows.saturating_sub(depth)..rows, depth);
        match arrived {
            1.. if is_planted(Mutant::ReportTooFew) => arrived - 1,
            _ if is_planted(Mutant::ReportTooMany) => rows.min(arrived + 1),
            _ => arrived,
        }
    }

    fn arrived(&self, reqs: &mut RequestRing<Receiving, ROWS>, rows: u64, depth: u64) -> RowSet {
        let mut arrived = RowSet::default();
        for row in rows.saturating_sub(depth)..rows {
            if self.has_arrived(reqs, row, depth) {
                arrived.add(row);
            }
        }
        arrived
    }

    fn rail_work(&mut self) -> &mut RailWork {
        &mut self.rail_work
    }

    fn flushes(&mut self) -> Option<&mut Flushes<N>> {
        Some(&mut self.flushes)
    }
}
