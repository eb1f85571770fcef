//! Sends of messages that go in groups.

use super::SendComm;
use crate::comm::base::{Base, Failed, Gate, Usual};
use crate::comm::group::Group;
use crate::comm::post::post_parts;
use crate::comm::{Request, SendBuf};
use crate::conn::Stream;
use crate::error::Error;
use crate::fifo::{LEN_MAX, RECVS_MAX, Room, Row};
use crate::nic::{Memory, Nic};

/// Slots of a row that is matched as a group. One of its own ends by size, not by a group's bits.
pub(super) const GROUP_NREQS: core::ops::RangeInclusive<usize> = 2..=RECVS_MAX;

impl<N: Nic, S: Stream> SendComm<N, S> {
    /// Begins to match the row at the head, which [`SendComm::match_usual`] has found to have several
    /// slots, once all of them are there and all requests are free.
    #[inline(always)]
    pub fn begin_group(&mut self) -> Usual<()> {
        let Self { base: Base { reqs, route, verbs, gate, .. }, group, .. } = self;
        let Some(row) = Row::of(verbs.control.words(), self.row) else { return Usual::NotYet };
        let Some(slot) = row.load(0, self.idx) else { return Usual::NotYet };
        let nreqs = slot.nreqs_tag().0 as usize;
        if !GROUP_NREQS.contains(&nreqs) {
            return Usual::Unusual;
        }
        if !Group::is_there(&row, nreqs, self.idx) {
            return Usual::NotYet;
        }
        if route.grouped + nreqs as u64 > u64::from(self.row_mask) + 1 {
            return Usual::NotYet;
        }
        let first = reqs.next();
        if !reqs.is_row_free(first.raw()) {
            return Usual::Unusual;
        }
        group.begin(nreqs, first);
        *gate = Gate::Group;
        Usual::Done(())
    }

    /// Matches a message of the group at the head, of `len` bytes, however many, if it is the next
    /// one of those. If they are all there then, [`SendComm::post_group`] must be called next.
    #[inline(always)]
    pub fn match_in_group(&mut self, addr: u64, len: u64, lkey: u32, tag: u32) -> Usual<Request> {
        let Self { base: Base { verbs, gate, .. }, group, .. } = self;
        if *gate != Gate::Group {
            return Usual::Unusual;
        }
        // One at a time, so that each is a branch that is not taken. Neither none nor too many.
        if len.wrapping_sub(1) >= u64::from(LEN_MAX) {
            return Usual::Unusual;
        }
        let Some(row) = Row::of(verbs.control.words(), self.row) else { return Usual::Unusual };
        let slot = row.seen(group.next());
        if slot.tag() != tag {
            return Usual::Unusual;
        }
        let (room, len) = (slot.room(), len as u32);
        if !room.holds(len) {
            return Usual::Unusual;
        }
        if room.addr == 0 {
            return Usual::Unusual;
        }
        if room.rkey == 0 {
            return Usual::Unusual;
        }
        Usual::Done(self.add_to_group(&SendBuf { addr, len, lkey }, &room))
    }

    /// Whether the group that is being matched has all its messages.
    #[inline(always)]
    pub fn is_group_complete(&self) -> bool {
        self.group.is_complete()
    }

    /// Sends the group that is complete since the call before this.
    ///
    /// # Errors
    /// [`Error::Nic`].
    #[inline(always)]
    pub fn post_group(&mut self) -> Result<(), Error> {
        match self.send_group() {
            Ok(()) => Ok(()),
            Err(failed) => Err(self.base.error(failed)),
        }
    }

    /// Goes on with [`SendComm::isend`] in a group.
    #[inline(always)]
    pub(super) fn isend_in_group(
        &mut self,
        buf: &SendBuf,
        tag: u32,
    ) -> Result<Option<Request>, Error> {
        match self.match_in_group(buf.addr, buf.len.into(), buf.lkey, tag) {
            Usual::Done(request) => {
                if self.is_group_complete() {
                    self.post_group()?;
                }
                Ok(Some(request))
            }
            Usual::NotYet => Ok(None),
            Usual::Unusual => self.isend_unusual(buf, tag),
        }
    }

    /// Adds the message of the next buffer to the group at the head; gives its request.
    #[inline(always)]
    fn add_to_group(&mut self, buf: &SendBuf, room: &Room) -> Request {
        let Self { base: Base { reqs, .. }, group, target, .. } = self;
        let request = group.add(buf, room);
        let entry = reqs.at(request.raw());
        entry.arm(request.raw(), target.qps);
        entry.value.len = buf.len;
        request
    }

    /// Matches any message of the group at the head.
    pub(super) fn send_in_group(
        &mut self,
        buf: &SendBuf,
        tag: u32,
    ) -> Result<Option<Request>, Failed> {
        let Some(row) = self.row() else { return Ok(None) };
        let Some((r, slot)) = self.group.find(&row, tag) else { return Ok(None) };
        let room = slot.room();
        if let Err((what, value)) = room.check() {
            return Err(self.bad_slot(what, value));
        }
        let len = self.fit(buf.len, tag, room.size as u32)?;
        self.group.prefer(r);
        if len == 0 {
            self.group.leave_out();
        }
        let request = self.add_to_group(&SendBuf { len, ..*buf }, &room);
        if self.is_group_complete() {
            self.send_group()?;
        }
        Ok(Some(request))
    }

    /// Sends the group, each message of which is there.
    #[inline(always)]
    fn send_group(&mut self) -> Result<(), Failed> {
        let Self { base: Base { route, verbs, .. }, group, target, .. } = self;
        route.grouped += group.nreqs() as u64;
        let is_whole = group.is_full() && target.qps == 1;
        let (list, start) = group.finish(verbs, target, self.row);
        if !is_whole {
            self.post_group_parts(start)?;
        } else if let Err(error) = verbs.nic.post_list(&verbs.qp, list, start) {
            return Err(self.base.nic_failed(error));
        }
        self.base.gate = Gate::Open;
        self.advance();
        Ok(())
    }

    /// Posts a group whose messages are not one work request each.
    #[inline(never)]
    fn post_group_parts(&mut self, start: usize) -> Result<(), Failed> {
        let Self { base: Base { verbs, .. }, group, .. } = self;
        let posted = post_parts(verbs, group.wrs(), start);
        posted.map_err(|error| self.base.nic_failed(error))
    }
}
