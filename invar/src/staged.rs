//! Messages from and to GPU memory that the NIC does not reach.
//!
//! They pass through pinned host memory, chunk by chunk ([`invar_core::staging`]): here the
//! pipeline gets its copies done by the GPU's driver, and its messages by an end of a connection.
//! A comm has one [`Staged`], which comes to life with the first such message.

use std::ops::Range;

use invar_core::comm;
use invar_core::device::data_access;
use invar_core::error::{Error as CoreError, Fault};
use invar_core::nic::Memory;
use invar_core::param::Params;
use invar_core::staging::{Chunk, Failure, Pipeline, Port, Stage};
use invar_cuda::{Direction, GpuMemory, MemoryError, StagingBuffer};

use crate::error::Kind;
use crate::raw::{End, Keys, RecvBuf, RecvEnd, Registration, SendBuf, SendEnd};
use crate::{Device, Error, MemoryRegion};

/// How much host memory messages may pass through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) chunk_bytes: u32,
    pub(crate) slots: usize,
}

impl From<&Params<'_>> for Size {
    fn from(params: &Params<'_>) -> Self {
        Size { chunk_bytes: params.staging_chunk_bytes, slots: params.staging_slots.into() }
    }
}

impl Size {
    /// An error of a connection, and what may be behind it where a message meets a receive of just a
    /// chunk.
    pub(crate) fn explain(self, error: CoreError, failed: Error) -> Error {
        let CoreError::SizeMismatch { remote, .. } = error else { return failed };
        if remote != self.chunk_bytes {
            return failed;
        }
        let text = format!(
            "{failed}; as long as that is what a receive into staged GPU memory posts at a time \
             (INVAR_STAGING_CHUNK_BYTES): what is longer must be staged at both ends"
        );
        Kind::Connection { error, text }.into()
    }
}

/// The staged messages of an end.
pub(crate) struct Staged {
    size: Size,
    active: Option<Box<Active>>,
}

struct Active {
    size: Size,
    pipeline: Pipeline<Message>,
    slots: Slots,
    /// What ended the pipeline; it stays.
    failed: Option<(Fault, String)>,
}

/// A message, or the room for one.
struct Message {
    region: MemoryRegion,
    start: usize,
    len: u64,
    tag: u32,
}

/// Pinned host memory, registered, and what is on the wire from or to each slot.
struct Slots {
    requests: Vec<Option<comm::Request>>,
    keys: Keys,
    // Ends before the memory.
    _registration: Registration,
    buffer: StagingBuffer,
}

impl Staged {
    pub(crate) fn new(size: Size) -> Self {
        Staged { size, active: None }
    }

    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// Begins a message and gives its number. `None`, where too many are under way: call again.
    pub(crate) fn begin(
        &mut self,
        device: &Device,
        (region, memory): (&MemoryRegion, &GpuMemory),
        range: &Range<usize>,
        tag: u32,
    ) -> Result<Option<u64>, Error> {
        let active = match &mut self.active {
            Some(active) => active,
            None => self.active.insert(Box::new(Active::new(device, memory, self.size)?)),
        };
        let (ours, theirs) = (active.slots.buffer.gpu().info(), memory.gpu().info());
        if ours.ordinal != theirs.ordinal {
            let text = format!(
                "memory of GPU {} on a connection that stages memory of GPU {}: each GPU needs a \
                 connection of its own",
                theirs.ordinal, ours.ordinal
            );
            return Err(Kind::Usage(text).into());
        }
        let len = range.len() as u64;
        let message = Message { region: region.clone(), start: range.start, len, tag };
        Ok(active.pipeline.push(message, len).ok())
    }

    /// Whether a message with this tag is under way, which no other may overtake.
    #[inline]
    pub(crate) fn has(&self, tag: u32) -> bool {
        let mut active = self.active.iter();
        active.any(|active| active.pipeline.pending().any(|message| message.tag == tag))
    }

    /// Goes on with all messages, without waiting.
    #[inline]
    pub(crate) fn advance<W: Wire + ?Sized>(&mut self, end: &mut W) -> Result<(), Error> {
        match &mut self.active {
            Some(active) if !active.pipeline.is_idle() => active.advance(end),
            _ => Ok(()),
        }
    }

    /// The bytes of a message that is done, which is then over; `None`, where it is not.
    pub(crate) fn take(&mut self, number: u64) -> Result<Option<u32>, Error> {
        let Some(Active { pipeline, .. }) = self.active.as_deref_mut() else { return Ok(None) };
        match pipeline.take(number) {
            // No region gives a range that is longer.
            Some((_, bytes)) => Ok(Some(bytes as u32)),
            None if pipeline.is_done(number) => {
                Err(Kind::Usage("a request that is over".to_owned()).into())
            }
            None => Ok(None),
        }
    }
}

impl Active {
    fn new(device: &Device, memory: &GpuMemory, size: Size) -> Result<Self, Error> {
        let Size { chunk_bytes, slots } = size;
        let buffer = StagingBuffer::new(memory.gpu(), slots, chunk_bytes as usize)
            .map_err(|error| Kind::Gpu(error.into()))?;
        let registration = device
            .adapter()
            .reg_mr(buffer.memory(), data_access(0, false))
            .map_err(|error| device.failed(error))?;
        let keys = Keys { lkey: registration.lkey(), rkey: registration.rkey() };
        let requests = (0..slots).map(|_| None).collect();
        let slots_of = Slots { requests, keys, _registration: registration, buffer };
        let pipeline = Pipeline::new(chunk_bytes, slots);
        Ok(Active { size, pipeline, slots: slots_of, failed: None })
    }

    fn advance<W: Wire + ?Sized>(&mut self, end: &mut W) -> Result<(), Error> {
        if let Some((fault, text)) = &self.failed {
            return Err(Kind::Staging { fault: *fault, text: text.clone() }.into());
        }
        let mut through = Through { slots: &mut self.slots, end };
        let Err(failure) = self.pipeline.advance(&mut through) else { return Ok(()) };
        let error = match failure {
            Failure::Port(Broken::Wire(error)) => self.size.explain(error, end.failed(error)),
            Failure::Port(Broken::Copy(error)) => Kind::Gpu(error).into(),
            Failure::Port(uncut @ Broken::Uncut { .. }) => {
                let text = format!("{}: {uncut}", end.ends().device);
                Kind::Staging { fault: Fault::Usage, text }.into()
            }
            short @ Failure::Short { .. } => {
                let text = format!("{}: {short}", end.ends().device);
                Kind::Staging { fault: Fault::Peer, text }.into()
            }
        };
        self.failed = Some((error.fault(), error.to_string()));
        Err(error)
    }
}

/// Registered bytes: a message's.
pub(crate) struct Bytes {
    addr: u64,
    len: u32,
    keys: Keys,
}

/// What a message that is started gives; `None`: not yet.
type Started = Result<Option<comm::Request>, CoreError>;

/// An end of a connection, one message at a time: what goes out of a slot or into it.
pub(crate) trait Wire: End {
    /// Which stage of a chunk its copy is; the other one is its message.
    const COPY: Stage;
    const DIRECTION: Direction;

    /// # Safety
    /// As of [`SendEnd::isend`] and [`RecvEnd::irecv`].
    unsafe fn start(&mut self, bytes: &Bytes, tag: u32) -> Started;
    fn finished(&mut self, request: &comm::Request) -> Result<Option<u32>, CoreError>;
    /// Bytes that the other end has for it, as far as this one can know; `None`: not yet.
    fn met_by(&mut self, bytes: &Bytes, tag: u32) -> Result<Option<u32>, CoreError>;
}

impl Wire for dyn SendEnd {
    const COPY: Stage = Stage::Fill;
    const DIRECTION: Direction = Direction::ToHost;

    unsafe fn start(&mut self, bytes: &Bytes, tag: u32) -> Started {
        // SAFETY: the caller's promise.
        unsafe {
            self.isend(&SendBuf { addr: bytes.addr, len: bytes.len, lkey: bytes.keys.lkey }, tag)
        }
    }

    fn finished(&mut self, request: &comm::Request) -> Result<Option<u32>, CoreError> {
        self.test(request)
    }

    fn met_by(&mut self, _: &Bytes, tag: u32) -> Result<Option<u32>, CoreError> {
        self.room(tag)
    }
}

impl Wire for dyn RecvEnd {
    const COPY: Stage = Stage::Drain;
    const DIRECTION: Direction = Direction::ToGpu;

    unsafe fn start(&mut self, bytes: &Bytes, tag: u32) -> Started {
        // SAFETY: the caller's promise.
        unsafe {
            self.irecv(&[RecvBuf { addr: bytes.addr, len: bytes.len, tag, rkey: bytes.keys.rkey }])
        }
    }

    fn finished(&mut self, request: &comm::Request) -> Result<Option<u32>, CoreError> {
        let mut size = 0;
        // SAFETY: the receive has one buffer.
        Ok(unsafe { self.test(request, &mut size) }?.map(|_| size))
    }

    fn met_by(&mut self, bytes: &Bytes, _: u32) -> Result<Option<u32>, CoreError> {
        Ok(Some(bytes.len))
    }
}

/// What went wrong with a chunk.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Wire(CoreError),
    #[error(transparent)]
    Copy(MemoryError),
    #[error(
        "a staged send of {len} bytes in messages of {chunk_bytes} meets a receive of {room} bytes \
         (tag {tag:#x}): the peer does not stage it, or its INVAR_STAGING_CHUNK_BYTES is another; \
         what is longer than a message must be staged at both ends"
    )]
    Uncut { len: u64, chunk_bytes: u32, room: u32, tag: u32 },
}

/// Slots between a GPU and an end.
struct Through<'a, W: ?Sized> {
    slots: &'a mut Slots,
    end: &'a mut W,
}

impl<W: Wire + ?Sized> Port<Message> for Through<'_, W> {
    type Error = Broken;

    fn start(&mut self, stage: Stage, chunk: &Chunk<'_, Message>) -> Result<bool, Broken> {
        let Chunk { data: message, slot, offset, len } = *chunk;
        let Slots { requests, keys, buffer, .. } = &mut *self.slots;
        if stage == W::COPY {
            if let Some(memory) = message.region.staged().filter(|_| len > 0) {
                let start = message.start + offset as usize;
                buffer
                    .start(slot, W::DIRECTION, memory, start, len as usize)
                    .map_err(Broken::Copy)?;
            }
            return Ok(true);
        }
        let addr = buffer.memory().addr() + (slot * buffer.slot_bytes()) as u64;
        let bytes = Bytes { addr, len, keys: *keys };
        if offset + u64::from(len) < message.len {
            let met = self.end.met_by(&bytes, message.tag).map_err(Broken::Wire)?;
            let Some(room) = met else { return Ok(false) };
            if room != len {
                let Message { len: whole, tag, .. } = *message;
                return Err(Broken::Uncut { len: whole, chunk_bytes: len, room, tag });
            }
        }
        // SAFETY: the slot is registered, and the pipeline's until the message is done; its bytes
        // are touched by the GPU's copies only, which go before it or after it. The end goes first.
        let request = unsafe { self.end.start(&bytes, message.tag) };
        requests[slot] = request.map_err(Broken::Wire)?;
        Ok(requests[slot].is_some())
    }

    fn finished(
        &mut self,
        stage: Stage,
        chunk: &Chunk<'_, Message>,
    ) -> Result<Option<u32>, Broken> {
        let Slots { requests, buffer, .. } = &mut *self.slots;
        if stage == W::COPY {
            let done = buffer.is_done(chunk.slot).map_err(|error| Broken::Copy(error.into()))?;
            return Ok(done.then_some(chunk.len));
        }
        match &requests[chunk.slot] {
            Some(request) => self.end.finished(request).map_err(Broken::Wire),
            None => Ok(None),
        }
    }
}
