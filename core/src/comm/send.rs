//! The sending end (`net_ib.cc ncclIbIsend`, `ncclIbTest`).

use super::Request;
use super::base::{Base, Gate};
use super::multi_send::{self, Member, Target};
use crate::conn::stage::Stage;
use crate::conn::{Parts, Peer, Stream, start_with_acceptor};
use crate::error::{CompletionError, Ends, Error, Report};
use crate::fifo::{self, DEPTH_MAX, RECVS_MAX, ROW_BYTES, Slot};
use crate::nic::{Memory, Nic, SendOpcode, Wc, WcStatus};
use crate::request::Pool;
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

/// A send under way.
#[derive(Clone, Copy, Debug, Default)]
struct Send {
    /// Completions still awaited, one for each queue pair.
    events: u16,
    /// Messages that went with it under one `wr_id`.
    nreqs: u8,
    size: u32,
}

/// The row at the head of the FIFO, when it groups several receives: read once, then matched.
#[derive(Default)]
struct Group {
    /// Buffers; 0 while no group is being matched.
    nreqs: usize,
    matched: usize,
    slots: [Slot; RECVS_MAX],
    members: [Option<Member>; RECVS_MAX],
}

/// The sending end of a connection.
pub struct SendComm<N: Nic, S> {
    base: Base<N, S>,
    /// Rows matched and sent.
    head: u64,
    row_mask: u64,
    target: Target,
    reqs: Pool<Send>,
    group: Group,
}

impl<N: Nic, S: Stream> SendComm<N, S> {
    /// Registered memory that the comm needs: the FIFO, and the sizes of groups going out.
    pub(crate) const fn control_bytes(depth: usize) -> usize {
        depth * (ROW_BYTES + SIZES_ROW_BYTES)
    }

    pub(crate) fn new(parts: Parts<N, S>) -> Self {
        let Parts { verbs, stream, ends, peer, pending } = parts;
        let depth = usize::from(verbs.settings.depth());
        let target = Target::new(&verbs, (depth * ROW_BYTES) as u32);
        let mut comm = SendComm {
            base: Base::new(verbs, stream, ends, pending),
            head: 0,
            row_mask: depth as u64 - 1,
            target,
            reqs: Pool::new(depth),
            group: Group::default(),
        };
        if let Some(peer) = peer {
            comm.meet(&peer);
        }
        comm
    }

    fn meet(&mut self, peer: &Peer) {
        self.row_mask = u64::from(peer.fifo_depth) - 1;
        self.reqs = Pool::new(usize::from(peer.fifo_depth));
        self.target.sizes = peer.sizes;
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
    #[inline]
    pub fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Error> {
        if self.base.gate != Gate::Ready && !self.pass()? {
            return Ok(None);
        }
        if self.group.nreqs == 0 {
            let idx = self.head + 1;
            let row = (self.head & self.row_mask) as usize;
            let words = self.base.verbs.control.words();
            let Some(slot) = fifo::load(words, row, 0, idx) else { return Ok(None) };
            if slot.nreqs == 1 {
                return self.send_one(buf, tag, &slot);
            }
            if !self.load_group(row, slot)? {
                return Ok(None);
            }
        }
        self.send_in_group(buf, tag)
    }

    /// Whether a send is done, and then how many bytes it sent; `request` is then over.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; or what ended the connection, the same on every call.
    #[inline]
    pub fn test(&mut self, request: &Request) -> Result<Option<u32>, Error> {
        loop {
            if let Gate::Failed(error) = self.base.gate {
                return Err(error);
            }
            let Some(send) = self.reqs.get(request) else {
                return Err(self.unknown(request));
            };
            if send.events == 0 {
                let size = send.size;
                self.reqs.give(request);
                return Ok(Some(size));
            }
            if !self.progress()? {
                return if self.base.gate == Gate::Ready {
                    Ok(None)
                } else {
                    Err(self.base.refused())
                };
            }
        }
    }

    /// Looks whether the peer still has its end open, which an idle comm does not notice by
    /// itself. Costs a system call on hosts: for now and then.
    ///
    /// # Errors
    /// [`Error::PeerClosed`]. Requests that are complete can still be tested.
    pub fn check_peer(&mut self) -> Result<(), Error> {
        self.base.check_peer()?;
        while self.progress()? {}
        match self.base.gate {
            Gate::Ready | Gate::Pending => Ok(()),
            Gate::Closed(_) | Gate::Failed(_) => Err(self.base.refused()),
        }
    }

    /// Sends under way: started, and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.reqs.live().count()
    }

    /// Messages that have been sent or are under way.
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

    /// Takes completions; says whether there were any.
    fn progress(&mut self) -> Result<bool, Error> {
        let reqs = &mut self.reqs;
        let settings = self.base.verbs.settings;
        self.base.poll(|wc| {
            if wc.status != WcStatus::SUCCESS {
                let error = CompletionError::new(wc, settings.timeout, settings.retry_cnt);
                let size = reqs.at_mut(wr_id::index(wc.wr_id, 0)).map_or(0, |send| send.size);
                let opcode = Some(SendOpcode::RdmaWriteWithImm);
                return Err(Error::Completion(CompletionError { opcode, bytes: size, ..error }));
            }
            route(reqs, wc)
        })
    }

    #[inline]
    fn send_one(&mut self, buf: &SendBuf, tag: u32, slot: &Slot) -> Result<Option<Request>, Error> {
        if slot.tag != tag {
            return Ok(None);
        }
        let size = self.fit(buf, slot)?;
        let Some((index, send)) = self.reqs.take() else { return Ok(None) };
        *send = Send { events: self.target.qps, nreqs: 1, size };
        let member = Member {
            index,
            size,
            addr: buf.addr,
            lkey: buf.lkey,
            remote: slot.addr,
            rkey: slot.rkey,
        };
        if let Err(error) = multi_send::post_one(&self.base.verbs, &self.target, &member) {
            return Err(self.base.fail(error.into()));
        }
        self.head += 1;
        Ok(Some(self.reqs.token(index)))
    }

    /// Reads a row of several slots, once all of them are there.
    #[cold]
    fn load_group(&mut self, row: usize, first: Slot) -> Result<bool, Error> {
        let nreqs = first.nreqs as usize;
        if !(1..=RECVS_MAX).contains(&nreqs) {
            let (what, value) = ("a group of", u64::from(first.nreqs));
            return Err(self.base.fail(Error::Slot { what, value, idx: first.idx }));
        }
        let words = self.base.verbs.control.words();
        for (r, slot) in self.group.slots.iter_mut().enumerate().take(nreqs) {
            match fifo::load(words, row, r, first.idx) {
                Some(loaded) => *slot = loaded,
                None => return Ok(false),
            }
        }
        self.group.nreqs = nreqs;
        self.group.matched = 0;
        self.group.members = [None; RECVS_MAX];
        Ok(true)
    }

    /// Matches one message of the group at the head; sends when it is the last.
    fn send_in_group(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Error> {
        let Group { nreqs, slots, members, .. } = &self.group;
        let fits = |r: &usize| members[*r].is_none() && slots[*r].tag == tag;
        let Some(r) = (0..*nreqs).find(fits) else { return Ok(None) };
        let (nreqs, slot) = (*nreqs, slots[r]);
        let size = self.fit(buf, &slot)?;
        let Some((index, send)) = self.reqs.take() else { return Ok(None) };
        *send = Send { events: self.target.qps, nreqs: nreqs as u8, size };
        self.group.members[r] = Some(Member {
            index,
            size,
            addr: buf.addr,
            lkey: buf.lkey,
            remote: slot.addr,
            rkey: slot.rkey,
        });
        self.group.matched += 1;
        if self.group.matched == nreqs {
            let row = (self.head & self.row_mask) as usize;
            let members = &self.group.members[..nreqs];
            let sent = multi_send::post_group(&self.base.verbs, &self.target, row, members);
            if let Err(error) = sent {
                return Err(self.base.fail(error.into()));
            }
            self.head += 1;
            self.group.nreqs = 0;
        }
        Ok(Some(self.reqs.token(index)))
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

    #[cold]
    fn unknown(&self, request: &Request) -> Error {
        match self.base.gate {
            Gate::Ready | Gate::Pending => Error::UnknownRequest(request.raw()),
            Gate::Closed(_) | Gate::Failed(_) => self.base.refused(),
        }
    }

    /// What stands before a call where the gate is not simply open: on the wire of NCCL 2.14,
    /// the rest of the exchange (`net_ib.cc ncclSendCheck`).
    #[cold]
    fn pass(&mut self) -> Result<bool, Error> {
        if self.base.gate != Gate::Pending {
            return Err(self.base.refused());
        }
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
        self.base.gate = Gate::Ready;
        Ok(true)
    }
}

/// Books a completion on the requests that its `wr_id` names.
#[inline]
fn route(reqs: &mut Pool<Send>, wc: &Wc) -> Result<(), Error> {
    let unknown = Error::UnknownCompletion { wr_id: wc.wr_id, qpn: wc.qp_num };
    let nreqs = reqs.at_mut(wr_id::index(wc.wr_id, 0)).map_or(0, |first| first.nreqs);
    if nreqs == 0 {
        return Err(unknown);
    }
    for i in 0..usize::from(nreqs) {
        match reqs.at_mut(wr_id::index(wc.wr_id, i)) {
            Some(send) if send.events > 0 => send.events -= 1,
            _ => return Err(unknown),
        }
    }
    Ok(())
}

const _: () = assert!(DEPTH_MAX * (ROW_BYTES + SIZES_ROW_BYTES) <= u32::MAX as usize);
