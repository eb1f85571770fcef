//! Sends into grouped receives.

use core::ptr;

use super::SendComm;
use crate::comm::base::{Base, Failed, Gate};
use crate::comm::fast::Fast;
use crate::comm::group::Group;
use crate::comm::post::post_parts;
use crate::comm::route::Sending;
use crate::comm::{Request, SendBuf};
use crate::conn::Stream;
use crate::fifo::{LEN_MAX, RECVS_MAX, Room, Row};
use crate::nic::{Memory, Nic, Refused};

/// Numbers of slots of a row that is matched as a group. A message in a row of one slot ends with its
/// size as immediate, not with a group's bits.
pub(super) const GROUP_NREQS: core::ops::RangeInclusive<usize> = 2..=RECVS_MAX;

impl<N: Nic, S: Stream> SendComm<N, S> {
    /// Begins to match the row at the head, which has `nreqs` slots, 2 to 8. The row must be complete
    /// and all its requests free. Returns [`Fast::Slow`] if a request is not free.
    #[inline(always)]
    pub(super) fn begin_group(&mut self, nreqs: usize) -> Fast<()> {
        let Self { base: Base { reqs, route, verbs, gate, .. }, group, .. } = self;
        let Some(row) = Row::of(verbs.control.words(), self.row) else { return Fast::Pending };
        if !Group::is_there(&row, nreqs, self.idx) {
            return Fast::Pending;
        }
        if route.grouped + nreqs as u64 > u64::from(self.row_mask) + 1 {
            return Fast::Pending;
        }
        let first = reqs.next();
        if !reqs.is_row_free(first.raw()) {
            return Fast::Slow;
        }
        group.begin(nreqs, first);
        *gate = Gate::Group;
        Fast::Done(())
    }

    /// The fast path of [`SendComm::isend`] for the next message of a group that has begun; see
    /// [`SendComm::isend_fast`]. The last message of the group posts all of them.
    #[inline(always)]
    pub fn isend_grouped_fast(
        &mut self,
        buf: &SendBuf,
        tag: u32,
        started: impl FnOnce(Request),
    ) -> Fast<()> {
        let Some(request) = self.match_next(buf, tag) else { return Fast::Slow };
        started(request);
        if self.group.is_complete() {
            // The tests of the group's requests tell of a failure.
            let _ = self.send_group();
        }
        Fast::Done(())
    }

    /// Adds the next message of a group that has begun, if the slot in turn is for this message.
    #[inline(always)]
    pub(super) fn match_next(&mut self, buf: &SendBuf, tag: u32) -> Option<Request> {
        if N::RAILS_MAX > 1 || self.base.gate != Gate::Group {
            return None;
        }
        let row = Row::of(self.base.verbs.control.words(), self.row)?;
        let slot = row.seen(self.group.next());
        // An empty message has no work request, so the slow path adds it.
        let has_bytes = buf.len.wrapping_sub(1) < LEN_MAX;
        if slot.tag() != tag || !has_bytes {
            return None;
        }
        let room = slot.room();
        if !room.holds(buf.len) || room.addr == 0 || room.rkey == 0 {
            return None;
        }
        Some(self.add_to_group(buf, &room))
    }

    /// Begins to match the row at the head, if this row is a complete group. Returns whether it has begun
    /// one. [`SendComm::isend`] does this by itself. A caller of [`SendComm::isend_grouped_fast`] may do it
    /// in a function of its own, because it takes more registers than the fast path.
    #[inline(always)]
    pub fn begin_next_group(&mut self) -> bool {
        if N::RAILS_MAX > 1 || self.base.gate != Gate::Open {
            return false;
        }
        let nreqs = self.slot().map_or(0, |slot| slot.nreqs_tag().0 as usize);
        GROUP_NREQS.contains(&nreqs) && self.begin_group(nreqs) == Fast::Done(())
    }

    /// Matches any message of the group at the head.
    pub(super) fn send_in_group(
        &mut self,
        buf: &SendBuf,
        tag: u32,
    ) -> Result<Option<Request>, Failed> {
        let row = Row::of(self.base.verbs.control.words(), self.row);
        let Some(row) = row else { return Ok(None) };
        let Some(slot) = self.group.select(&row, tag) else { return Ok(None) };
        let room = slot.room();
        if let Err((what, value)) = room.check() {
            return Err(self.bad_slot(what, value));
        }
        let len = self.fit(buf.len, tag, room.size as u32)?;
        let request = self.add_to_group(&SendBuf { len, ..*buf }, &room);
        if self.group.is_complete() {
            self.send_group()?;
        }
        Ok(Some(request))
    }

    /// Adds the message of the group's next buffer, with destination `room`.
    #[inline(always)]
    fn add_to_group(&mut self, buf: &SendBuf, room: &Room) -> Request {
        let Self { base: Base { reqs, .. }, group, target, .. } = self;
        let request = group.add(buf, room);
        let entry = reqs.at(request.raw());
        entry.arm(request.raw(), target.qps);
        entry.value = Sending(*buf);
        request
    }

    /// Sends the group, all of whose messages are matched.
    #[inline(never)]
    pub(super) fn send_group(&mut self) -> Result<(), Failed> {
        let Self { base: Base { route, verbs, refusal, .. }, group, target, .. } = self;
        route.grouped += group.nreqs() as u64;
        let is_whole =
            N::RAILS_MAX == 1 && group.is_full(target.message_bytes_max) && target.qps == 1;
        let (list, start) = group.finish(verbs, target, self.row);
        if !is_whole {
            return self.post_group_parts(start);
        }
        if let Err(refused) = verbs.nic.post_list(&verbs.qp, list, start, refusal) {
            return Err(self.group_refused(refused));
        }
        self.base.gate = Gate::Open;
        self.advance();
        Ok(())
    }

    /// Fails a call because the NIC refused the group.
    #[cold]
    #[inline(never)]
    fn group_refused(&mut self, refused: Refused) -> Failed {
        let wrs = self.group.wrs().get(self.group.start()..).unwrap_or_default();
        let qp = ptr::from_ref(&self.base.verbs.qp);
        self.base.refused(qp, wrs, refused)
    }

    /// Posts a group that has an empty message or one of several work requests, or that goes over several queue
    /// pairs.
    #[inline(never)]
    fn post_group_parts(&mut self, start: usize) -> Result<(), Failed> {
        let Self { base: Base { verbs, gate, reqs, route, .. }, group, row, target, .. } = self;
        if N::RAILS_MAX > 1 {
            // An attempt may have changed the number of queue pairs since the first message was matched.
            let entries = reqs.row(group.first()).iter_mut();
            entries.filter(|entry| entry.is_awaiting()).for_each(|entry| entry.rearm(target.qps));
        }
        let backlog = &mut route.backlog;
        let posted = post_parts(verbs, backlog, group.wrs(), group.order(), start, *row);
        *gate = Gate::Open;
        if let Err(error) = posted {
            self.base.rail_refused(error)?;
        }
        self.advance();
        Ok(())
    }
}
