//! Inline data and lists of buffers of posted work requests, and the parts of a device that its queue pairs
//! can access.

use std::ops::Range;

use invar_core::nic::{Access, Atomic, RecvWr, Sge, Wc, WcStatus};
use invar_core::roce::NakCode;
use invar_core::roce::qp::{AccessFault, Destination, Env, Payload, QpSide, Queue, Region};

use super::completion::CompletionQueue;
use super::datagram::Receivers;
use super::lists::Lists;
use super::region::Regions;
use super::shared_receive::SharedQueue;
use super::table::Table;
use super::window::{LocalWork, Windows};
use super::{AsyncEvent, Subject};

/// The parts of a queue pair that the device keeps for the engine's work requests.
pub(super) struct Posted {
    pub(super) pd: u32,
    /// The protection domain of receives: that of the shared receive queue, if there is one.
    pub(super) recv_pd: u32,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) inline: Inline,
    pub(super) send_lists: Lists,
    pub(super) recv_lists: Lists,
    /// Atomics by slot of the send queue. The list is empty until the first atomic.
    pub(super) atomics: Vec<Option<Atomic>>,
    /// Local operations by slot of the send queue. The list is empty until the first one.
    pub(super) locals: Vec<Option<LocalWork>>,
    /// Receivers of datagrams. The list is empty for a connection.
    pub(super) receivers: Receivers,
    pub(super) qpn: u32,
    /// The shared receive queue.
    pub(super) srq: Option<u32>,
    /// Whether the queue pair has raised [`AsyncEvent::LastWqeReached`].
    pub(super) told_last: bool,
}

/// Copies of inline data, by slot of the send queue.
pub(super) struct Inline {
    pub(super) bytes: Vec<u8>,
    pub(super) slot_bytes: usize,
}

/// The parts of the device that an engine can access.
pub(super) struct DeviceEnv<'a> {
    pub(super) regions: &'a Regions,
    pub(super) windows: &'a mut Windows,
    pub(super) cqs: &'a mut Table<CompletionQueue>,
    /// Completion queues that have raised an event.
    pub(super) events: &'a mut Vec<u32>,
    pub(super) srqs: &'a mut Table<SharedQueue>,
    pub(super) notices: &'a mut Vec<(Subject, AsyncEvent)>,
}

/// The host of one queue pair's engine.
pub(super) struct QpEnv<'a, 'd> {
    pub(super) device: &'a mut DeviceEnv<'d>,
    pub(super) posted: &'a mut Posted,
}

impl Env for QpEnv<'_, '_> {
    #[inline]
    fn resolve(
        &mut self,
        key: u32,
        addr: u64,
        len: u32,
        need: Access,
        side: QpSide,
    ) -> Result<Region, AccessFault> {
        let (pd, qpn) = (self.posted.domain(side), self.posted.qpn);
        let DeviceEnv { regions, windows, .. } = &*self.device;
        match regions.resolve((pd, side), key, addr, len, need) {
            Err(AccessFault) if side == QpSide::Remote => {
                windows.resolve(regions, (pd, qpn), key, (addr, len), need)
            }
            resolved => resolved,
        }
    }

    #[inline]
    fn place(&mut self, to: Region, payload: &[u8]) {
        self.device.regions.place(to, payload);
        if let Some(cq) = self.device.cqs.get_mut(self.posted.recv_cq)
            && cq.written()
        {
            self.device.events.push(self.posted.recv_cq);
        }
    }

    fn gather(
        &mut self,
        slot: u16,
        offset: u32,
        len: u32,
        packets: u32,
    ) -> Result<Payload, AccessFault> {
        let (posted, regions) = (&*self.posted, self.device.regions);
        let mut pieces = posted.send_lists.pieces(slot, offset, packets * len);
        let first = pieces.next().ok_or(AccessFault)?;
        let region = posted.resolve(regions, QpSide::Local, &first, Access::empty())?;
        if first.length == packets * len {
            return Ok(Payload::Memory { region, len });
        }
        for piece in pieces {
            posted.resolve(regions, QpSide::Local, &piece, Access::empty())?;
        }
        Ok(Payload::List { slot, offset, len })
    }

    fn scatter(
        &mut self,
        queue: Queue,
        slot: u16,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), AccessFault> {
        let (posted, regions) = (&*self.posted, self.device.regions);
        let (lists, side) = match queue {
            Queue::Send => (&posted.send_lists, QpSide::Local),
            Queue::Recv => (&posted.recv_lists, QpSide::Receive),
        };
        let pieces = || lists.pieces(slot, offset, payload.len() as u32);
        for piece in pieces() {
            posted.resolve(regions, side, &piece, Access::LOCAL_WRITE)?;
        }
        let mut rest = payload;
        for piece in pieces() {
            let region = posted.resolve(regions, side, &piece, Access::LOCAL_WRITE)?;
            let (bytes, behind) = rest.split_at(piece.length as usize);
            regions.place(region, bytes);
            rest = behind;
        }
        Ok(())
    }

    fn atomic(&mut self, slot: u16) -> Option<Atomic> {
        self.posted.atomics.get(usize::from(slot)).copied().flatten()
    }

    fn local(&mut self, slot: u16) -> Result<(), WcStatus> {
        let Posted { pd, qpn, ref locals, .. } = *self.posted;
        let work = locals.get(usize::from(slot)).and_then(Option::as_ref);
        let DeviceEnv { regions, windows, .. } = &mut *self.device;
        windows.carry_out(regions, (pd, qpn), work.ok_or(WcStatus::LOC_QP_OP_ERR)?)
    }

    fn invalidate(&mut self, key: u32) -> Result<(), AccessFault> {
        self.device.windows.invalidate((self.posted.pd, self.posted.qpn), key)
    }

    fn destination(&mut self, slot: u16) -> Option<Destination> {
        self.posted.receivers.get(slot).map(|receiver| receiver.destination)
    }

    fn update(&mut self, at: Region, atomic: Atomic) -> Result<u64, AccessFault> {
        self.device.regions.update(at, atomic)
    }

    fn take_receive(&mut self, slot: u16) -> Option<(RecvWr, bool)> {
        let srq = self.posted.srq?;
        let queue = self.device.srqs.get_mut(srq)?;
        let (wr, has_list, reached) = queue.take(&mut self.posted.recv_lists, slot)?;
        if reached {
            self.device.notices.push((Subject::Srq(srq), AsyncEvent::SrqLimit));
        }
        Some((wr, has_list))
    }

    fn refused(&mut self, code: NakCode) {
        self.device.notices.push((Subject::Qp(self.posted.qpn), code.into()));
    }

    #[inline]
    fn complete(&mut self, queue: Queue, wc: Wc, solicited: bool) {
        let number = match queue {
            Queue::Send => self.posted.send_cq,
            Queue::Recv => self.posted.recv_cq,
        };
        // If the completion queue is gone, nobody can receive the completion.
        if let Some(cq) = self.device.cqs.get_mut(number)
            && cq.push(wc, solicited)
        {
            self.device.events.push(number);
        }
    }
}

impl Posted {
    /// The requests of a queue pair that posts nothing.
    pub(super) const NONE: Posted = Posted {
        pd: 0,
        recv_pd: 0,
        send_cq: 0,
        recv_cq: 0,
        inline: Inline { bytes: Vec::new(), slot_bytes: 0 },
        send_lists: Lists { sges: Vec::new(), slot_sges: 0 },
        recv_lists: Lists { sges: Vec::new(), slot_sges: 0 },
        atomics: Vec::new(),
        locals: Vec::new(),
        receivers: Receivers::NONE,
        qpn: 0,
        srq: None,
        told_last: false,
    };

    /// Removes the completions that nobody has taken.
    pub(super) fn forget_completions(&self, cqs: &mut Table<CompletionQueue>) {
        for cq in [self.send_cq, self.recv_cq] {
            cqs.get_mut(cq).into_iter().for_each(|cq| cq.forget(self.qpn));
        }
    }

    /// Whether a completion queue of the queue pair overflowed.
    #[inline]
    pub(super) fn overrun(&self, cqs: &Table<CompletionQueue>) -> bool {
        let overrun = |cq| cqs.get(cq).is_some_and(CompletionQueue::overrun);
        overrun(self.send_cq) || self.recv_cq != self.send_cq && overrun(self.recv_cq)
    }

    /// Returns the protection domain of a key's region.
    #[inline]
    fn domain(&self, side: QpSide) -> u32 {
        match side {
            QpSide::Receive => self.recv_pd,
            QpSide::Local | QpSide::Remote => self.pd,
        }
    }

    /// Finds the bytes of a buffer of this end.
    pub(super) fn resolve(
        &self,
        regions: &Regions,
        side: QpSide,
        sge: &Sge,
        need: Access,
    ) -> Result<Region, AccessFault> {
        regions.resolve((self.domain(side), side), sge.lkey, sge.addr, sge.length, need)
    }

    /// Returns the room for inline data that is being posted.
    #[inline]
    pub(super) fn inline_mut(&mut self, slot: u16, len: u32) -> &mut [u8] {
        self.inline.get_mut(slot, len)
    }

    /// Copies the payload of a packet to `bytes`, which has its length. Returns false if memory was
    /// deregistered since.
    #[inline]
    pub(super) fn fetch(&self, payload: Payload, regions: &Regions, bytes: &mut [u8]) -> bool {
        match payload {
            Payload::None => true,
            Payload::Inline { slot, offset, len } => {
                bytes.copy_from_slice(self.inline.get(slot, offset, len));
                true
            }
            Payload::Memory { region, .. } => regions.fetch(region, bytes),
            Payload::List { slot, offset, len } => {
                let mut rest = bytes;
                for piece in self.send_lists.pieces(slot, offset, len) {
                    let region = self.resolve(regions, QpSide::Local, &piece, Access::empty());
                    let Ok(region) = region else { return false };
                    let (bytes, behind) = rest.split_at_mut(piece.length as usize);
                    if !regions.fetch(region, bytes) {
                        return false;
                    }
                    rest = behind;
                }
                true
            }
        }
    }
}

impl Inline {
    /// Returns posted inline data.
    #[inline]
    fn get(&self, slot: u16, offset: u32, len: u32) -> &[u8] {
        &self.bytes[self.range(slot, offset, len)]
    }

    /// Returns the room for inline data that is being posted.
    #[inline]
    fn get_mut(&mut self, slot: u16, len: u32) -> &mut [u8] {
        let range = self.range(slot, 0, len);
        &mut self.bytes[range]
    }

    fn range(&self, slot: u16, offset: u32, len: u32) -> Range<usize> {
        let start = usize::from(slot) * self.slot_bytes + offset as usize;
        start..start + len as usize
    }
}
