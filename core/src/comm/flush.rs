//! Flushes: the NIC reads received memory back, so that the GPU sees the data that the NIC wrote before
//! (`net_ib.cc ncclIbIflush`).

use super::Request;
use crate::conn::{Peer, Verbs, fence, wire_qpn};
use crate::error::Error;
use crate::nic::{
    Access, Memory, MemoryKeys, Nic, NicError, PortAttr, QpOptions, SendFlags, SendOpcode, SendWr,
    Sge,
};
use crate::request::RequestRing;

/// Received memory to flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushBuf {
    /// Address of the first byte.
    pub addr: u64,
    /// Number of bytes received.
    pub len: u32,
    /// Remote key of the region that contains the memory.
    pub rkey: u32,
}

/// The result of starting a flush.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Flush {
    /// No flush is needed: flushing is off, or no buffer has bytes. The data can be used.
    NotNeeded,
    /// The flush is under way: test the request.
    Started(Request),
    /// No request is free: call again.
    Busy,
}

/// The flushes of a comm.
pub(super) struct Flushes<N: Nic> {
    reader: Option<Reader<N>>,
    /// Whether the queue pair has failed. Then flushes wait until it is replaced.
    is_broken: bool,
    /// The flushes under way, each with what it reads.
    reqs: RequestRing<FlushBuf>,
}

/// A queue pair that is connected to itself.
struct Reader<N: Nic> {
    qp: N::Qp,
    mr: N::Mr,
    /// Each READ puts its byte here.
    memory: N::Memory,
}

impl<N: Nic> Flushes<N> {
    pub(super) fn create(verbs: &Verbs<N>) -> Result<Self, Error> {
        let reader = if verbs.settings.flush { Some(Reader::create(verbs)?) } else { None };
        Ok(Flushes {
            reader,
            is_broken: false,
            reqs: RequestRing::new(verbs.settings.depth().into(), |_| FlushBuf::default()),
        })
    }

    /// Starts to read one byte of the last buffer that has bytes.
    pub(super) fn start(&mut self, nic: &N, bufs: &[FlushBuf]) -> Result<Flush, NicError> {
        let last = bufs.iter().rev().find(|buf| buf.len > 0);
        let (Some(reader), Some(buf)) = (&self.reader, last) else { return Ok(Flush::NotNeeded) };
        self.reqs.come_around();
        let Some((request, entry)) = self.reqs.next_free() else { return Ok(Flush::Busy) };
        let wr_id = request.raw().into();
        let request = request.of_flush();
        entry.arm(request.raw(), 1);
        entry.value = *buf;
        if !self.is_broken {
            reader.read(nic, wr_id, buf)?;
        }
        self.reqs.advance();
        Ok(Flush::Started(request))
    }

    /// Returns whether `token` names a flush that is not over.
    pub(super) fn is_pending(&mut self, token: u32) -> bool {
        self.reqs.at(token).is_pending(token)
    }

    /// Ends the flush of `token` if it is done, and returns whether it was.
    pub(super) fn end_if_done(&mut self, token: u32) -> bool {
        self.reqs.at(token).end_if_done(token)
    }

    /// Books the completion of a READ, and returns whether a flush awaited it.
    pub(super) fn end(&mut self, wr_id: u64) -> bool {
        self.reqs.at(wr_id as u32).book()
    }

    /// Notes that a queue pair has failed, which may be the one of the flushes.
    pub(super) fn failed(&mut self, nic: &N, qpn: u32) {
        self.is_broken |= self.reader.as_ref().is_some_and(|reader| nic.qp_num(&reader.qp) == qpn);
    }

    /// Stops the queue pair if it has failed, and returns how many completions of the fence follow. A
    /// queue pair that works goes on: the flushes do not depend on the peer.
    pub(super) fn fence(&self, nic: &N) -> u32 {
        let reader = self.reader.as_ref().filter(|_| self.is_broken);
        reader.map_or(0, |reader| fence(nic, &reader.qp, false))
    }

    /// Replaces the queue pair if it has failed, and starts all flushes under way again.
    pub(super) fn renew(&mut self, verbs: &Verbs<N>) -> Result<(), NicError> {
        let Some(reader) = self.reader.as_mut().filter(|_| self.is_broken) else { return Ok(()) };
        *reader = Reader::create(verbs)?;
        self.is_broken = false;
        let mut under_way = self.reqs.awaiting();
        under_way.try_for_each(|(wr_id, buf)| reader.read(&verbs.nic, wr_id.into(), buf))
    }

    /// The number of flushes under way.
    pub(super) fn outstanding(&self) -> usize {
        self.reqs.live()
    }
}

impl<N: Nic> Reader<N> {
    fn create(verbs: &Verbs<N>) -> Result<Self, NicError> {
        let memory = verbs.nic.alloc(size_of::<u64>())?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let (qp, mr) = verbs.create_own(&memory, access)?;
        let qpn = wire_qpn(verbs.nic.qp_num(&qp));
        let info = verbs.info(verbs.port.active_mtu);
        let options = verbs.port.options & QpOptions::ICRC_MASKS_IP_ID;
        let PortAttr { udp_port, udp_source_ports, .. } = verbs.port;
        let ourselves = Peer { options, udp_port, udp_source_ports, ..Peer::bare(info) };
        verbs.start_qp(&qp, qpn, [verbs.loopback_psn(); 2], &ourselves)?;
        Ok(Reader { qp, mr, memory })
    }

    /// Starts to read the first byte of a buffer.
    fn read(&self, nic: &N, wr_id: u64, buf: &FlushBuf) -> Result<(), NicError> {
        let sge = Sge { addr: self.memory.addr(), length: 1, lkey: self.mr.lkey() };
        let wr = SendWr {
            wr_id,
            remote_addr: buf.addr,
            rkey: nic.rail_rkey(nic.rail_of(&self.qp), buf.rkey),
            sge,
            opcode: SendOpcode::RdmaRead,
            flags: SendFlags::SIGNALED,
            ..SendWr::default()
        };
        nic.post_send(&self.qp, &[wr])
    }
}
