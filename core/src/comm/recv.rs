//! The receiving end (`net_ib.cc ncclIbIrecv`, `ncclIbPostFifo`, `ncclIbIflush`, `ncclIbTest`).

use core::sync::atomic::Ordering;

use super::Request;
use super::base::{Base, Gate};
use super::send::SIZES_ROW_BYTES;
use crate::conn::{Parts, Peer, Stream, Verbs, Wire, is_ready};
use crate::error::{Ends, Error, Report};
use crate::fifo::{self, RECVS_MAX, ROW_BYTES, SLOT_BYTES, Slot};
use crate::nic::{
    Access, Memory, MemoryKeys, Nic, NicError, QpOptions, RecvWr, SendFlags, SendOpcode, SendWr,
    Sge, Wc, WcOpcode,
};
use crate::request::{Entry, Ring};
use crate::wr_id;

/// Memory to receive into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvBuf {
    /// First byte; not 0.
    pub addr: u64,
    /// Bytes, at most 2³¹ − 1.
    pub len: u32,
    /// Only a send with this tag goes here.
    pub tag: u32,
    /// Remote key of the region that holds it; not 0.
    pub rkey: u32,
}

/// Received memory to flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushBuf {
    /// First byte.
    pub addr: u64,
    /// Bytes received there.
    pub len: u32,
    /// Remote key of the region that holds it.
    pub rkey: u32,
}

/// How a flush began.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Flush {
    /// Flushing is off, or no buffer has bytes: the data can be used.
    NotNeeded,
    /// Under way: test the request.
    Started(Request),
    /// No request is free: call again.
    Busy,
}

/// A receive under way.
#[derive(Clone, Copy, Debug, Default)]
struct Recv {
    /// The immediate that came: bytes, or of a group a bit for each buffer with data.
    imm: u32,
    /// Bytes posted.
    sizes: [u32; RECVS_MAX],
}

/// Reads back through the NIC, so that the GPU sees what was written before.
struct Flusher<N: Nic> {
    qp: N::Qp,
    mr: N::Mr,
    /// The byte that is read lands here.
    memory: N::Memory,
}

/// The receiving end of a connection.
pub struct RecvComm<N: Nic, S> {
    flusher: Option<Flusher<N>>,
    flushes: Ring<()>,
    /// Flushes started.
    flushed: u64,
    base: Base<N, S, Recv>,
    /// Receives posted.
    tail: u64,
    row_mask: u64,
    remote_fifo: u64,
    /// The shadow of the FIFO, from which slots are written.
    shadow_addr: u64,
    qps: u16,
    /// Where the sizes of groups come in, in words of the control memory.
    sizes_word: usize,
    wire: Wire,
    /// Of the group that was tested last.
    sizes: [u32; RECVS_MAX],
    /// Work requests of which only a few fields change.
    recv_wr: RecvWr,
    slots_wr: SendWr,
}

impl<N: Nic, S: Stream> RecvComm<N, S> {
    /// Registered memory that the comm needs: the shadow of the FIFO, then sizes coming in.
    pub(crate) const fn control_bytes(depth: usize) -> usize {
        depth * (ROW_BYTES + SIZES_ROW_BYTES)
    }

    /// Where in it the sizes come in.
    pub(crate) const fn sizes_offset(depth: usize) -> u64 {
        (depth * ROW_BYTES) as u64
    }

    pub(crate) fn new(parts: Parts<N, S>) -> Result<Self, Error> {
        let settings = parts.verbs.settings;
        let depth = usize::from(settings.depth());
        let flusher = if settings.flush { Some(Flusher::create(&parts.verbs)?) } else { None };
        let flags = if settings.use_inline { SendFlags::INLINE } else { SendFlags::empty() };
        let qps = parts.verbs.qp_count();
        let (shadow_addr, lkey) = (parts.verbs.control_addr(), parts.verbs.control_lkey());
        let (base, peer) = Base::new(parts, depth);
        let (remote_fifo, rkey) =
            peer.map_or((0, 0), |peer| (peer.info.fifo_addr, peer.info.fifo_rkey));
        let sge = Sge { lkey, ..Sge::default() };
        Ok(RecvComm {
            flusher,
            flushes: Ring::new(depth),
            flushed: 0,
            base,
            tail: 0,
            row_mask: depth as u64 - 1,
            remote_fifo,
            shadow_addr,
            qps,
            sizes_word: Self::sizes_offset(depth) as usize / 8,
            wire: settings.wire,
            sizes: [0; RECVS_MAX],
            recv_wr: RecvWr::default(),
            slots_wr: SendWr { rkey, sge, flags, ..SendWr::default() },
        })
    }

    /// Posts a receive of 1 to 8 buffers and tells the peer. `None`, where no request is free:
    /// call again.
    ///
    /// The buffers belong to the NIC until `test` says that the request is done.
    ///
    /// # Errors
    /// [`Error::Argument`] or [`Error::TooLong`] for buffers that cannot be; the comm goes on.
    /// Others stay: every later call gives the same.
    #[inline(always)]
    pub fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, Error> {
        match bufs {
            [buf] if self.base.gate == Gate::Open => self.recv_row([*buf]),
            _ => self.recv_grouped(bufs),
        }
    }

    /// Makes received data visible to whom a write by the NIC may not be yet (GPU memory): reads
    /// one byte of the last buffer that has any, through a queue pair of the comm's own.
    ///
    /// # Errors
    /// As [`RecvComm::irecv`].
    pub fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, Error> {
        if self.base.gate != Gate::Open {
            return Err(self.base.refused());
        }
        let last = bufs.iter().rev().find(|buf| buf.len > 0);
        let (Some(flusher), Some(buf)) = (&self.flusher, last) else { return Ok(Flush::NotNeeded) };
        let Some((index, entry)) = self.flushes.take(self.flushed) else { return Ok(Flush::Busy) };
        let request = entry.arm(Request::flush(self.flushed), 1, 0);
        let sge = Sge { addr: flusher.memory.addr(), length: 1, lkey: flusher.mr.lkey() };
        let wr = SendWr {
            wr_id: u64::from(index),
            remote_addr: buf.addr,
            rkey: buf.rkey,
            sge,
            opcode: SendOpcode::RdmaRead,
            flags: SendFlags::SIGNALED,
            ..SendWr::default()
        };
        match self.base.verbs.nic.post_send(&flusher.qp, &[wr]) {
            Ok(()) => {
                self.flushed += 1;
                Ok(Flush::Started(request))
            }
            Err(error) => Err(self.base.fail(error.into())),
        }
    }

    /// Whether a receive or flush is done, and then the bytes of each buffer in the order in which
    /// they were posted (of a flush, none); `request` is then over.
    ///
    /// On the wire of NCCL 2.14 those of a group are only 0 or 1: empty or not.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; or what ended the connection, the same on every call.
    #[inline(always)]
    pub fn test(&mut self, request: &Request) -> Result<Option<&[u32]>, Error> {
        loop {
            if self.base.reqs.is_waiting(request) && !self.poll() {
                return Ok(None);
            }
            match self.base.reqs.give(request).map(|r| (r.nreqs, r.value.imm, r.value.sizes[0])) {
                Some((1, imm, posted)) if imm <= posted => {
                    self.sizes[0] = imm;
                    return Ok(Some(&self.sizes[..1]));
                }
                Some((nreqs, ..)) => return self.received(request, usize::from(nreqs)).map(Some),
                None if self.base.reqs.is_waiting(request) => {}
                None => return self.test_flush(request),
            }
        }
    }

    /// Looks whether the peer still has its end open, which an idle comm does not notice by
    /// itself. Costs a system call on hosts: for now and then.
    ///
    /// # Errors
    /// [`Error::PeerClosed`]. Requests that are complete can still be tested.
    pub fn check_peer(&mut self) -> Result<(), Error> {
        let Self { base, flushes, .. } = self;
        let result = base.check_peer(|reqs, wc| route(reqs, flushes, wc));
        if result.is_err() {
            // Nobody is left to send.
            base.reqs.cut_short();
        }
        result
    }

    /// Receives and flushes under way: started, and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.base.reqs.live().count() + self.flushes.live().count()
    }

    /// Receives posted.
    pub fn rows_posted(&self) -> u64 {
        self.tail
    }

    /// Both ends.
    pub fn ends(&self) -> &Ends {
        &self.base.ends
    }

    /// Joins an error of this comm with both ends.
    pub fn report(&self, error: Error) -> Report<'_> {
        self.base.report(error)
    }
}

impl<N: Nic, S: Stream> RecvComm<N, S> {
    #[inline(always)]
    fn poll(&mut self) -> bool {
        let Self { base, flushes, .. } = self;
        base.poll(|reqs, wc| route(reqs, flushes, wc))
    }

    /// What is not a receive that is under way.
    #[inline(never)]
    fn test_flush(&mut self, request: &Request) -> Result<Option<&[u32]>, Error> {
        while self.base.gate == Gate::Open && self.flushes.is_waiting(request) {
            if !self.poll() {
                return Ok(None);
            }
        }
        match self.flushes.give(request) {
            Some(_) if self.base.gate != Gate::Failed => Ok(Some(&[])),
            _ => Err(self.base.not_done(request)),
        }
    }

    /// What is not a receive of one buffer on an open comm.
    #[inline(never)]
    fn recv_grouped(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, Error> {
        if self.base.gate != Gate::Open && !self.pass()? {
            return Ok(None);
        }
        if bufs.is_empty() || bufs.len() > RECVS_MAX {
            return Err(Error::Argument("a receive takes 1 to 8 buffers"));
        }
        // The peer could never have that many sends under way.
        if bufs.len() as u64 > self.row_mask + 1 {
            return Err(Error::Argument("a receive of more buffers than the FIFO has rows"));
        }
        self.recv_row(bufs)
    }

    /// Posts 1 to 8 buffers as one row: a receive on each queue pair, and the slots on the first.
    #[inline(always)]
    fn recv_row(&mut self, bufs: impl AsRef<[RecvBuf]>) -> Result<Option<Request>, Error> {
        let bufs = bufs.as_ref();
        for buf in bufs {
            if buf.addr == 0 {
                return Err(refused(buf));
            }
            if buf.rkey == 0 {
                return Err(refused(buf));
            }
            if buf.len > i32::MAX as u32 {
                return Err(refused(buf));
            }
        }
        let row = self.row(self.tail);
        let Some((index, entry)) = self.base.reqs.take(self.tail) else { return Ok(None) };
        let verbs = &self.base.verbs;
        let request = entry.arm(Request::message(self.tail), self.qps, bufs.len() as u16);
        // One in a ring asks for a completion: otherwise the send queue never drains. It counts
        // on the request of that row.
        if row == 0 {
            sign(entry, &mut self.slots_wr, index);
        }
        for (r, (buf, size)) in bufs.iter().zip(&mut entry.value.sizes).enumerate() {
            *size = buf.len;
            let slot = Slot {
                addr: buf.addr,
                size: buf.len as i32,
                rkey: buf.rkey,
                nreqs: bufs.len() as u32,
                tag: buf.tag,
                idx: self.tail + 1,
            };
            fifo::store(verbs.control.words(), row, r, &slot);
        }
        if let Err(error) = self.post(index, row, bufs.len()) {
            return Err(self.base.fail(error.into()));
        }
        self.tail += 1;
        Ok(Some(request))
    }

    /// Posts a receive on each queue pair, then the row of slots on the first.
    #[inline(always)]
    fn post(&mut self, index: u8, row: usize, nreqs: usize) -> Result<(), NicError> {
        let verbs = &self.base.verbs;
        self.recv_wr.wr_id = u64::from(index);
        verbs.nic.post_recv(&verbs.qp, &self.recv_wr)?;
        for qp in &verbs.other_qps {
            verbs.nic.post_recv(qp, &self.recv_wr)?;
        }
        let row_offset = (row * ROW_BYTES) as u64;
        let wr = &mut self.slots_wr;
        wr.remote_addr = self.remote_fifo + row_offset;
        wr.sge.addr = self.shadow_addr + row_offset;
        wr.sge.length = (nreqs * SLOT_BYTES) as u32;
        if nreqs > 1 || row == 0 {
            return self.post_special_row(nreqs);
        }
        verbs.nic.post_send(&verbs.qp, core::slice::from_ref(wr))
    }

    /// Posts a row that does not go inline, or that asks for a completion.
    #[inline(never)]
    fn post_special_row(&mut self, nreqs: usize) -> Result<(), NicError> {
        let mut wr = self.slots_wr;
        if nreqs > 1 {
            wr.flags.remove(SendFlags::INLINE);
        }
        self.slots_wr.flags.remove(SendFlags::SIGNALED);
        let verbs = &self.base.verbs;
        verbs.nic.post_send(&verbs.qp, &[wr])
    }

    /// Sizes of a group as the peer wrote them before its immediate, or by that one's bits; of a
    /// single message, its immediate.
    #[inline(never)]
    fn received(&mut self, request: &Request, nreqs: usize) -> Result<&[u32], Error> {
        let recv = self.base.reqs.of(request).value;
        let row = self.sizes_word + self.row(u64::from(request.raw())) * SIZES_ROW_BYTES / 8;
        for (r, posted) in recv.sizes.iter().enumerate().take(nreqs) {
            let size = if nreqs == 1 {
                recv.imm
            } else if self.wire == Wire::Nccl214 {
                recv.imm >> r & 1
            } else {
                let words = self.base.verbs.control.words();
                let pair = words.get(row + r / 2).map_or(0, |w| w.load(Ordering::Acquire));
                (u64::from_le(pair) >> (r % 2 * 32)) as u32
            };
            if size > *posted {
                return Err(self.base.fail(Error::Overrun { got: size, posted: *posted }));
            }
            self.sizes[r] = size;
        }
        Ok(&self.sizes[..nreqs])
    }

    /// The row of the FIFO for receive number `number`.
    #[inline(always)]
    fn row(&self, number: u64) -> usize {
        (number & self.row_mask) as usize
    }

    /// What stands before a call where the gate is not simply open: on the wire of NCCL 2.14,
    /// the ready word (`net_ib.cc ncclRecvCheck`).
    #[cold]
    fn pass(&mut self) -> Result<bool, Error> {
        if self.base.gate != Gate::Pending {
            return Err(self.base.refused());
        }
        let Base { stream, pending, .. } = &mut self.base;
        let ready = match pending {
            Some(exchange) => is_ready(stream, exchange),
            None => Ok(true),
        };
        match ready {
            Ok(true) => {
                self.base.pending = None;
                self.base.gate = Gate::Open;
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) => Err(self.base.fail(error)),
        }
    }
}

/// Why a buffer cannot be received into.
#[cold]
fn refused(buf: &RecvBuf) -> Error {
    if buf.len > i32::MAX as u32 {
        Error::TooLong(buf.len)
    } else {
        Error::Argument("a receive buffer's address and rkey must not be 0")
    }
}

/// Has the write of a row complete on the request of that row.
#[cold]
fn sign(entry: &mut Entry<Recv>, slots_wr: &mut SendWr, index: u8) {
    entry.await_one_more();
    slots_wr.wr_id = u64::from(index);
    slots_wr.flags |= SendFlags::SIGNALED;
}

/// Books a completion on the request that its `wr_id` names; whether that awaited it.
#[inline(always)]
fn route(reqs: &mut Ring<Recv>, flushes: &mut Ring<()>, wc: &Wc) -> bool {
    let index = wr_id::index(wc.wr_id, 0);
    let entry = reqs.at(index);
    if wc.opcode == WcOpcode::RecvRdmaWithImm {
        // Each queue pair brings the same: the whole size of a single message, not its share.
        entry.value.imm = wc.imm_data;
    } else if wc.opcode == WcOpcode::RdmaRead {
        return flushes.at(index).book();
    }
    entry.book()
}

impl<N: Nic> Flusher<N> {
    /// A queue pair connected to itself.
    fn create(verbs: &Verbs<N>) -> Result<Self, Error> {
        let memory = verbs.nic.alloc(size_of::<u64>())?;
        let mr = verbs.nic.reg_mr(&verbs.pd, &memory, Access::LOCAL_WRITE)?;
        let qp = verbs.create_qp(Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        let qpn = verbs.nic.qp_num(&qp);
        let info = verbs.info(verbs.port.active_mtu);
        let options = verbs.port.options & QpOptions::ICRC_MASKS_IP_ID;
        let ourselves =
            Peer { options, udp_port: verbs.port.udp_port, ..Peer::new(info, None, options) };
        verbs.start_qp(&qp, qpn, &ourselves)?;
        Ok(Flusher { qp, mr, memory })
    }
}
