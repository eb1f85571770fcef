//! The sending end (`net_ib.cc ncclIbIsend`, `ncclIbTest`).

use super::Request;
use super::base::{Base, Gate};
use super::post::{GroupWork, Target, post_split, write};
use crate::conn::stage::Stage;
use crate::conn::{Parts, Stream, start_with_acceptor};
use crate::error::{Ends, Error, Report};
use crate::fifo::{self, DEPTH_MAX, RECVS_MAX, ROW_BYTES, Slot, SlotWords};
use crate::nic::{Memory, Nic, Wc};
use crate::request::Ring;
use crate::wr_id;

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

/// The row at the head of the FIFO, when it groups several receives: read once, then matched.
struct Group {
    nreqs: usize,
    /// A bit for each buffer that has no message yet.
    unmatched: u8,
    slots: [Slot; RECVS_MAX],
    work: GroupWork,
}

/// The sending end of a connection.
pub struct SendComm<N: Nic, S> {
    /// Of each request, the bytes that it sends.
    base: Base<N, S, u32>,
    /// Sends started: the number of the next request.
    started: u64,
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
        let mut target = Target::new(&parts.verbs, (offered * ROW_BYTES) as u32);
        let (base, peer) = Base::new(parts, depth);
        target.sizes = peer.and_then(|peer| peer.sizes);
        let row_mask = depth as u64 - 1;
        let slots = [Slot::default(); RECVS_MAX];
        let group = Group { nreqs: 0, unmatched: 0, slots, work: GroupWork::new() };
        SendComm { base, started: 0, head: 0, row_mask, target, group }
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
        if self.base.gate == Gate::Open {
            let row = (self.head & self.row_mask) as usize;
            let words = self.base.verbs.control.words();
            let Some(slot) = fifo::load(words, row, 0, self.head + 1) else { return Ok(None) };
            if slot.is_single(tag) {
                return self.send_one(buf, &slot);
            }
        }
        self.send_grouped(buf, tag)
    }

    /// Whether a send is done, and then how many bytes it sent; `request` is then over.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; or what ended the connection, the same on every call.
    #[inline(always)]
    pub fn test(&mut self, request: &Request) -> Result<Option<u32>, Error> {
        loop {
            if self.base.reqs.is_waiting(request) && !self.base.poll(route) {
                return Ok(None);
            }
            if let Some(entry) = self.base.reqs.give(request) {
                return Ok(Some(entry.value));
            }
            if !self.base.reqs.is_waiting(request) {
                return Err(self.base.not_done(request));
            }
        }
    }

    /// Looks whether the peer still has its end open, which an idle comm does not notice by
    /// itself. Costs a system call on hosts: for now and then.
    ///
    /// # Errors
    /// [`Error::PeerClosed`]. Requests that are complete can still be tested.
    pub fn check_peer(&mut self) -> Result<(), Error> {
        self.base.check_peer(route)
    }

    /// Sends under way: started, and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.base.reqs.live().count()
    }

    /// Receives of the peer that were matched.
    pub fn rows_sent(&self) -> u64 {
        self.head
    }

    /// Both ends.
    pub fn ends(&self) -> &Ends {
        &self.base.ends
    }

    /// Joins an error of this comm with both ends.
    pub fn report(&self, error: Error) -> Report<'_> {
        self.base.report(error)
    }

    #[inline(always)]
    fn send_one(&mut self, buf: &SendBuf, slot: &SlotWords) -> Result<Option<Request>, Error> {
        // One at a time, so that each is a branch that is not taken.
        if slot.size() < 0 {
            return self.send_unfit(buf);
        }
        if slot.addr == 0 {
            return self.send_unfit(buf);
        }
        if slot.rkey() == 0 {
            return self.send_unfit(buf);
        }
        if buf.len > slot.size() as u32 {
            return self.send_unfit(buf);
        }
        self.post_one(buf, buf.len, slot.addr, slot.rkey())
    }

    #[inline(always)]
    fn post_one(
        &mut self,
        buf: &SendBuf,
        size: u32,
        remote_addr: u64,
        rkey: u32,
    ) -> Result<Option<Request>, Error> {
        let Some((index, entry)) = self.base.reqs.take(self.started) else { return Ok(None) };
        entry.value = size;
        let request = entry.arm(Request::message(self.started), self.target.qps, 1);
        let is_one = size < self.target.single_bytes_end;
        let wr = self.target.single(buf, size, remote_addr, rkey, index);
        let verbs = &self.base.verbs;
        let posted = if is_one {
            verbs.nic.post_send(&verbs.qp, core::slice::from_ref(wr))
        } else {
            post_split(verbs, &self.target)
        };
        if let Err(error) = posted {
            return Err(self.base.fail(error.into()));
        }
        self.started += 1;
        self.head += 1;
        Ok(Some(request))
    }

    /// A message that does not fit its receive, or a receive that cannot be.
    #[cold]
    #[inline(never)]
    fn send_unfit(&mut self, buf: &SendBuf) -> Result<Option<Request>, Error> {
        let (row, idx) = ((self.head & self.row_mask) as usize, self.head + 1);
        let words = self.base.verbs.control.words();
        let Some(slot) = fifo::load(words, row, 0, idx) else { return Ok(None) };
        let slot = slot.slot(idx);
        let size = self.fit(buf, &slot)?;
        self.post_one(buf, size, slot.addr, slot.rkey)
    }

    /// What is not a message of its own on an open comm.
    #[inline(never)]
    fn send_grouped(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Error> {
        if self.base.gate == Gate::Pending {
            // From the start: the row at the head may be a single one.
            return if self.pass()? { self.isend(buf, tag) } else { Ok(None) };
        }
        if self.base.gate == Gate::Open && self.load_group()? {
            self.base.gate = Gate::Group;
        }
        match self.base.gate {
            Gate::Group => self.send_in_group(buf, tag),
            Gate::Open | Gate::Pending => Ok(None),
            Gate::Closed | Gate::Failed => Err(self.base.refused()),
        }
    }

    /// Reads a row of several slots, once all of them are there.
    fn load_group(&mut self) -> Result<bool, Error> {
        let row = (self.head & self.row_mask) as usize;
        let idx = self.head + 1;
        let words = self.base.verbs.control.words();
        let Some(first) = fifo::load(words, row, 0, idx) else { return Ok(false) };
        let nreqs = first.nreqs() as usize;
        if !(1..=RECVS_MAX).contains(&nreqs) {
            let (what, value) = ("a group of", u64::from(first.nreqs()));
            return Err(self.base.fail(Error::Slot { what, value, idx }));
        }
        if nreqs == 1 {
            // A row of its own whose tag is another: it ends by size, not by a group's bits.
            return Ok(false);
        }
        for (r, slot) in self.group.slots.iter_mut().enumerate().take(nreqs) {
            match fifo::load(words, row, r, idx) {
                Some(loaded) => *slot = loaded.slot(idx),
                None => return Ok(false),
            }
        }
        self.group.nreqs = nreqs;
        self.group.unmatched = (0xff_u16 >> (RECVS_MAX - nreqs)) as u8;
        self.group.work.clear();
        Ok(true)
    }

    /// Matches one message of the group at the head; sends when it is the last.
    fn send_in_group(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Error> {
        let mut candidates = self.group.unmatched;
        let (r, slot) = loop {
            let r = candidates.trailing_zeros() as usize;
            let Some(slot) = self.group.slots.get(r) else { return Ok(None) };
            if slot.tag == tag {
                break (r, *slot);
            }
            candidates &= candidates - 1;
        };
        let size = self.fit(buf, &slot)?;
        let Some((index, entry)) = self.base.reqs.take(self.started) else { return Ok(None) };
        entry.value = size;
        let request =
            entry.arm(Request::message(self.started), self.target.qps, self.group.nreqs as u16);
        self.started += 1;
        self.group.work.add(r, index, write(buf, size, slot.addr, slot.rkey));
        self.group.unmatched &= !(1 << r);
        if self.group.unmatched == 0 {
            let row = (self.head & self.row_mask) as usize;
            let Group { nreqs, work, .. } = &mut self.group;
            if let Err(error) = work.post(&self.base.verbs, &self.target, row, *nreqs) {
                return Err(self.base.fail(error.into()));
            }
            self.base.gate = Gate::Open;
            self.head += 1;
        }
        Ok(Some(request))
    }

    /// The bytes to send into a slot.
    #[inline]
    fn fit(&mut self, buf: &SendBuf, slot: &Slot) -> Result<u32, Error> {
        if slot.size < 0 || slot.addr == 0 || slot.rkey == 0 {
            return Err(self.bad_slot(slot));
        }
        let remote = slot.size as u32;
        if buf.len <= remote {
            return Ok(buf.len);
        }
        if buf.len > i32::MAX as u32 {
            return Err(Error::TooLong(buf.len));
        }
        if self.base.verbs.settings.truncate {
            return Ok(remote);
        }
        Err(Error::SizeMismatch { local: buf.len, remote, tag: slot.tag })
    }

    #[cold]
    fn bad_slot(&mut self, slot: &Slot) -> Error {
        let (what, value) = if slot.size < 0 {
            ("a negative size", u64::from(slot.size as u32))
        } else if slot.addr == 0 {
            ("address", slot.addr)
        } else {
            ("rkey", u64::from(slot.rkey))
        };
        self.base.fail(Error::Slot { what, value, idx: slot.idx })
    }

    /// On the wire of NCCL 2.14, the rest of the exchange (`net_ib.cc ncclSendCheck`); whether it
    /// is over.
    #[cold]
    fn pass(&mut self) -> Result<bool, Error> {
        self.exchange().map_err(|error| self.base.fail(error))
    }

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

/// Books a completion on the requests that its `wr_id` names; whether all awaited it.
#[inline(always)]
fn route(reqs: &mut Ring<u32>, wc: &Wc) -> bool {
    let first = reqs.at(wr_id::index(wc.wr_id, 0));
    let nreqs = first.nreqs;
    first.book() && (nreqs == 1 || route_others(reqs, wc, nreqs))
}

/// The other messages of a group.
#[inline(never)]
fn route_others(reqs: &mut Ring<u32>, wc: &Wc, nreqs: u16) -> bool {
    (1..usize::from(nreqs)).all(|i| reqs.at(wr_id::index(wc.wr_id, i)).book())
}

const _: () = assert!(DEPTH_MAX * (ROW_BYTES + SIZES_ROW_BYTES) <= u32::MAX as usize);
