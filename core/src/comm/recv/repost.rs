//! The receiver's part of a recovery: it posts the receives again that wait for data, and writes the
//! slots again that the sender has not used.

use super::RecvComm;
use super::rails::{post_recvs, post_row_of_rails};
use crate::comm::base::{Base, Failed, Gate};
use crate::comm::control::Control;
use crate::comm::post::{only_qp, qps_of};
use crate::comm::recover::Recovering;
use crate::conn::Stream;
use crate::error::Error;
use crate::fifo::Row;
use crate::mutant::{Mutant, is_planted};
use crate::nic::{Memory, Nic, RecvWr};
use crate::stall::PathRows;

impl<N: Nic, S: Stream> RecvComm<N, S> {
    /// Continues a recovery; see [`recovery`](crate::comm::recovery).
    #[cold]
    pub(in crate::comm) fn recover(&mut self, now_ns: u64) -> Result<(), Failed> {
        while self.base.gate == Gate::Recovering {
            let (posted, depth) = (self.rows_posted(), self.depth as u64);
            match self.base.recover(now_ns, posted, depth)? {
                Recovering::Waiting => return Ok(()),
                Recovering::Started { rows } => self.post_again(rows)?,
                Recovering::Resumed { rows } => self.write_again(rows)?,
            }
        }
        Ok(())
    }

    /// Answers the peer's question about its rows, and looks whether the peer has this end's slots.
    #[cold]
    pub(in crate::comm) fn look_at_path(&mut self, now_ns: u64) {
        if self.base.gate == Gate::Failed {
            return;
        }
        let (said, depth) = (self.rows_posted(), self.depth as u64);
        let Base { reqs, route, path, .. } = &mut self.base;
        // Most looks find an end at rest.
        let first = path.done.max(said.saturating_sub(depth));
        let over = route.rows_arrived(reqs, first..said, depth);
        path.done = over;
        if let Some(asked) = self.base.path.owes_answer.take() {
            self.base.line.send(&Control::Seen { rows: over.min(asked) });
        }
        self.base.look_at_path(now_ns, PathRows { said, over, bytes: 0 }, true);
    }

    /// Posts the receives of all rows that have not arrived. The peer has sent `rows_sent` rows.
    fn post_again(&mut self, rows_sent: u64) -> Result<(), Failed> {
        let (posted, depth) = (self.rows_posted(), self.depth as u64);
        let arrived = self.rows_arrived();
        if !(arrived..=posted).contains(&rows_sent) {
            return Err(self.base.fail(Error::Unexpected));
        }
        if self.base.has_rails() && !is_planted(Mutant::WriteToOldRail) {
            self.move_slots();
        }
        let Base { reqs, verbs, route, .. } = &mut self.base;
        for row in posted.saturating_sub(depth)..posted {
            let has_overtaken = N::RAILS_MAX > 1 && !is_planted(Mutant::AwaitOvertaking);
            let has_arrived = row < arrived || has_overtaken && route.has_arrived(reqs, row, depth);
            let entry = reqs.at((row % depth) as u32);
            // The signaled write of slots completes only if the slots are written again.
            let is_signaled = row % depth == 0;
            let is_rewritten = row >= rows_sent;
            if is_signaled && !is_planted(Mutant::AwaitOldSlots) {
                route.turns_written = row / depth + u64::from(!is_rewritten);
            }
            if has_arrived {
                if entry.is_awaiting() {
                    entry.finish();
                }
                continue;
            }
            let awaits_old = is_planted(Mutant::AwaitOldSlots);
            let nreqs = 1 + entry.value.others() as usize;
            let only = only_qp(verbs, row, nreqs, entry.value.sizes[0]);
            entry.rearm(
                qps_of(verbs, only) + u32::from(is_signaled && (is_rewritten || awaits_old)),
            );
            if row == arrived && is_planted(Mutant::RepostTooFew) {
                continue;
            }
            let [slots] = entry.value.slots.wrs();
            let recv = RecvWr { wr_id: slots.wr_id, ..RecvWr::default() };
            if let Err(error) = post_recvs(verbs, &recv, only) {
                return self.base.rail_refused(error);
            }
        }
        Ok(())
    }

    /// Writes the slots of all rows again that the peer has not sent.
    fn write_again(&mut self, rows_sent: u64) -> Result<(), Failed> {
        let (posted, depth) = (self.rows_posted(), self.depth as u64);
        let Base { reqs, verbs, refusal, .. } = &mut self.base;
        let first = rows_sent + u64::from(is_planted(Mutant::RewriteTooFew));
        for row in first..posted {
            if is_planted(Mutant::RewriteOldIdx)
                && let Some(shadow) = Row::of(verbs.control.words(), (row % depth) as u8)
            {
                shadow.store_idx(0, (row + 1).saturating_sub(depth));
            }
            let slots = &mut reqs.at((row % depth) as u32).value.slots;
            if verbs.has_rails() {
                if let Err(error) = post_row_of_rails(verbs, slots, (row % depth) as usize) {
                    return self.base.rail_refused(error);
                }
                continue;
            }
            if let Err(refused) = verbs.nic.post_list(&verbs.qp, slots, 0, refusal) {
                let error = refusal.take(refused, &verbs.nic, &verbs.qp, slots.wrs());
                return Err(self.base.nic_failed(error));
            }
        }
        Ok(())
    }
}
