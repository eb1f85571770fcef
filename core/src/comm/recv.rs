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
use crate::request::Pool;
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

/// What a receive got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    nreqs: u8,
    sizes: [u32; RECVS_MAX],
}

impl Received {
    /// Bytes of each buffer, in the order in which they were posted; of a flush, none.
    ///
    /// On the wire of NCCL 2.14 a group's are only 0 or 1: empty or not.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes[..usize::from(self.nreqs).min(RECVS_MAX)]
    }
}

/// A receive or flush under way.
#[derive(Clone, Copy, Debug, Default)]
struct Recv {
    nreqs: u8,
    /// Of the FIFO, so of the sizes too.
    row: u8,
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
    base: Base<N, S, Recv>,
    /// Receives posted.
    tail: u64,
    row_mask: u64,
    remote_fifo: u64,
    remote_rkey: u32,
    /// The shadow of the FIFO, from which slots are written.
    shadow_addr: u64,
    shadow_lkey: u32,
    /// Where the sizes of groups come in, in words of the control memory.
    sizes_word: usize,
    wire: Wire,
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
        let (shadow_addr, shadow_lkey) = (parts.verbs.control_addr(), parts.verbs.control_lkey());
        let (base, peer) = Base::new(parts, depth);
        let fifo = peer.map_or((0, 0), |peer| (peer.info.fifo_addr, peer.info.fifo_rkey));
        Ok(RecvComm {
            flusher,
            base,
            tail: 0,
            row_mask: depth as u64 - 1,
            remote_fifo: fifo.0,
            remote_rkey: fifo.1,
            shadow_addr,
            shadow_lkey,
            sizes_word: Self::sizes_offset(depth) as usize / 8,
            wire: settings.wire,
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
        let Some((index, entry)) = self.base.reqs.take() else { return Ok(Flush::Busy) };
        entry.value = Recv::default();
        let request = entry.arm(1);
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
            Ok(()) => Ok(Flush::Started(request)),
            Err(error) => Err(self.base.fail(error.into())),
        }
    }

    /// Whether a receive or flush is done, and then what came; `request` is then over.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; or what ended the connection, the same on every call.
    #[inline(always)]
    pub fn test(&mut self, request: &Request) -> Result<Option<Received>, Error> {
        while self.base.reqs.is_waiting(request) {
            match self.base.poll() {
                Ok(0) => return Ok(None),
                polled => _ = self.base.book(polled, route),
            }
        }
        let recv = self.base.done(request)?;
        let received = if recv.nreqs == 1 && recv.imm <= recv.sizes[0] {
            Received { nreqs: 1, sizes: [recv.imm, 0, 0, 0, 0, 0, 0, 0] }
        } else {
            self.received(request)?
        };
        self.base.reqs.give(request);
        Ok(Some(received))
    }

    /// Looks whether the peer still has its end open, which an idle comm does not notice by
    /// itself. Costs a system call on hosts: for now and then.
    ///
    /// # Errors
    /// [`Error::PeerClosed`]. Requests that are complete can still be tested.
    pub fn check_peer(&mut self) -> Result<(), Error> {
        let result = self.base.check_peer(route);
        if result.is_err() {
            // Nobody is left to send.
            self.base.reqs.stop_waiting();
        }
        result
    }

    /// Receives and flushes under way: started, and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.base.reqs.live().count()
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
    /// What is not a receive of one buffer on an open comm.
    #[inline(never)]
    fn recv_grouped(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, Error> {
        if self.base.gate != Gate::Open && !self.pass()? {
            return Ok(None);
        }
        if bufs.is_empty() || bufs.len() > RECVS_MAX {
            return Err(Error::Argument("a receive takes 1 to 8 buffers"));
        }
        self.recv_row(bufs)
    }

    /// Posts 1 to 8 buffers as one row: a receive on each queue pair, and the slots on the first.
    #[inline(always)]
    fn recv_row(&mut self, bufs: impl AsRef<[RecvBuf]>) -> Result<Option<Request>, Error> {
        let bufs = bufs.as_ref();
        for buf in bufs {
            if buf.addr == 0 || buf.rkey == 0 || buf.len > i32::MAX as u32 {
                return Err(refused(buf));
            }
        }
        let row = (self.tail & self.row_mask) as usize;
        let Some((index, entry)) = self.base.reqs.take() else { return Ok(None) };
        let verbs = &self.base.verbs;
        entry.value.nreqs = bufs.len() as u8;
        entry.value.row = row as u8;
        // A signaled slot write completes on the same request.
        let request = entry.arm(verbs.qps.len() as u16 + u16::from(row == 0));
        for (r, buf) in bufs.iter().enumerate() {
            entry.value.sizes[r] = buf.len;
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

    #[inline(always)]
    fn post(&self, index: u8, row: usize, nreqs: usize) -> Result<(), NicError> {
        let verbs = &self.base.verbs;
        let recv = RecvWr { wr_id: u64::from(index), sge: Sge::default() };
        for qp in &verbs.qps {
            verbs.nic.post_recv(qp, &recv)?;
        }
        let row_offset = (row * ROW_BYTES) as u64;
        let mut flags = SendFlags::empty();
        if verbs.settings.use_inline && nreqs == 1 {
            flags |= SendFlags::INLINE;
        }
        // One in a ring asks for a completion: otherwise the send queue never drains.
        if row == 0 {
            flags |= SendFlags::SIGNALED;
        }
        let wr = SendWr {
            wr_id: u64::from(index),
            remote_addr: self.remote_fifo + row_offset,
            sge: Sge {
                addr: self.shadow_addr + row_offset,
                length: (nreqs * SLOT_BYTES) as u32,
                lkey: self.shadow_lkey,
            },
            rkey: self.remote_rkey,
            imm_data: 0,
            opcode: SendOpcode::RdmaWrite,
            flags,
        };
        match verbs.qps.first() {
            Some(qp) => verbs.nic.post_send(qp, &[wr]),
            None => Ok(()),
        }
    }

    /// Sizes of a single message from its immediate; of a group, as the peer wrote them before its
    /// immediate, or by that one's bits.
    #[inline(never)]
    fn received(&mut self, request: &Request) -> Result<Received, Error> {
        let recv = self.base.done(request)?;
        let mut received = Received { nreqs: recv.nreqs, ..Received::default() };
        for (r, size) in received.sizes.iter_mut().enumerate().take(usize::from(recv.nreqs)) {
            let bit = recv.imm >> r & 1;
            *size = match self.wire {
                _ if recv.nreqs == 1 => recv.imm,
                Wire::Nccl214 => bit,
                Wire::Invar => {
                    let word =
                        self.sizes_word + usize::from(recv.row) * SIZES_ROW_BYTES / 8 + r / 2;
                    let words = self.base.verbs.control.words();
                    let pair = words.get(word).map_or(0, |w| w.load(Ordering::Acquire));
                    (u64::from_le(pair) >> (r % 2 * 32)) as u32
                }
            };
            if *size > recv.sizes[r] {
                let error = Error::Overrun { got: *size, posted: recv.sizes[r] };
                return Err(self.base.fail(error));
            }
        }
        Ok(received)
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

/// Books a completion on the request that its `wr_id` names; whether that awaited it.
#[inline]
fn route(reqs: &mut Pool<Recv>, wc: &Wc) -> bool {
    let entry = reqs.at(wr_id::index(wc.wr_id, 0));
    if wc.opcode == WcOpcode::RecvRdmaWithImm {
        // Each queue pair brings the same: the whole size of a single message, not its share.
        entry.value.imm = wc.imm_data;
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
