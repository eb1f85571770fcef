//! The sender's part of a recovery: it finishes the sends that have arrived, and sends the others again.

use super::SendComm;
use super::grouped::GROUP_NREQS;
use crate::comm::base::{Base, Failed, Gate};
use crate::comm::control::{Control, RowSet};
use crate::comm::group::Group;
use crate::comm::post::{only_qp, post_parts, post_single, qps_of, with_imm};
use crate::comm::rail_shares::Backlog;
use crate::comm::recover::Recovering;
use crate::conn::Stream;
use crate::error::Error;
use crate::fifo::{RECVS_MAX, Room, Row};
use crate::mutant::{Mutant, is_planted};
use crate::nic::{Memory, Nic, SendWr, Sge};
use crate::request::Entry;
use crate::stall::PathRows;

impl<N: Nic, S: Stream> SendComm<N, S> {
    /// Continues a recovery; see [`recovery`](crate::comm::recovery).
    #[cold]
    pub(in crate::comm) fn recover(&mut self, now_ns: u64) -> Result<(), Failed> {
        while self.base.gate == Gate::Recovering {
            match self.base.recover(now_ns, self.rows_sent(), self.depth())? {
                Recovering::Waiting => return Ok(()),
                // The peer writes slots, and the sender needs to post nothing for them.
                Recovering::Started { .. } if self.base.has_rails() => {
                    self.target.move_to(&self.base.verbs, self.base.rails.peer_rkey);
                }
                Recovering::Started { .. } => {}
                Recovering::Resumed { rows } => self.resend(rows)?,
            }
        }
        Ok(())
    }

    /// Number of rows of the FIFO.
    fn depth(&self) -> u64 {
        u64::from(self.row_mask) + 1
    }

    /// Number of rows whose requests there may be. A group that is being matched has the requests of the oldest row.
    fn rows_kept(&self) -> u64 {
        self.depth() - u64::from(!self.group.is_complete())
    }

    /// Finishes the sends of all rows before `rows_arrived`, and sends the others again.
    fn resend(&mut self, rows_arrived: u64) -> Result<(), Failed> {
        let rows_sent = self.rows_sent();
        if rows_arrived > rows_sent || rows_sent - rows_arrived > self.rows_kept() {
            return Err(self.base.fail(Error::Unexpected));
        }
        if !is_planted(Mutant::ForgetArrived) {
            let rows = if is_planted(Mutant::FinishAll) { rows_sent } else { rows_arrived };
            self.finish_rows(rows);
        }
        if !is_planted(Mutant::CountGroupTwice) {
            self.base.route.grouped = 0;
        }
        self.base.route.backlog = Backlog::NONE;
        let arrived = match self.base.recovery.rails_report() {
            Some(report) if !is_planted(Mutant::ResendOvertaking) => report.arrived,
            _ => RowSet::default(),
        };
        for row in (rows_arrived..rows_sent).filter(|row| arrived.has(*row)) {
            self.finish_row(row);
        }
        let first = rows_arrived + u64::from(is_planted(Mutant::ResendTooFew));
        let mut rows = (first..rows_sent).filter(|row| !arrived.has(*row));
        if is_planted(Mutant::ResendInWrongOrder) {
            return rows.rev().try_for_each(|row| self.resend_row(row));
        }
        rows.try_for_each(|row| self.resend_row(row))
    }

    /// Answers the peer's question about its slots, and looks at the progress of this end's rows.
    #[cold]
    pub(in crate::comm) fn look_at_path(&mut self, now_ns: u64) {
        if self.base.gate == Gate::Failed {
            return;
        }
        if let Some(asked) = self.base.path.owes_answer.take() {
            let rows = self.slots_seen(asked);
            self.base.line.send(&Control::Seen { rows });
        }
        let (depth, said) = (self.depth(), self.rows_sent());
        let kept = self.rows_kept();
        let Self { base: Base { reqs, path, .. }, .. } = self;
        // Most looks find an end at rest.
        let mut rows = path.done.max(said.saturating_sub(kept))..said;
        let entries = |row: u64| (row % depth) as u32 * RECVS_MAX as u32;
        let over = rows.find(|row| reqs.row(entries(*row)).iter().any(Entry::is_awaiting));
        let over = over.unwrap_or(said);
        path.done = over;
        let bytes = match over < said {
            true => reqs.row(entries(over)).iter().map(|entry| u64::from(entry.value.0.len)).sum(),
            false => 0,
        };
        let rows = PathRows { said, over, bytes };
        self.base.look_at_path(now_ns, rows, false);
        self.base.look_at_port(now_ns, rows);
    }

    /// The number of the peer's rows whose slots have come, of the first `asked` ones.
    fn slots_seen(&self, asked: u64) -> u64 {
        let sent = self.rows_sent();
        let asked = asked.min(sent + self.depth());
        let words = self.base.verbs.control.words();
        let is_there = |row: &u64| {
            let slots = Row::of(words, (row % self.depth()) as u8);
            slots.is_some_and(|slots| slots.load(0, row + 1).is_some())
        };
        (sent..asked).take_while(is_there).last().map_or(sent, |row| row + 1)
    }

    /// Marks the sends of all rows before `rows_arrived` as done.
    pub(super) fn finish_rows(&mut self, rows_arrived: u64) {
        let (depth, rows_sent) = (self.depth(), self.rows_sent());
        // An unsent group has taken the requests of the oldest row.
        let rows = if self.group.is_complete() { depth } else { depth - 1 };
        for row in rows_sent.saturating_sub(rows)..rows_sent.min(rows_arrived) {
            self.finish_row(row);
        }
    }

    /// Marks the sends of a row as done.
    fn finish_row(&mut self, row: u64) {
        let first = (row % self.depth()) as usize * RECVS_MAX;
        self.base.reqs.row(first as u32).iter_mut().for_each(|entry| entry.finish_late());
    }

    /// Sends a row again. Its slots are still in the FIFO, since the receiver overwrites them only after
    /// the row has arrived.
    fn resend_row(&mut self, row: u64) -> Result<(), Failed> {
        if self.base.gate == Gate::Recovering {
            // A rail has refused an earlier row. The next attempt sends this one too.
            return Ok(());
        }
        let idx = row + 1;
        let at = (row % self.depth()) as u8;
        let Self { base: Base { reqs, verbs, route, .. }, target, .. } = self;
        let entries = reqs.row(u32::from(at) * RECVS_MAX as u32);
        let Some(first) = entries[0].awaiting() else {
            return Err(self.base.fail(Error::NotDelivered { idx }));
        };
        let slots = Row::of(verbs.control.words(), at);
        let Some((slots, slot)) =
            slots.and_then(|slots| slots.load(0, idx).map(|slot| (slots, slot)))
        else {
            return Err(self.base.fail(Error::Unexpected));
        };
        let nreqs = slot.nreqs_tag().0 as usize;
        // The peer can write the slot at any time. The other entries have buffers of older messages, which
        // their owner has back.
        let is_of_row =
            entries.iter().enumerate().all(|(r, entry)| entry.is_awaiting() == (r < nreqs));
        if !is_of_row {
            return Err(self.base.fail(Error::Unexpected));
        }
        let fits = |room: &Room, len: u32| room.check().is_ok() && room.holds(len);
        let posted = if nreqs == 1 {
            let (room, mut buf) = (slot.room(), entries[0].value.0);
            buf.addr += u64::from(is_planted(Mutant::ResendOtherBytes) && buf.len > 0);
            if !fits(&room, buf.len) {
                return Err(self.base.fail(Error::Unexpected));
            }
            let only = only_qp(verbs, row, 1, room.size as u32);
            entries[0].rearm(qps_of(verbs, only));
            let mut whole = SendWr {
                remote_addr: room.addr,
                rkey: room.rkey,
                sge: Sge { addr: buf.addr, length: buf.len, lkey: buf.lkey },
                ..with_imm(first.raw(), buf.len)
            };
            let piece = target.message_bytes_max;
            if is_planted(Mutant::ResendLaterPieces) && buf.len > piece {
                whole.remote_addr += u64::from(piece);
                whole.sge.addr += u64::from(piece);
                whole.sge.length -= piece;
            }
            post_single(verbs, &mut route.backlog, target, &whole, at, only)
        } else if GROUP_NREQS.contains(&nreqs) {
            let mut group = Group::new(target);
            group.begin(nreqs, first);
            for (r, entry) in entries.iter_mut().enumerate().take(nreqs) {
                let (room, buf) = (slots.seen(r).room(), entry.value.0);
                if !fits(&room, buf.len) {
                    return Err(self.base.fail(Error::Unexpected));
                }
                entry.rearm(target.qps);
                let _ = group.add(&buf, &room);
            }
            route.grouped += nreqs as u64;
            let (_, start) = group.finish(verbs, target, at);
            post_parts(verbs, &mut route.backlog, group.wrs(), group.order(), start, at)
        } else {
            return Err(self.base.fail(Error::Unexpected));
        };
        match posted {
            Ok(()) => Ok(()),
            Err(error) => self.base.rail_refused(error),
        }
    }
}
