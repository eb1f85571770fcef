//! The sending end (`net_ib.cc ncclIbIsend`, `ncclIbTest`).

mod closed;
mod grouped;
mod resend;
mod stall;

use core::ptr;

use grouped::GROUP_NREQS;

use super::Request;
use super::base::{Base, Failed, Gate, Settled};
use super::fast::Fast;
use super::group::Group;
use super::post::{SendTarget, only_qp, post_single, qps_of, with_imm};
use super::route::{Sending, Sent};
use super::row_keys::SlotKeys;
use super::send_buf::SendBuf;
use crate::conn::stage::Stage;
use crate::conn::{Parts, Stream, start_with_acceptor};
use crate::error::Error;
use crate::fifo::{LEN_MAX, RECVS_MAX, Room, Row, SlotWords};
use crate::nic::{Memory, Nic, NumSge, Refused, SendList, SendWr, Sge};
use crate::request::{MESSAGES, RequestRing};
use crate::stall::Role;

/// The sending end of a connection.
pub struct SendComm<N: Nic, S> {
    pub(super) base: Base<N, S, Sent, Sending, MESSAGES>,
    /// `idx` of the row at the FIFO's head: the number of rows matched and sent, plus one.
    idx: u64,
    /// Index of the row at the FIFO's head.
    row: u8,
    row_mask: u8,
    /// The work request of an ungrouped message.
    wr: SendList<1>,
    /// The work request that ends such a message on the other queue pairs, if the first one carries all
    /// its data.
    tail: SendList<1>,
    pub(super) target: SendTarget,
    pub(super) group: Group,
    /// Whether the comm has already evaluated the peer's close notice.
    has_heeded: bool,
}

impl<N: Nic, S: Stream> SendComm<N, S> {
    pub(crate) fn new(parts: Parts<N, S>) -> Self {
        let offered = usize::from(parts.verbs.settings.depth());
        let depth = parts.peer.as_ref().map_or(offered, |peer| usize::from(peer.fifo_depth));
        let sizes = parts.peer.as_ref().and_then(|peer| peer.sizes);
        let target = SendTarget::new(&parts.verbs, sizes);
        let reqs = RequestRing::new(depth * RECVS_MAX, |_| Sending::default());
        let base = Base::new(parts, Role::Sender, reqs, Sent::new());
        SendComm {
            base,
            idx: 1,
            row: 0,
            row_mask: (depth - 1) as u8,
            wr: SendList::new([SendWr { num_sge: NumSge::One, ..with_imm(0, 0) }]),
            tail: SendList::new([with_imm(0, 0)]),
            group: Group::new(&target),
            target,
            has_heeded: false,
        }
    }

    /// Starts to send `buf` if the peer has posted a receive for `tag`. Returns `None` if there is no
    /// such receive, or if no request is free: call again.
    ///
    /// The buffer belongs to the NIC until `test` says that the request is done. A send into a group of
    /// receives starts when all sends of the group are matched.
    ///
    /// # Errors
    /// [`Error::SizeMismatch`] if the receive is shorter and `truncate` is not set; the comm stays
    /// usable. Any connection error is final: every later call returns the same error.
    #[inline(always)]
    pub fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Error> {
        let mut started = None;
        match self.isend_fast(buf, tag, |request| started = Some(request)) {
            Fast::Done(()) if self.base.gate == Gate::Failed => Err(self.base.error(Failed)),
            Fast::Done(()) => Ok(started),
            Fast::Pending => Ok(None),
            Fast::Slow => self.isend_slow(buf, tag).map_err(|failed| self.base.error(failed)),
        }
    }

    /// The number of bytes of the receive that a send with `tag` would meet now. Returns `None` if the
    /// peer has posted no receive, or if its next receive is for other tags.
    ///
    /// # Errors
    /// The error that ended the connection, which every call repeats.
    pub fn room(&mut self, tag: u32) -> Result<Option<u32>, Error> {
        if !self.base.gate.is_open() {
            match self.pass() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(failed) => return Err(self.base.error(failed)),
            }
        }
        let (Some(row), Some(first)) = (self.row(), self.slot()) else { return Ok(None) };
        let met = if self.base.gate == Gate::Group {
            self.group.find(&row, tag).map(|(_, slot)| slot)
        } else {
            let nreqs = (first.nreqs_tag().0 as usize).min(RECVS_MAX);
            let is_there = Group::is_there(&row, nreqs, self.idx);
            (0..nreqs).map(|r| row.seen(r)).find(|slot| is_there && slot.tag() == tag)
        };
        Ok(met.map(|slot| slot.room().size as u32))
    }

    /// Tests whether a send is done. If it is done, `test` returns the number of bytes sent, and
    /// `request` is over.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], or the error that ended the connection, which every call repeats.
    #[inline(always)]
    pub fn test(&mut self, request: &Request) -> Result<Option<u32>, Error> {
        match self.base.test(request) {
            Fast::Done(len) => Ok(Some(len)),
            Fast::Pending => Ok(None),
            Fast::Slow => self.test_slow(request).map_err(|failed| self.base.error(failed)),
        }
    }

    /// The fast path of [`SendComm::test`], for a request of one size, with at most one poll of each rail.
    /// [`Fast::Done`] gives the bytes sent, and `request` is over.
    #[inline(always)]
    pub fn test_fast(&mut self, request: &Request) -> Fast<u32> {
        self.base.test_fast(request)
    }

    /// The number of sends that have started and were not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.base.reqs.live()
    }

    /// The number of the peer's receives that this comm has matched.
    pub fn rows_sent(&self) -> u64 {
        self.idx - 1
    }

    /// The slow path of [`SendComm::test`].
    #[inline(never)]
    fn test_slow(&mut self, request: &Request) -> Result<Option<u32>, Failed> {
        let token = request.raw();
        match self.base.settle(token) {
            Settled::Pending => Ok(None),
            Settled::Done => {
                let len = self.base.reqs.at(token).value.0.len;
                self.base.bytes += u64::from(len);
                Ok(Some(len))
            }
            Settled::Unknown if self.heed_notice() => self.test_slow(request),
            Settled::Unknown => Err(self.base.unsettled(token)),
        }
    }

    /// The row at the FIFO's head.
    #[inline(always)]
    fn row(&self) -> Option<Row<'_>> {
        Row::of(self.base.verbs.control.words(), self.row)
    }

    /// The first slot of the row at the head, once the peer has written the slot.
    #[inline(always)]
    fn slot(&self) -> Option<SlotWords<'_>> {
        self.row()?.load(0, self.idx)
    }

    /// Moves the head past a row that was sent, and takes the row's requests.
    #[inline(always)]
    fn advance(&mut self) {
        self.base.reqs.advance_row();
        self.idx += 1;
        self.row = self.row.wrapping_add(1) & self.row_mask;
    }

    /// The fast path of [`SendComm::isend`], for a message whose row has one slot, if one queue pair carries
    /// the message in one work request. `started` gets the request before the message is posted, so that a
    /// caller keeps nothing for it meanwhile. If posting fails, the test of the request fails too.
    #[inline(always)]
    pub fn isend_fast(
        &mut self,
        buf: &SendBuf,
        tag: u32,
        started: impl FnOnce(Request),
    ) -> Fast<()> {
        if self.base.gate != Gate::Open {
            return Fast::Slow;
        }
        let Some(slot) = self.slot() else { return Fast::Pending };
        if !slot.is_single(tag) {
            return if slot.nreqs_tag().0 == 1 { Fast::Pending } else { Fast::Slow };
        }
        let room = slot.room();
        // An empty message has no scatter/gather entry, so the slow path posts it.
        let is_whole = u64::from(buf.len).wrapping_sub(1) < self.target.whole_bytes_max;
        if !is_whole || !room.holds(buf.len) || room.addr == 0 || room.rkey == 0 {
            return Fast::Slow;
        }
        let verbs = &self.base.verbs;
        let only = only_qp(verbs, self.idx - 1, 1, room.size as u32);
        let qp = only.map_or(&verbs.qp, |only| verbs.data_qp(only));
        let mut rkey = room.rkey;
        if self.base.has_rails() {
            let key = only.and_then(|_| self.key_on(verbs.nic.rail_of(qp), rkey));
            let Some(key) = key else { return Fast::Slow };
            rkey = key;
        }
        let Some((request, entry)) = self.base.reqs.next_free() else { return Fast::Slow };
        entry.value = Sending(*buf);
        entry.arm(request.raw(), if only.is_some() { 1 } else { self.target.qps });
        let lkey = verbs.lkey_for(qp, buf.lkey);
        let mut wr = self.wr.wr(0);
        wr.set_id(request.raw().into());
        wr.set_remote(room.addr, rkey);
        wr.set_sge(Sge { addr: buf.addr, length: buf.len, lkey });
        wr.set_imm(buf.len);
        started(request);
        match only {
            Some(only) => self.post_on_one_rail(only),
            None => self.post_whole(),
        }
        Fast::Done(())
    }

    /// The slow path of [`SendComm::isend`]. Most such messages belong to a group.
    #[inline(never)]
    fn isend_slow(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Failed> {
        self.begin_next_group();
        let Some(request) = self.match_next(buf, tag) else { return self.isend_any(buf, tag) };
        if self.group.is_complete() {
            self.send_group()?;
        }
        Ok(Some(request))
    }

    /// Sends a message that no fast path can send.
    #[inline(never)]
    fn isend_any(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Failed> {
        if self.base.gate == Gate::Group {
            return self.send_in_group(buf, tag);
        }
        if self.base.gate != Gate::Open && !self.pass()? {
            return Ok(None);
        }
        let Some(first) = self.slot() else { return Ok(None) };
        if self.base.has_rails() && !self.has_keys(first.nreqs_tag().0 as usize) {
            return Ok(None);
        }
        match first.nreqs_tag() {
            (1, of) if of == tag => {
                let room = first.room();
                if let Err((what, value)) = room.check() {
                    return Err(self.bad_slot(what, value));
                }
                let len = self.fit(buf.len, tag, room.size as u32)?;
                self.send_single(&SendBuf { len, ..*buf }, tag, room)
            }
            (1, _) => Ok(None),
            (nreqs, _) if !GROUP_NREQS.contains(&(nreqs as usize)) => {
                Err(self.bad_slot("a group of", nreqs.into()))
            }
            (nreqs, _) => match self.begin_group(nreqs as usize) {
                Fast::Done(()) => self.send_in_group(buf, tag),
                Fast::Pending => Ok(None),
                Fast::Slow => self.send_around(buf, tag),
            },
        }
    }

    /// Sends an ungrouped message that fits the receive, in as many work requests as needed.
    fn send_single(
        &mut self,
        buf: &SendBuf,
        tag: u32,
        room: Room,
    ) -> Result<Option<Request>, Failed> {
        let Some((request, entry)) = self.base.reqs.next_free() else {
            return self.send_around(buf, tag);
        };
        let only = only_qp(&self.base.verbs, self.idx - 1, 1, room.size as u32);
        entry.arm(request.raw(), qps_of(&self.base.verbs, only));
        entry.value = Sending(*buf);
        let whole = SendWr {
            remote_addr: room.addr,
            rkey: room.rkey,
            sge: Sge { addr: buf.addr, length: buf.len, lkey: buf.lkey },
            ..with_imm(request.raw(), buf.len)
        };
        let Self { base: Base { verbs, route, .. }, target, row, .. } = self;
        if let Err(error) = post_single(verbs, &mut route.backlog, target, &whole, *row, only) {
            self.base.rail_refused(error)?;
        }
        self.advance();
        Ok(Some(request))
    }

    /// Whether the keys of the row at the head have arrived, for all rails.
    #[inline(always)]
    fn has_keys(&self, nreqs: usize) -> bool {
        let words = self.base.verbs.control.words();
        let mut slots = 0..nreqs.min(RECVS_MAX);
        let keys = |r| SlotKeys::of(words, self.row.into(), nreqs, r);
        slots.all(|r| keys(r).is_some_and(|keys| keys.are_there(self.idx)))
    }

    /// The key on a rail of the buffer of the row at the head. The row has one slot, whose own key is `first`.
    /// Returns `None` if the row's keys have not arrived.
    #[inline(always)]
    fn key_on(&self, rail: usize, first: u32) -> Option<u32> {
        let words = self.base.verbs.control.words();
        let keys = SlotKeys::of(words, self.row.into(), 1, 0)?;
        keys.are_there(self.idx).then(|| keys.key(rail, first))
    }

    /// Posts the message of its own that is laid out, and takes its row: all of it on the first
    /// queue pair, nothing on the others.
    #[inline(always)]
    fn post_whole(&mut self) {
        let Self { base: Base { verbs, refusal, .. }, wr, .. } = self;
        if let Err(refused) = verbs.nic.post_list(&verbs.qp, wr, 0, refusal) {
            self.whole_refused(refused);
            return;
        }
        if !verbs.other_qps.is_empty() && self.post_on_others().is_err() {
            return;
        }
        self.advance();
    }

    /// Posts the message of its own that is laid out on the queue pair that takes its row, and takes the row. If
    /// the NIC refuses it, an attempt on the other rails posts it again.
    #[inline(always)]
    fn post_on_one_rail(&mut self, only: usize) {
        let Self { base: Base { verbs, refusal, .. }, wr, .. } = self;
        if let Err(refused) = verbs.nic.post_list(verbs.data_qp(only), wr, 0, refusal)
            && self.refused_on_rail(only, refused).is_err()
        {
            return;
        }
        self.advance();
    }

    /// Goes on after the NIC has refused a message on the queue pair with the index `only`.
    #[cold]
    #[inline(never)]
    fn refused_on_rail(&mut self, only: usize, refused: Refused) -> Result<(), Failed> {
        let Base { verbs, refusal, .. } = &mut self.base;
        let error = refusal.take(refused, &verbs.nic, verbs.data_qp(only), self.wr.wrs());
        self.base.rail_refused(error)
    }

    /// Posts the end of the message on all queue pairs but the first.
    #[inline(never)]
    fn post_on_others(&mut self) -> Result<(), Failed> {
        let Self { base: Base { verbs, refusal, .. }, wr, tail, .. } = self;
        let [wr] = wr.wrs();
        let mut end = tail.wr(0);
        end.set_id(wr.wr_id);
        end.set_imm(wr.imm_data);
        for qp in &verbs.other_qps {
            if let Err(refused) = verbs.nic.post_list(qp, tail, 0, refusal) {
                let qp = ptr::from_ref(qp);
                return Err(self.tail_refused(qp, refused));
            }
        }
        Ok(())
    }

    /// Fails a call because the NIC refused the message of its own that is laid out.
    #[cold]
    #[inline(never)]
    fn whole_refused(&mut self, refused: Refused) -> Failed {
        let qp = ptr::from_ref(&self.base.verbs.qp);
        self.base.refused(qp, self.wr.wrs(), refused)
    }

    /// Fails a call because the NIC refused the end of such a message on the queue pair at the address `qp`.
    #[cold]
    #[inline(never)]
    fn tail_refused(&mut self, qp: *const N::Qp, refused: Refused) -> Failed {
        self.base.refused(qp, self.tail.wrs(), refused)
    }

    /// Continues at the start of the ring of requests, if `next` has reached the ring's end.
    #[cold]
    #[inline(never)]
    fn send_around(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Failed> {
        if self.base.reqs.come_around() { self.isend_slow(buf, tag) } else { Ok(None) }
    }

    /// Returns how many of `len` bytes to send into a receive of `room` bytes.
    fn fit(&mut self, len: u32, tag: u32, room: u32) -> Result<u32, Failed> {
        if len <= room {
            Ok(len)
        } else if len > LEN_MAX {
            Err(self.base.fail(Error::TooLong(len)))
        } else if self.base.verbs.settings.truncate {
            Ok(room)
        } else {
            Err(self.base.fail(Error::SizeMismatch { local: len, remote: room, tag }))
        }
    }

    #[cold]
    #[inline(never)]
    fn bad_slot(&mut self, what: &'static str, value: u64) -> Failed {
        self.base.fail(Error::Slot { what, value, idx: self.idx })
    }

    /// Handles a send when the gate is not open. On the wire of NCCL 2.14 this finishes the exchange
    /// (`net_ib.cc ncclSendCheck`). Returns whether the exchange is over.
    #[cold]
    fn pass(&mut self) -> Result<bool, Failed> {
        match self.base.gate {
            Gate::Pending => {}
            Gate::Recovering => return Ok(false),
            _ => return Err(self.base.refuse()),
        }
        self.exchange().map_err(|error| self.base.fail(error))
    }

    /// Continues the exchange of connection data. Returns whether it is over.
    pub(in crate::comm) fn exchange(&mut self) -> Result<bool, Error> {
        let Base { line, verbs, ends, pending, .. } = &mut self.base;
        let stream = line.stream_mut();
        let Some(exchange) = pending else { return Ok(true) };
        if ends.peer_qpn == 0 && start_with_acceptor(stream, exchange, verbs, ends)?.is_none() {
            return Ok(false);
        }
        if !exchange.send(stream, Stage::PendingReady)? {
            return Ok(false);
        }
        *pending = None;
        self.base.gate = Gate::Open;
        Ok(true)
    }
}
