//! Messages from and to GPU memory that the NIC does not reach.
//!
//! Each message passes through pinned host memory, chunk by chunk. The pipeline of
//! [`invar_core::staging`] orders the chunks. This module lets the GPU's driver copy them, and an end of a
//! connection carry them. A comm has one [`Staged`], which takes no memory before the first such message.

mod budget;
mod host_copy;
mod lookalike;
mod wire;

use std::ops::Range;

use invar_core::comm;
use invar_core::error::{Error as CoreError, ErrorKind};
use invar_core::staging::{ChunkStage, Failure, Pipeline, Trailer};
use invar_cuda::GpuMemory;

use crate::error::Kind;
use crate::raw::RecvEnd;
use crate::settings::StagingSize;
use crate::{Device, Error, MemoryRegion};
pub use host_copy::{HostCopy, gpu_of};
use lookalike::Lookalikes;
use wire::{Broken, Slots, StagedWire, Through};

impl StagingSize {
    /// Adds a hint to the error of a send whose receive has room for exactly a chunk and a trailer:
    /// the peer may stage the message, and this end does not.
    pub(crate) fn explain(self, error: CoreError, failed: Error) -> Error {
        let CoreError::SizeMismatch { remote, .. } = error else { return failed };
        if remote != Trailer::room(self.chunk_bytes) {
            return failed;
        }
        let text = format!(
            "{failed}; the receive has the length of one chunk (INVAR_STAGING_CHUNK_BYTES and a \
             trailer), so the peer probably stages this message: both ends must stage a message \
             that is longer than a chunk"
        );
        failed.reworded(text)
    }
}

/// The staged messages of an end.
pub(crate) struct Staged {
    size: StagingSize,
    active: Option<Box<Active>>,
    lookalikes: Lookalikes,
    /// The error that ended the staged messages. Every later call returns it.
    failed: Option<(ErrorKind, String)>,
}

struct Active {
    size: StagingSize,
    pipeline: Pipeline<StagedMessage>,
    slots: Slots,
}

/// A message, or the room for one.
pub(crate) struct StagedMessage {
    region: MemoryRegion,
    start: usize,
    tag: u32,
}

impl Staged {
    pub(crate) fn new(size: StagingSize) -> Self {
        Staged { size, active: None, lookalikes: Lookalikes::default(), failed: None }
    }

    pub(crate) fn size(&self) -> StagingSize {
        self.size
    }

    /// Begins a message and returns its number. Returns `None` if too many messages are under way: call
    /// again.
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
        let (ours, theirs) = (active.slots.gpu().info(), memory.gpu().info());
        if ours.ordinal != theirs.ordinal {
            let text = format!(
                "memory of GPU {} on a connection that stages memory of GPU {}: each GPU needs a \
                 connection of its own",
                theirs.ordinal, ours.ordinal
            );
            return Err(Kind::Usage(text).into());
        }
        let message = StagedMessage { region: region.clone(), start: range.start, tag };
        Ok(active.pipeline.push(message, range.len() as u64).ok())
    }

    /// Whether a message is under way.
    pub(crate) fn is_active(&self) -> bool {
        self.active.as_ref().is_some_and(|active| !active.pipeline.is_idle())
    }

    /// Whether a message with this tag is under way. No other message with the tag may overtake it.
    #[inline]
    pub(crate) fn has(&self, tag: u32) -> bool {
        let mut active = self.active.iter();
        active.any(|active| active.pipeline.pending().any(|message| message.tag == tag))
    }

    /// Whether parts of messages have not been given to the connection yet.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.active.iter().any(|active| active.pipeline.has_more(ChunkStage::Fill))
    }

    /// Moves all messages on, without waiting.
    #[inline]
    pub(crate) fn advance<W: StagedWire + ?Sized>(&mut self, end: &mut W) -> Result<(), Error> {
        self.standing()?;
        match &mut self.active {
            Some(active) if !active.pipeline.is_idle() => active.advance(end).map_err(|error| {
                self.failed = Some((error.kind(), error.to_string()));
                error.ending_connection()
            }),
            _ => Ok(()),
        }
    }

    /// Notes the buffers of a receive that the peer may take for staged memory. [`Staged::came`] checks
    /// their messages. The memory of these buffers is not staged.
    #[inline]
    pub(crate) fn watch(
        &mut self,
        request: &comm::Request,
        bufs: &[(&MemoryRegion, Range<usize>, u32)],
    ) {
        let room = Trailer::room(self.size.chunk_bytes) as usize;
        for (member, (region, range, _)) in bufs.iter().enumerate() {
            if range.len() == room {
                self.lookalikes.add(request, member, region, range.start);
            }
        }
    }

    /// Checks the messages of a receive that is done; `sizes` are the bytes in each buffer. Fails if a
    /// message is a piece of a staged send.
    #[inline]
    pub(crate) fn came(
        &mut self,
        request: &comm::Request,
        sizes: &[usize],
        end: &dyn RecvEnd,
    ) -> Result<(), Error> {
        if !self.lookalikes.is_empty() {
            let taken = self.lookalikes.check(request, sizes);
            let device = &end.ends().device;
            self.failed = taken.map(|text| (ErrorKind::Usage, format!("{device}: {text}")));
        }
        self.standing()
    }

    #[inline]
    fn standing(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some((kind, text)) => {
                let error = Error::from(Kind::Staging { kind: *kind, text: text.clone() });
                Err(error.ending_connection())
            }
        }
    }

    /// Ends a message that is done and returns its bytes. Returns `None` if the message is not done.
    pub(crate) fn take(&mut self, number: u64) -> Result<Option<usize>, Error> {
        let Some(Active { pipeline, .. }) = self.active.as_deref_mut() else { return Ok(None) };
        match pipeline.take(number) {
            // No region gives a range that is longer.
            Some((_, bytes)) => Ok(Some(bytes as usize)),
            None if pipeline.is_done(number) => {
                Err(Kind::Usage("a request that is over".to_owned()).into())
            }
            None => Ok(None),
        }
    }
}

impl Active {
    fn new(device: &Device, memory: &GpuMemory, size: StagingSize) -> Result<Self, Error> {
        let slots = Slots::new(device, memory, size)?;
        let pipeline = Pipeline::new(size.chunk_bytes, slots.count());
        Ok(Active { size, pipeline, slots })
    }

    fn advance<W: StagedWire + ?Sized>(&mut self, end: &mut W) -> Result<(), Error> {
        let mut through = Through { slots: &mut self.slots, end };
        let Err(failure) = self.pipeline.advance(&mut through) else { return Ok(()) };
        Err(match failure {
            Failure::Port(Broken::Wire(error)) => self.size.explain(error, end.failed(error)),
            Failure::Port(Broken::Copy(error)) => Kind::Gpu(error).into(),
            Failure::Port(uncut @ Broken::Uncut { .. }) => {
                let text = format!("{}: {uncut}", end.ends().device);
                Kind::Staging { kind: ErrorKind::Usage, text }.into()
            }
            failure => {
                let text = format!("{}: {failure}", end.ends().device);
                Kind::Staging { kind: ErrorKind::Peer, text }.into()
            }
        })
    }
}
