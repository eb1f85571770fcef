//! The sending end (`net_ib.cc ncclIbIsend`, `ncclIbTest`).

use core::hint::cold_path;

use static_assertions::assert_eq_size;

use super::Request;
use super::base::{Base, Failed, Gate, Route, Settled};
use super::post::{Group, Target, post_single, with_imm};
use crate::conn::stage::Stage;
use crate::conn::{Parts, Stream, start_with_acceptor};
use crate::error::{Ends, Error, Report};
use crate::fifo::{DEPTH_MAX, RECVS_MAX, ROW_BYTES, Room, Row, SlotWords};
use crate::nic::{Memory, Nic, SendWr, Sge, Wc};
use crate::request::{Entry, Ring};

/// Bytes of a row of sizes: eight `u32`.
pub(super) const SIZES_ROW_BYTES: usize = 4 * RECVS_MAX;

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

/// What stands beside the request of a send.
struct Sending {
    /// The work request of a message of its own: most of it is the same for each. Of one in a
    /// group, just the length.
    wr: SendWr,
    /// Messages that end under this one's `wr_id`: 1, but of a group while it is under way.
    nreqs: u32,
}

assert_eq_size!(Entry<Sending>, [u8; 64]);

impl Sending {
    /// Lays out the work request of a message of its own.
    #[inline(always)]
    fn lay_out(&mut self, buf: &SendBuf, room: &Room) -> &SendWr {
        let wr = &mut self.wr;
        wr.imm_data = buf.len;
        (wr.remote_addr, wr.rkey) = (room.addr, room.rkey);
        wr.sge = Sge { addr: buf.addr, length: buf.len, lkey: buf.lkey };
        wr
    }
}

/// The sending end of a connection.
pub struct SendComm<N: Nic, S> {
    base: Base<N, S, Sending>,
    /// Rows matched and sent.
    head: u64,
    row_mask: u64,
    target: Target,
    group: Group,
}

impl<N: Nic, S: Stream> SendComm<N, S> {
    /// Registered memory that the comm needs: the FIFO, and the sizes of groups going out.
    pub(crate) const fn control_bytes(depth: usize) -> usize {
        depth * (ROW_BYTES + SIZES_ROW_BYTES)
    }

    pub(crate) fn new(parts: Parts<N, S>) -> Self {
        let settings = parts.verbs.settings;
        let offered = usize::from(settings.depth());
        let depth = parts.peer.as_ref().map_or(offered, |peer| usize::from(peer.fifo_depth));
        let mut target = Target::new(&parts.verbs, offered * ROW_BYTES / SIZES_ROW_BYTES);
        let sending = |index| Sending { wr: with_imm(u64::from(index), 0), nreqs: 1 };
        let (base, peer) = Base::new(parts, Ring::new(depth, sending));
        target.sizes = peer.and_then(|peer| peer.sizes);
        let row_mask = depth as u64 - 1;
        SendComm { base, head: 0, row_mask, target, group: Group::new() }
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
        match self.send(buf, tag) {
            Ok(request) => Ok(request),
            Err(failed) => Err(self.base.error(failed)),
        }
    }

    /// Whether a send is done, and then how many bytes it sent; `request` is then over.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; or what ended the connection, the same on every call.
    #[inline(always)]
    pub fn test(&mut self, request: &Request) -> Result<Option<u32>, Error> {
        let token = request.raw();
        match self.base.settle(token, Sent) {
            Settled::Waiting => Ok(None),
            Settled::Done => Ok(Some(self.base.reqs.at(token).value.wr.sge.length)),
            Settled::Unknown => {
                let failed = self.base.unsettled(token);
                Err(self.base.error(failed))
            }
        }
    }

    /// Looks whether the peer still has its end open, which an idle comm does not notice by
    /// itself. Costs a system call on hosts: for now and then.
    ///
    /// # Errors
    /// [`Error::PeerClosed`]. Requests that are complete can still be tested.
    pub fn check_peer(&mut self) -> Result<(), Error> {
        self.base.check_peer(Sent).map_err(|failed| self.base.error(failed))
    }

    /// Sends under way: started, and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.base.reqs.live()
    }

    /// Receives of the peer that were matched.
    pub fn rows_sent(&self) -> u64 {
        self.head
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

    /// Sends a message of its own in one work request, or one of the group that is being matched.
    #[inline(always)]
    fn send(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Failed> {
        if self.base.gate != Gate::Open {
            cold_path();
            if self.base.gate == Gate::Group {
                return self.send_in_group(buf, tag);
            }
            return self.send_unusual(buf, tag);
        }
        let Some(slot) = self.slot() else { return Ok(None) };
        // One at a time, so that each is a branch that is not taken.
        if !slot.is_single(tag) {
            return self.send_unusual(buf, tag);
        }
        let room = slot.room();
        if !room.holds(buf.len) {
            return self.send_unusual(buf, tag);
        }
        if room.addr == 0 {
            return self.send_unusual(buf, tag);
        }
        if room.rkey == 0 {
            return self.send_unusual(buf, tag);
        }
        if buf.len >= self.target.single_bytes_end {
            return self.send_unusual(buf, tag);
        }
        let Base { reqs, verbs, .. } = &mut self.base;
        let Some((request, entry)) = reqs.next_free() else { return self.send_around(buf, tag) };
        entry.arm(&request, 1);
        let wr = entry.value.lay_out(buf, &room);
        if let Err(error) = verbs.nic.post_send(&verbs.qp, core::slice::from_ref(wr)) {
            return Err(self.base.nic_failed(error));
        }
        reqs.advance();
        self.head += 1;
        Ok(Some(request))
    }

    /// The first slot of the row at the head, once it is there.
    #[inline(always)]
    fn slot(&self) -> Option<SlotWords<'_>> {
        let row = (self.head & self.row_mask) as usize;
        Row::of(self.base.verbs.control.words(), row)?.load(0, self.head + 1)
    }

    /// As [`SendComm::send`], for all the rest.
    #[inline(never)]
    fn send_unusual(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Failed> {
        match self.base.gate {
            Gate::Open => {}
            Gate::Group => return self.send_in_group(buf, tag),
            Gate::Closed | Gate::Failed => return Err(self.base.refuse()),
            Gate::Pending => match self.exchange() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => return Err(self.base.fail(error)),
            },
        }
        let row = (self.head & self.row_mask) as usize;
        let Some(row) = Row::of(self.base.verbs.control.words(), row) else { return Ok(None) };
        let Some(first) = row.load(0, self.head + 1) else { return Ok(None) };
        match first.nreqs_tag() {
            (1, of) if of == tag => {
                let room = first.room();
                self.send_single(buf, tag, &room)
            }
            // It ends by size, not by a group's bits.
            (1, _) => Ok(None),
            (nreqs, _) => match self.group.load(&row, nreqs as usize, self.head + 1) {
                Ok(true) => {
                    self.base.gate = Gate::Group;
                    self.send_unusual(buf, tag)
                }
                Ok(false) => Ok(None),
                Err((what, value)) => Err(self.bad_slot(what, value)),
            },
        }
    }

    /// Sends a message of its own, however many work requests that takes.
    fn send_single(
        &mut self,
        buf: &SendBuf,
        tag: u32,
        room: &Room,
    ) -> Result<Option<Request>, Failed> {
        if let Err((what, value)) = room.check() {
            return Err(self.bad_slot(what, value));
        }
        let len = self.fit(buf.len, tag, room.size as u32)?;
        let Base { reqs, verbs, .. } = &mut self.base;
        let Some((request, entry)) = reqs.next_free() else { return self.send_around(buf, tag) };
        entry.arm(&request, self.target.qps);
        let wr = entry.value.lay_out(&SendBuf { len, ..*buf }, room);
        if let Err(error) = post_single(verbs, &self.target, wr) {
            return Err(self.base.nic_failed(error));
        }
        reqs.advance();
        self.head += 1;
        Ok(Some(request))
    }

    /// Matches one message of the group at the head; sends when it is the last.
    #[inline(always)]
    fn send_in_group(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Failed> {
        let Self { base: Base { reqs, .. }, group, target, .. } = self;
        let Some(r) = group.find(tag) else { return Ok(None) };
        if buf.len > group.rooms[r] {
            let room = group.rooms[r];
            return self.send_cut(buf, tag, room);
        }
        let Some((request, entry)) = reqs.next_free() else { return self.send_around(buf, tag) };
        entry.arm(&request, target.qps);
        entry.value.wr.sge.length = buf.len;
        reqs.advance();
        if group.add(r, request.index() as u8, buf) {
            return self.send_group(request);
        }
        Ok(Some(request))
    }

    /// Sends the group, of which `request` is the last.
    #[inline(never)]
    fn send_group(&mut self, request: Request) -> Result<Option<Request>, Failed> {
        let Base { reqs, verbs, .. } = &mut self.base;
        // Its completions find the others by the first.
        reqs.at(self.group.indices[0].into()).value.nreqs = self.group.nreqs as u32;
        let row = (self.head & self.row_mask) as usize;
        if let Err(error) = self.group.post(verbs, &self.target, row) {
            return Err(self.base.nic_failed(error));
        }
        self.base.gate = Gate::Open;
        self.head += 1;
        Ok(Some(request))
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
        self.base.fail(Error::Slot { what, value, idx: self.head + 1 })
    }

    /// On the wire of NCCL 2.14, the rest of the exchange (`net_ib.cc ncclSendCheck`); whether it
    /// is over.
    #[cold]
    fn exchange(&mut self) -> Result<bool, Error> {
        let Base { stream, verbs, ends, pending, .. } = &mut self.base;
        let Some(exchange) = pending else { return Ok(true) };
        if ends.peer_qpn == 0 {
            let Some(peer) = start_with_acceptor(stream, exchange, verbs, ends)? else {
                return Ok(false);
            };
            self.row_mask = u64::from(peer.fifo_depth) - 1;
        }
        if !exchange.send(stream, Stage::PendingReady)? {
            return Ok(false);
        }
        *pending = None;
        self.base.gate = Gate::Open;
        Ok(true)
    }
}

/// Completions of sends.
struct Sent;

impl Route<Sending> for Sent {
    /// The end of a message of its own.
    #[inline(always)]
    fn book_usual(&mut self, reqs: &mut Ring<Sending>, wc: &Wc) -> bool {
        let entry = reqs.at(wc.wr_id as u32);
        entry.value.nreqs == 1 && entry.book()
    }

    /// The end of a group too. Each queue pair brings one.
    #[inline(never)]
    fn book(&mut self, reqs: &mut Ring<Sending>, wc: &Wc) -> bool {
        let first = reqs.at(wc.wr_id as u32);
        let nreqs = first.value.nreqs;
        if first.is_at_last() {
            first.value.nreqs = 1;
        }
        let mut indices = wc.wr_id;
        (0..nreqs).all(|_| {
            let index = indices as u32;
            indices >>= u8::BITS;
            reqs.at(index).book()
        })
    }
}

const _: () = assert!(DEPTH_MAX * (ROW_BYTES + SIZES_ROW_BYTES) <= u32::MAX as usize);
