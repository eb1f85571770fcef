//! Slots of pinned host memory between a GPU and an end of a connection.

use invar_core::comm;
use invar_core::device::data_access;
use invar_core::error::Error as CoreError;
use invar_core::nic::Memory;
use invar_core::staging::{Chunk, ChunkStage, Done, Port, Started, TRAILER_BYTES, Trailer};
use invar_cuda::{Direction, Gpu, GpuMemory, MemoryError, StagingBuffer};
use invar_linux::memory::HostMemory;

use super::StagedMessage;
use super::budget::Share;
use crate::error::Kind;
use crate::memory_numbers::STAGED_BYTES;
use crate::raw::{End, Keys, RecvBuf, RecvEnd, Registration, SendBuf, SendEnd};
use crate::settings::StagingSize;
use crate::{Device, Error};

/// Slots begin at multiples of a cache line.
const ALIGN_BYTES: usize = 64;

/// Pinned and registered host memory, cut into slots, and the request that is under way for each slot.
pub(super) struct Slots {
    requests: Vec<Option<comm::Request>>,
    keys: Keys,
    // The registration ends before the memory.
    _registration: Registration,
    buffer: StagingBuffer,
    _share: Share<'static>,
}

impl Slots {
    pub(super) fn new(
        device: &Device,
        memory: &GpuMemory,
        size: StagingSize,
    ) -> Result<Self, Error> {
        let share = size.take_share(&device.info().name)?;
        let buffer = StagingBuffer::new(memory.gpu(), share.slots(), size.slot_bytes())
            .map_err(|error| Kind::Gpu(error.into()))?;
        let registration = device
            .adapter()
            .reg_mr(buffer.memory(), data_access(0, false))
            .map_err(|error| device.failed(error))?;
        let keys = Keys { lkey: registration.lkey(), rkey: registration.rkey() };
        let requests = (0..share.slots()).map(|_| None).collect();
        Ok(Slots { requests, keys, _registration: registration, buffer, _share: share })
    }

    pub(super) fn count(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn gpu(&self) -> &Gpu {
        self.buffer.gpu()
    }

    fn slot_memory(&self, slot: usize) -> SlotMemory<'_> {
        let start = slot * self.buffer.slot_bytes();
        SlotMemory { memory: self.buffer.memory(), start, keys: self.keys }
    }
}

impl StagingSize {
    /// Bytes of a slot, which has room for a chunk and a trailer.
    pub(super) fn slot_bytes(self) -> usize {
        (Trailer::room(self.chunk_bytes) as usize).next_multiple_of(ALIGN_BYTES)
    }
}

/// The memory of a slot, and its keys.
pub(crate) struct SlotMemory<'a> {
    memory: &'a HostMemory,
    start: usize,
    keys: Keys,
}

impl SlotMemory<'_> {
    fn addr(&self) -> u64 {
        self.memory.addr() + self.start as u64
    }
}

/// An end of a connection that sends messages from slots, or receives messages into slots.
pub(crate) trait StagedWire: End {
    /// The stage in which the GPU copies a chunk. In the other stage the chunk is on the wire.
    const COPY: ChunkStage;
    const DIRECTION: Direction;

    /// Starts a chunk's message. Returns no request if the message cannot start yet.
    ///
    /// # Safety
    /// The caller keeps the promises of [`SendEnd::isend`] and [`RecvEnd::irecv`].
    unsafe fn start(
        &mut self,
        slot: &SlotMemory<'_>,
        chunk: &Chunk<'_, StagedMessage>,
    ) -> Result<(Option<comm::Request>, Started), Broken>;

    fn finished(
        &mut self,
        request: &comm::Request,
        slot: &SlotMemory<'_>,
        chunk: &Chunk<'_, StagedMessage>,
    ) -> Result<Option<Done>, Broken>;
}

impl StagedWire for dyn SendEnd {
    const COPY: ChunkStage = ChunkStage::Fill;
    const DIRECTION: Direction = Direction::ToHost;

    unsafe fn start(
        &mut self,
        slot: &SlotMemory<'_>,
        chunk: &Chunk<'_, StagedMessage>,
    ) -> Result<(Option<comm::Request>, Started), Broken> {
        let Chunk { data: &StagedMessage { tag, .. }, mut len, of, chunk_bytes, .. } = *chunk;
        let Some(room) = self.room(tag).map_err(Broken::Wire)? else {
            return Ok((None, Started::Pending));
        };
        let Some(has_trailer) = chunk.trailer_into(room) else {
            return Err(Broken::Uncut { of, chunk_bytes, room, tag });
        };
        if has_trailer {
            let end = slot.start + len as usize;
            let written = slot.memory.write_at(end, &Trailer { of }.to_bytes());
            written.map_err(|error| Broken::Copy(error.into()))?;
            len += TRAILER_BYTES as u32;
        }
        let buf = SendBuf { addr: slot.addr(), len, lkey: slot.keys.lkey };
        // SAFETY: the caller's promise; the trailer is written by now.
        let request = unsafe { self.isend(&buf, tag) }.map_err(Broken::Wire)?;
        Ok((request, if has_trailer { Started::AwaitsMore } else { Started::Whole }))
    }

    fn finished(
        &mut self,
        request: &comm::Request,
        _: &SlotMemory<'_>,
        chunk: &Chunk<'_, StagedMessage>,
    ) -> Result<Option<Done>, Broken> {
        let sent = self.test(request).map_err(Broken::Wire)?;
        Ok(sent.map(|_| chunk.own()))
    }
}

impl StagedWire for dyn RecvEnd {
    const COPY: ChunkStage = ChunkStage::Drain;
    const DIRECTION: Direction = Direction::ToGpu;

    unsafe fn start(
        &mut self,
        slot: &SlotMemory<'_>,
        chunk: &Chunk<'_, StagedMessage>,
    ) -> Result<(Option<comm::Request>, Started), Broken> {
        let (len, tag, rkey) = (chunk.room(), chunk.data.tag, slot.keys.rkey);
        // SAFETY: the caller's promise.
        let request = unsafe { self.irecv(&[RecvBuf { addr: slot.addr(), len, tag, rkey }]) };
        Ok((request.map_err(Broken::Wire)?, Started::Whole))
    }

    fn finished(
        &mut self,
        request: &comm::Request,
        slot: &SlotMemory<'_>,
        chunk: &Chunk<'_, StagedMessage>,
    ) -> Result<Option<Done>, Broken> {
        let mut came = 0;
        // SAFETY: the receive has one buffer.
        let received = unsafe { self.test(request, &mut came) }.map_err(Broken::Wire)?;
        Ok(received.map(|_| {
            chunk.received(came, |at| {
                let mut trailer = [0; TRAILER_BYTES];
                slot.memory.read_at(slot.start + at, &mut trailer).ok()?;
                Some(trailer)
            })
        }))
    }
}

/// The reason why a chunk failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error(transparent)]
    Wire(CoreError),
    #[error(transparent)]
    Copy(MemoryError),
    #[error(
        "a staged send of {of} bytes in chunks of {chunk_bytes} meets a receive of {room} bytes \
         (tag {tag:#x}): the receive is too short, the peer does not stage it, or the peer has \
         another INVAR_STAGING_CHUNK_BYTES; both ends must stage a message that is longer than a \
         chunk"
    )]
    Uncut { of: u64, chunk_bytes: u32, room: u32, tag: u32 },
}

/// Slots between a GPU and an end.
pub(super) struct Through<'a, W: ?Sized> {
    pub(super) slots: &'a mut Slots,
    pub(super) end: &'a mut W,
}

impl<W: StagedWire + ?Sized> Port<StagedMessage> for Through<'_, W> {
    type Error = Broken;

    fn start(
        &mut self,
        stage: ChunkStage,
        chunk: &Chunk<'_, StagedMessage>,
    ) -> Result<Started, Broken> {
        let Chunk { data: message, slot, offset, len, .. } = *chunk;
        if stage == W::COPY {
            if let Some(memory) = message.region.staged().filter(|_| len > 0) {
                let start = message.start + offset as usize;
                self.slots
                    .buffer
                    .start(slot, W::DIRECTION, memory, start, len as usize)
                    .map_err(Broken::Copy)?;
                STAGED_BYTES.add(len.into());
            }
            return Ok(Started::Whole);
        }
        // SAFETY: the slot is registered, and belongs to the pipeline until the message is done. Only
        // the GPU's copies touch its bytes, before or after the message. The end is dropped before the
        // slots.
        let (request, started) = unsafe { self.end.start(&self.slots.slot_memory(slot), chunk) }?;
        let is_started = request.is_some();
        self.slots.requests[slot] = request;
        Ok(if is_started { started } else { Started::Pending })
    }

    fn finished(
        &mut self,
        stage: ChunkStage,
        chunk: &Chunk<'_, StagedMessage>,
    ) -> Result<Option<Done>, Broken> {
        if stage == W::COPY {
            let done = self.slots.buffer.is_done(chunk.slot);
            let is_done = done.map_err(|error| Broken::Copy(error.into()))?;
            return Ok(is_done.then(|| chunk.own()));
        }
        match &self.slots.requests[chunk.slot] {
            Some(request) => self.end.finished(request, &self.slots.slot_memory(chunk.slot), chunk),
            None => Ok(None),
        }
    }
}
