//! Flushes: the NIC reads received memory back, so that the GPU sees the data that the NIC wrote before
//! (`net_ib.cc ncclIbIflush`). Each rail that carries data reads back what its own NIC wrote.
//!
//! The queue pairs of the flushes do not depend on the peer, so they go on while the other queue pairs are
//! stopped. Each attempt of the recovery replaces them, and starts the flushes under way again.

use super::Request;
use crate::conn::{Peer, RAILS_MAX, RailSet, Verbs, wire_qpn};
use crate::error::Error;
use crate::mutant::{Mutant, is_planted};
use crate::nic::{
    Access, Memory, MemoryKeys, Nic, NicError, PortAttr, QpOptions, SendFlags, SendOpcode, SendWr,
    Sge, Wc,
};
use crate::request::{ROWS, RequestRing};

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
    /// Queue pairs that are connected to themselves: one for each rail that carries data, and none if flushing is
    /// off.
    readers: heapless::Vec<N::Qp, RAILS_MAX>,
    /// Each READ puts its byte here. It is registered once, since a rail that is gone registers nothing more.
    sink: Sge,
    _sink: Option<(N::Mr, N::Memory)>,
    /// The number of times that the readers were replaced. A completion of an earlier reader means nothing.
    generation: u16,
    /// Whether a reader has failed. Then flushes wait until the readers are replaced.
    is_broken: bool,
    /// The flushes under way, each with what it reads.
    reqs: RequestRing<FlushBuf>,
}

/// The reader whose READ has completed with an error.
pub(super) enum ReadFailure {
    /// The reader is known to have failed, or was replaced.
    Known,
    /// The reader worked until now.
    New,
}

/// The highest byte of the `wr_id` of a READ. The generation and the flush's token follow.
const READ: u64 = 0x80 << 56;

const fn wr_id(generation: u16, token: u32) -> u64 {
    READ | (generation as u64) << 32 | token as u64
}

const fn generation(wr_id: u64) -> u16 {
    (wr_id >> 32) as u16
}

impl<N: Nic> Flushes<N> {
    /// Creates the flushes of a comm whose first rail is the only one that carries data.
    pub(super) fn create(verbs: &Verbs<N>) -> Result<Self, Error> {
        let (mut readers, mut sink, mut owned) = (heapless::Vec::new(), Sge::default(), None);
        if verbs.settings.flush {
            let memory = verbs.nic.alloc(size_of::<u64>())?;
            let mr = verbs.reg_own(&memory)?;
            sink = Sge { addr: memory.addr(), length: 1, lkey: mr.lkey() };
            owned = Some((mr, memory));
            let _ = readers.push(create_reader(verbs, verbs.lead())?);
        }
        // NCCL cannot wait for room: a flush of a receive that is over must start, whatever the FIFO's depth is.
        let reqs = RequestRing::new(ROWS, |_| FlushBuf::default());
        Ok(Flushes { readers, sink, _sink: owned, generation: 0, is_broken: false, reqs })
    }

    /// Starts to read one byte of the last buffer that has bytes.
    ///
    /// # Errors
    /// The NIC has refused a READ. Then the flush is under way, and waits for other readers.
    pub(super) fn start(
        &mut self,
        nic: &N,
        bufs: &[FlushBuf],
    ) -> Result<Flush, (Request, NicError)> {
        let Some(buf) = bufs.iter().rev().find(|buf| buf.len > 0) else {
            return Ok(Flush::NotNeeded);
        };
        let Flushes { readers, sink, generation, is_broken, reqs, .. } = self;
        if readers.is_empty() {
            return Ok(Flush::NotNeeded);
        }
        let Some((request, entry)) = reqs.next_free() else { return Ok(Flush::Busy) };
        let wr_id = wr_id(*generation, request.raw());
        let request = request.of_flush();
        entry.arm(request.raw(), readers.len() as u32);
        entry.value = *buf;
        reqs.advance();
        if !*is_broken
            && let Err(error) = readers.iter().try_for_each(|qp| read(nic, qp, *sink, wr_id, buf))
        {
            *is_broken = true;
            return Err((request, error));
        }
        Ok(Flush::Started(request))
    }

    /// Returns whether `token` names a flush that is not over.
    pub(super) fn is_pending(&mut self, token: u32) -> bool {
        self.reqs.at(token).is_pending(token)
    }

    /// Whether the flushes under way wait for other readers.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Ends the flush of `token` if it is done, and returns whether it was.
    pub(super) fn end_if_done(&mut self, token: u32) -> bool {
        self.reqs.at(token).end_if_done(token)
    }

    /// Books the completion of a READ, and returns whether a flush awaited it.
    #[inline(always)]
    pub(super) fn end(&mut self, wr_id: u64) -> bool {
        let is_old = generation(wr_id) != self.generation;
        is_old || self.reqs.at(wr_id as u32).book()
    }

    /// Takes a failed completion. Returns `None` if it is not of a READ.
    pub(super) fn failed(&mut self, wc: &Wc) -> Option<ReadFailure> {
        if wc.wr_id & 0xff << 56 != READ {
            return None;
        }
        let is_old = generation(wc.wr_id) != self.generation;
        Some(match is_old || core::mem::replace(&mut self.is_broken, true) {
            true => ReadFailure::Known,
            false => ReadFailure::New,
        })
    }

    /// Replaces the readers by new ones on the rails that carry data, and starts all flushes under way again.
    ///
    /// # Errors
    /// The rail that has failed, and why. Then the old readers stay.
    pub(super) fn renew(
        &mut self,
        verbs: &Verbs<N>,
        rails: RailSet,
    ) -> Result<(), (usize, NicError)> {
        let Flushes { readers, sink, generation, is_broken, reqs, .. } = self;
        if readers.is_empty() || is_planted(Mutant::KeepReaders) {
            return Ok(());
        }
        let create = |rail| create_reader(verbs, rail).map_err(|error| (rail, error));
        *readers = rails.iter().map(create).collect::<Result<_, _>>()?;
        *generation = generation.wrapping_add(1);
        // Until all flushes have started again.
        *is_broken = true;
        for (token, entry) in reqs.awaiting() {
            entry.rearm(readers.len() as u32);
            for qp in &*readers {
                let read = read(&verbs.nic, qp, *sink, wr_id(*generation, token), &entry.value);
                read.map_err(|error| (verbs.nic.rail_of(qp), error))?;
            }
        }
        *is_broken = false;
        Ok(())
    }

    /// The number of flushes under way.
    pub(super) fn outstanding(&self) -> usize {
        self.reqs.live()
    }
}

/// Creates a queue pair on a rail and connects it to itself.
fn create_reader<N: Nic>(verbs: &Verbs<N>, rail: usize) -> Result<N::Qp, NicError> {
    let qp = verbs.create_own(rail, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let qpn = wire_qpn(verbs.nic.qp_num(&qp));
    let port = verbs.port_of(rail);
    let PortAttr { udp_port, udp_source_ports, .. } = *port;
    let options = port.options & QpOptions::ICRC_MASKS_IP_ID;
    let info = verbs.rail_info(rail);
    let ourselves = Peer { options, udp_port, udp_source_ports, ..Peer::bare(info) };
    verbs.start_qp(&qp, qpn, [verbs.loopback_psn(); 2], &ourselves)?;
    Ok(qp)
}

/// Starts to read the first byte of a buffer into `sink`.
fn read<N: Nic>(
    nic: &N,
    qp: &N::Qp,
    sink: Sge,
    wr_id: u64,
    buf: &FlushBuf,
) -> Result<(), NicError> {
    let rail = nic.rail_of(qp);
    let wr = SendWr {
        wr_id,
        remote_addr: buf.addr,
        rkey: nic.rail_rkeys(buf.rkey)[rail % RAILS_MAX],
        sge: Sge { lkey: nic.rail_lkey(rail, sink.lkey), ..sink },
        opcode: SendOpcode::RdmaRead,
        flags: SendFlags::SIGNALED,
        ..SendWr::default()
    };
    nic.post_send(qp, &[wr])
}
