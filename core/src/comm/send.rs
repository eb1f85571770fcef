//! The sending end (`net_ib.cc ncclIbIsend`, `ncclIbTest`).

use core::hint::cold_path;

use super::Request;
use super::base::{Base, Failed, Gate, Settled, Usual};
use super::group::Group;
use super::post::{Target, post_single, with_imm};
use super::route::{Sending, Sent};
use crate::conn::stage::Stage;
use crate::conn::{Parts, Stream, start_with_acceptor};
use crate::error::{Ends, Error, Report};
use crate::fifo::{RECVS_MAX, Room, Row, SlotWords};
use crate::nic::{Memory, Nic, SendWr, Sge};
use crate::request::{MESSAGES, Ring};

/// Memory to send from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendBuf {
    /// First byte.
    pub addr: u64,
    /// Bytes, at most 2³¹ − 1; 0 is a message too.
    pub len: u32,
    /// Local key of the region that holds it.
    pub lkey: u32,
}

/// What the start of a send has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matched {
    /// A row of its own: [`SendComm::post_matched`] sends the message.
    Alone,
    /// A group that is being matched: [`SendComm::match_in_group`] looks for a place in it.
    Group,
}

/// The sending end of a connection.
pub struct SendComm<N: Nic, S> {
    base: Base<N, S, Sent, Sending, MESSAGES>,
    /// Of the row at the head of the FIFO: rows matched and sent, plus one.
    idx: u64,
    /// Which row that is.
    row: u8,
    row_mask: u8,
    /// Of a message of its own.
    wr: SendWr,
    target: Target,
    group: Group,
}

impl<N: Nic, S: Stream> SendComm<N, S> {
    pub(crate) fn new(parts: Parts<N, S>) -> Self {
        let offered = usize::from(parts.verbs.settings.depth());
        let depth = parts.peer.as_ref().map_or(offered, |peer| usize::from(peer.fifo_depth));
        let sizes = parts.peer.as_ref().and_then(|peer| peer.sizes);
        let target = Target::new(&parts.verbs, sizes);
        let reqs = Ring::new(depth * RECVS_MAX, |_| Sending { len: 0 });
        let base = Base::new(parts, reqs, Sent { grouped: 0 });
        SendComm {
            base,
            idx: 1,
            row: 0,
            row_mask: (depth - 1) as u8,
            wr: with_imm(0, 0),
            target,
            group: Group::new(),
        }
    }

    /// Starts to send `buf` if the peer has posted a receive for `tag`; otherwise, or where no
    /// request is free, `None`: call again.
    ///
    /// The buffer belongs to the NIC until `test` says that the request is done. A send into a
    /// group of receives starts when all of the group are matched.
    ///
    /// # Errors
    /// [`Error::SizeMismatch`] where the receive is shorter, unless `truncate` is set; the comm
    /// goes on. Others stay: every later call gives the same.
    #[inline(always)]
    pub fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Error> {
        match self.match_usual(buf, tag) {
            Usual::Done(Matched::Alone) => return self.post_matched().map(Some),
            Usual::Done(Matched::Group) => match self.match_in_group(buf, tag) {
                Usual::Done(request) => return Ok(Some(request)),
                Usual::NotYet => return Ok(None),
                Usual::Unusual => {}
            },
            Usual::NotYet => return Ok(None),
            Usual::Unusual => {}
        }
        match self.send_unusual(buf, tag) {
            Ok(request) => Ok(request),
            Err(failed) => Err(self.base.error(failed)),
        }
    }

    /// The start of [`SendComm::isend`]: looks at the head of the FIFO, and lays out the work
    /// request of a message of its own; then [`SendComm::post_matched`] must be called next.
    #[inline(always)]
    pub fn match_usual(&mut self, buf: &SendBuf, tag: u32) -> Usual<Matched> {
        if self.base.gate != Gate::Open {
            cold_path();
            let is_group = self.base.gate == Gate::Group;
            return if is_group { Usual::Done(Matched::Group) } else { Usual::Unusual };
        }
        let Some(slot) = self.slot() else { return Usual::NotYet };
        // One at a time, so that each is a branch that is not taken.
        if !slot.is_single(tag) {
            return Usual::Unusual;
        }
        let room = slot.room();
        if !room.holds(buf.len) {
            return Usual::Unusual;
        }
        if room.addr == 0 {
            return Usual::Unusual;
        }
        if room.rkey == 0 {
            return Usual::Unusual;
        }
        if buf.len > self.target.whole_bytes_max {
            return Usual::Unusual;
        }
        let next = self.base.reqs.next_free();
        let Some((request, entry)) = next else { return Usual::Unusual };
        entry.arm(request.raw(), self.target.qps);
        entry.value.len = buf.len;
        lay_out(&mut self.wr, &request, buf, &room);
        Usual::Done(Matched::Alone)
    }

    /// Sends the message that [`SendComm::match_usual`] has found alone, in the call before this.
    ///
    /// # Errors
    /// [`Error::Nic`].
    #[inline(always)]
    pub fn post_matched(&mut self) -> Result<Request, Error> {
        match self.post_whole() {
            Ok(request) => Ok(request),
            Err(failed) => Err(self.base.error(failed)),
        }
    }

    /// Matches a message of the group at the head; sends the group when it is the last.
    #[inline(always)]
    pub fn match_in_group(&mut self, buf: &SendBuf, tag: u32) -> Usual<Request> {
        if self.base.gate != Gate::Group {
            return Usual::Unusual;
        }
        let Some((r, room)) = self.group.find(tag) else { return Usual::NotYet };
        if buf.len > room {
            return Usual::Unusual;
        }
        match self.add(r, buf) {
            Ok(request) => Usual::Done(request),
            // The gate is shut: `send_unusual` says why.
            Err(Failed) => Usual::Unusual,
        }
    }

    /// Whether a send is done, and then how many bytes it sent; `request` is then over.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; or what ended the connection, the same on every call.
    #[inline(always)]
    pub fn test(&mut self, request: &Request) -> Result<Option<u32>, Error> {
        let mut usual = self.test_booked(request);
        if usual == Usual::NotYet {
            usual = self.test_polled(request);
        }
        match usual {
            Usual::Done(len) => Ok(Some(len)),
            Usual::NotYet => Ok(None),
            Usual::Unusual => {
                cold_path();
                match self.test_unusual(request) {
                    Ok(true) => Ok(Some(self.base.reqs.at(request.raw()).value.len)),
                    Ok(false) => Ok(None),
                    Err(failed) => Err(self.base.error(failed)),
                }
            }
        }
    }

    /// The start of [`SendComm::test`]: whether the request is done by the completions that were
    /// taken before. It takes no new ones; [`SendComm::test_polled`] does.
    #[inline(always)]
    pub fn test_booked(&mut self, request: &Request) -> Usual<u32> {
        self.base.test_booked(request.raw())
    }

    /// What follows on [`SendComm::test_booked`] where that gives [`Usual::NotYet`], as a rule:
    /// takes the completions that are there.
    #[inline(always)]
    pub fn test_polled(&mut self, request: &Request) -> Usual<u32> {
        self.base.test_polled(request.raw())
    }

    /// Looks whether the peer still has its end open, which an idle comm does not notice by
    /// itself. Costs a system call on hosts: for now and then.
    ///
    /// # Errors
    /// [`Error::PeerClosed`]. Requests that are complete can still be tested.
    pub fn check_peer(&mut self) -> Result<(), Error> {
        self.base.check_peer().map_err(|failed| self.base.error(failed))
    }

    /// Sends under way: started, and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.base.reqs.live()
    }

    /// Receives of the peer that were matched.
    pub fn rows_sent(&self) -> u64 {
        self.idx - 1
    }

    /// Both ends.
    pub fn ends(&self) -> &Ends {
        &self.base.ends
    }

    /// Numbers of its queue pairs, in the order in which both ends use them.
    pub fn qpns(&self) -> impl Iterator<Item = u32> {
        self.base.verbs.qps().map(|qp| self.base.verbs.nic.qp_num(qp))
    }

    /// Joins an error of this comm with both ends.
    pub fn report(&self, error: Error) -> Report<'_> {
        self.base.report(error)
    }

    /// As [`SendComm::test`], for all the rest; whether it is done.
    #[inline(never)]
    fn test_unusual(&mut self, request: &Request) -> Result<bool, Failed> {
        let token = request.raw();
        match self.base.settle(token) {
            Settled::Waiting => Ok(false),
            Settled::Done => Ok(true),
            Settled::Unknown => Err(self.base.unsettled(token)),
        }
    }

    /// Adds a message to the group at the head, and sends that if it is the last.
    #[inline(always)]
    fn add(&mut self, r: usize, buf: &SendBuf) -> Result<Request, Failed> {
        let request = self.group.first().message(r);
        let entry = self.base.reqs.at(request.raw());
        entry.arm(request.raw(), self.target.qps);
        entry.value.len = buf.len;
        self.group.add(r, buf);
        if self.group.is_complete() {
            self.send_group()?;
        }
        Ok(request)
    }

    /// The first slot of the row at the head, once that is there.
    #[inline(always)]
    fn slot(&self) -> Option<SlotWords<'_>> {
        Row::of(self.base.verbs.control.words(), self.row)?.load(0, self.idx)
    }

    /// The row at the head is sent, and its requests are taken.
    #[inline(always)]
    fn advance(&mut self) {
        self.base.reqs.advance_row();
        self.idx += 1;
        self.row = self.row.wrapping_add(1) & self.row_mask;
    }

    /// As [`SendComm::isend`], for all the rest.
    #[inline(never)]
    fn send_unusual(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Failed> {
        if self.base.gate == Gate::Group {
            return self.send_in_group(buf, tag);
        }
        if self.base.gate != Gate::Open && !self.pass()? {
            return Ok(None);
        }
        let Some(first) = self.slot() else { return Ok(None) };
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
            (nreqs, _) => self.start_group(nreqs, buf, tag),
        }
    }

    /// Sends a message of its own for which there is room.
    fn send_single(
        &mut self,
        buf: &SendBuf,
        tag: u32,
        room: Room,
    ) -> Result<Option<Request>, Failed> {
        let Some((request, entry)) = self.base.reqs.next_free() else {
            return self.send_around(buf, tag);
        };
        entry.arm(request.raw(), self.target.qps);
        entry.value.len = buf.len;
        lay_out(&mut self.wr, &request, buf, &room);
        self.post_split().map(Some)
    }

    /// Posts the message of its own that is laid out, and takes its row: all of it on the first
    /// queue pair, nothing on the others.
    #[inline(always)]
    fn post_whole(&mut self) -> Result<Request, Failed> {
        let Self { base: Base { verbs, .. }, wr, .. } = self;
        if let Err(error) = verbs.nic.post_send(&verbs.qp, core::slice::from_mut(wr)) {
            return Err(self.base.nic_failed(error));
        }
        if !verbs.other_qps.is_empty() {
            self.post_on_others()?;
        }
        self.advance();
        Ok(Request::of(self.wr.wr_id as u32))
    }

    /// Posts what ends the message on the other queue pairs.
    #[inline(never)]
    fn post_on_others(&mut self) -> Result<(), Failed> {
        let Self { base: Base { verbs, .. }, wr, .. } = self;
        wr.sge.length = 0;
        let mut qps = verbs.other_qps.iter();
        qps.try_for_each(|qp| verbs.nic.post_send(qp, core::slice::from_mut(wr)))
            .map_err(|error| self.base.nic_failed(error))
    }

    /// Posts the message of its own that is laid out, in however many work requests, and takes its
    /// row.
    #[inline(never)]
    fn post_split(&mut self) -> Result<Request, Failed> {
        let Self { base: Base { verbs, .. }, wr, target, .. } = self;
        let token = wr.wr_id as u32;
        if let Err(error) = post_single(verbs, target, wr) {
            return Err(self.base.nic_failed(error));
        }
        self.advance();
        Ok(Request::of(token))
    }

    /// Begins to match the row at the head, which has several slots, once all of them are there
    /// and all requests are free.
    #[inline(always)]
    fn start_group(
        &mut self,
        nreqs: u32,
        buf: &SendBuf,
        tag: u32,
    ) -> Result<Option<Request>, Failed> {
        let Self { base: Base { reqs, route, verbs, gate, .. }, group, .. } = self;
        let Some(row) = Row::of(verbs.control.words(), self.row) else { return Ok(None) };
        match group.load(&row, nreqs, self.idx) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err((what, value)) => return Err(self.bad_slot(what, value)),
        }
        let first = reqs.next();
        if !reqs.is_row_free(first.raw()) {
            return self.send_around(buf, tag);
        }
        if route.grouped + u64::from(nreqs) > u64::from(self.row_mask) + 1 {
            return Ok(None);
        }
        group.begin(first);
        *gate = Gate::Group;
        self.send_in_group(buf, tag)
    }

    /// Matches one message of the group at the head.
    #[inline(always)]
    fn send_in_group(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Failed> {
        let Some((r, room)) = self.group.find(tag) else { return Ok(None) };
        if buf.len > room {
            return self.send_cut(buf, tag, room);
        }
        self.add(r, buf).map(Some)
    }

    /// Sends the group, each message of which is there.
    #[inline(never)]
    fn send_group(&mut self) -> Result<(), Failed> {
        let Self { base: Base { route, verbs, .. }, group, .. } = self;
        route.grouped += group.nreqs() as u64;
        if let Err(error) = group.post(verbs, &self.target, self.row) {
            return Err(self.base.nic_failed(error));
        }
        self.base.gate = Gate::Open;
        self.advance();
        Ok(())
    }

    /// Adds to the group what there is room for of a message that is longer.
    #[cold]
    #[inline(never)]
    fn send_cut(&mut self, buf: &SendBuf, tag: u32, room: u32) -> Result<Option<Request>, Failed> {
        let len = self.fit(buf.len, tag, room)?;
        self.send_unusual(&SendBuf { len, ..*buf }, tag)
    }

    /// Goes on at the start of the ring of requests, if this is its end.
    #[cold]
    #[inline(never)]
    fn send_around(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Failed> {
        if self.base.reqs.come_around() { self.send_unusual(buf, tag) } else { Ok(None) }
    }

    /// The bytes to send of `len`, where there is room for `room`.
    fn fit(&mut self, len: u32, tag: u32, room: u32) -> Result<u32, Failed> {
        if len <= room {
            Ok(len)
        } else if len > i32::MAX as u32 {
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

    /// What stands before a send where the gate is not simply open: on the wire of NCCL 2.14, the
    /// rest of the exchange (`net_ib.cc ncclSendCheck`); whether it is over.
    #[cold]
    fn pass(&mut self) -> Result<bool, Failed> {
        if self.base.gate != Gate::Pending {
            return Err(self.base.refuse());
        }
        self.exchange().map_err(|error| self.base.fail(error))
    }

    fn exchange(&mut self) -> Result<bool, Error> {
        let Base { stream, verbs, ends, pending, .. } = &mut self.base;
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

/// Lays out the work request of a message of its own, as if there were one queue pair.
#[inline(always)]
fn lay_out(wr: &mut SendWr, request: &Request, buf: &SendBuf, room: &Room) {
    wr.wr_id = request.raw().into();
    (wr.remote_addr, wr.rkey) = (room.addr, room.rkey);
    wr.imm_data = buf.len;
    wr.sge = Sge { addr: buf.addr, length: buf.len, lkey: buf.lkey };
}
