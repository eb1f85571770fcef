//! Transfers of memory that no NIC reaches, in pieces, through memory that a NIC reaches.
//!
//! A NIC may not be able to register GPU memory, neither as a DMA-BUF nor by its address. Such memory
//! is copied to pinned host memory before sending, and from pinned host memory after receiving. A
//! transfer is cut into chunks, and the host memory into slots. Each chunk fills a slot and then drains
//! from it, so that some chunks are copied while others are on the wire:
//!
//! ```text
//!              fill                 drain
//!   sending    copy GPU → slot      NIC sends the slot
//!   receiving  NIC receives into it copy slot → GPU
//! ```
//!
//! Chunks keep their order, also across transfers. Each chunk is one message, so a transfer of at most
//! one chunk is an ordinary message. A longer receive consists of several messages, and all but the
//! last have room for a [`Trailer`]. The sender of a longer receive must stage too. The sender tells in
//! the trailers how long its transfer is, which may be shorter than the receive. The sender fills the
//! remaining messages with trailers alone. So the receive ends early ([`Done::of`]), and the send lasts
//! as long as the receive ([`Started::AwaitsMore`]).
//!
//! The [`Pipeline`] decides which chunks may start and when a transfer is done. The host copies the
//! chunks and chooses the NIC: it implements [`Port`].

mod message;

#[cfg(test)]
mod tests;

use core::fmt;

pub use message::{NoTrailer, TRAILER_BYTES, Trailer};

/// The largest number of slots of a pipeline.
pub const SLOTS_MAX: usize = 32;
/// The largest number of transfers in a pipeline. Transfers that are done but not yet taken count too.
pub const TRANSFERS_MAX: usize = 32;

/// The two stages of a chunk, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkStage {
    /// The chunk's bytes come into its slot.
    Fill,
    /// The chunk's bytes leave the slot.
    Drain,
}

/// A piece of a transfer.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk<'a, T> {
    /// The data that the caller passed to [`Pipeline::push`] with the transfer.
    pub data: &'a T,
    /// Index of the chunk's slot, from 0.
    pub slot: usize,
    /// Offset of the chunk's first byte within the transfer.
    pub offset: u64,
    /// Number of bytes: the largest possible number while the chunk fills, and the actual number while
    /// it drains.
    pub len: u32,
    /// Whether this is the last chunk of its transfer.
    pub is_last: bool,
    /// Bytes of the transfer, as far as known.
    pub of: u64,
    /// Bytes of every chunk but the last.
    pub chunk_bytes: u32,
}

/// The result of starting a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The stage cannot start yet.
    Pending,
    /// The stage has started.
    Whole,
    /// The stage has started with a message behind which the peer awaits another message of the
    /// transfer. If the transfer has no other chunk, this chunk drains once more, without bytes.
    AwaitsMore,
}

/// The result of a finished stage. For [`ChunkStage::Drain`] the values have no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes of the chunk.
    pub bytes: u32,
    /// Bytes of the whole transfer according to the end that fills it. For this end's own data it is
    /// the pushed length, for a peer's data the length in its trailer. `None` if the message has no
    /// trailer.
    pub of: Option<u64>,
}

/// Does the work on chunks. The pipeline starts each stage of a chunk once and then asks whether it is
/// done.
pub trait Port<T> {
    /// Error of the copies or of the NIC.
    type Error;

    /// Starts a stage of a chunk.
    fn start(&mut self, stage: ChunkStage, chunk: &Chunk<'_, T>) -> Result<Started, Self::Error>;

    /// Returns the result of a chunk's stage, or `None` if the stage is not finished yet. The pipeline
    /// asks only about the oldest chunk of each stage.
    fn finished(
        &mut self,
        stage: ChunkStage,
        chunk: &Chunk<'_, T>,
    ) -> Result<Option<Done>, Self::Error>;
}

/// A failure that ends a pipeline: later transfers would be cut wrongly, or its slots are still in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// The [`Port`] failed.
    Port(E),
    /// A chunk that is not the last of its transfer came without a trailer. Either the peer does not
    /// stage the transfer, or it uses chunks of another length.
    Unstaged {
        /// Offset of the chunk's first byte within the transfer.
        offset: u64,
        /// Number of bytes that came.
        came: u32,
        /// Bytes of each chunk at this end.
        chunk_bytes: u32,
        /// Bytes of the transfer.
        len: u64,
    },
    /// The peer's transfer is longer than the receive.
    TooLong {
        /// Bytes of the peer's transfer.
        of: u64,
        /// Bytes of the receive.
        len: u64,
    },
    /// The peer's statements and the number of received bytes contradict each other.
    Contradiction {
        /// Offset of the chunk's first byte within the transfer.
        offset: u64,
        /// Number of bytes that came.
        came: u32,
        /// Bytes of the transfer, first as the peer said before, then as it says with this chunk.
        of: [u64; 2],
    },
}

/// Chunks of transfers on their way through slots. Each transfer carries a `T` of the host.
#[derive(Debug)]
pub struct Pipeline<T> {
    chunk_bytes: u32,
    slots: u64,
    /// Transfer `n` is at index `n % TRANSFERS_MAX`.
    transfers: [Option<Transfer<T>>; TRANSFERS_MAX],
    /// Number of the next transfer.
    next: u64,
    /// Progress of the two stages. The order is: fill started, fill finished, drain started, drain
    /// finished. No cursor is ahead of the one before it.
    fill: Progress,
    drain: Progress,
    /// Bytes that came into each slot.
    filled: [u32; SLOTS_MAX],
    tail: Tail,
}

#[derive(Debug)]
struct Transfer<T> {
    data: T,
    len: u64,
    /// Bytes of the transfer according to the end that fills it, once known.
    of: Option<u64>,
    chunks: u64,
    /// Bytes of the chunks that are done.
    moved: u64,
}

/// Whether the next chunk to drain is the last of its transfer, while the peer awaits more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    No,
    /// The chunk drains, for the first time or once more.
    UnderWay,
    /// The chunk must drain once more.
    Due,
}

/// Progress of a stage.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    started: Cursor,
    finished: Cursor,
}

/// A position in the order of chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    /// Number of chunks before the position, over all transfers.
    chunk: u64,
    /// Number of the transfer at the position, and the offset within the transfer.
    transfer: u64,
    offset: u64,
}

impl<T> Pipeline<T> {
    /// Creates an empty pipeline. Both numbers are raised to at least 1, and slots beyond [`SLOTS_MAX`]
    /// are not used.
    pub fn new(chunk_bytes: u32, slots: usize) -> Self {
        Pipeline {
            chunk_bytes: chunk_bytes.max(1),
            slots: slots.clamp(1, SLOTS_MAX) as u64,
            transfers: [const { None }; TRANSFERS_MAX],
            next: 0,
            fill: Progress::default(),
            drain: Progress::default(),
            filled: [0; SLOTS_MAX],
            tail: Tail::No,
        }
    }

    /// Adds a transfer of `len` bytes behind the others, and returns its number. A transfer without
    /// bytes is one chunk without bytes.
    ///
    /// # Errors
    /// The pipeline already has [`TRANSFERS_MAX`] transfers; the error returns `data`.
    pub fn push(&mut self, data: T, len: u64) -> Result<u64, T> {
        let number = self.next;
        let place = &mut self.transfers[index(number)];
        if place.is_some() {
            return Err(data);
        }
        let chunks = chunks(len, self.chunk_bytes);
        *place = Some(Transfer { data, len, of: None, chunks, moved: 0 });
        self.next += 1;
        Ok(number)
    }

    /// Takes a finished transfer out of the pipeline. Returns its data and the number of bytes moved.
    /// `None` if the transfer is not done, or was already taken.
    pub fn take(&mut self, number: u64) -> Option<(T, u64)> {
        // A transfer that was taken may have left its place to another one.
        if !self.is_done(number) || number + (TRANSFERS_MAX as u64) < self.next {
            return None;
        }
        let transfer = self.transfers[index(number)].take()?;
        Some((transfer.data, transfer.moved))
    }

    /// Returns whether a transfer is done, taken or not.
    pub fn is_done(&self, number: u64) -> bool {
        number < self.drain.finished.transfer
    }

    /// The data of the transfers that are not done, in their order.
    pub fn pending(&self) -> impl Iterator<Item = &T> {
        let numbers = self.drain.finished.transfer..self.next;
        numbers.filter_map(|number| Some(&self.transfers[index(number)].as_ref()?.data))
    }

    /// Returns whether every transfer is done.
    pub fn is_idle(&self) -> bool {
        self.drain.finished.transfer == self.next
    }

    /// Starts and finishes all stages that it can, without waiting.
    pub fn advance<P: Port<T>>(&mut self, port: &mut P) -> Result<(), Failure<P::Error>> {
        // A drained chunk frees its slot, so another chunk may fill that slot in the second pass.
        for stage in [ChunkStage::Fill, ChunkStage::Drain, ChunkStage::Fill] {
            while let Some(chunk) = self.oldest(stage) {
                let Some(done) = port.finished(stage, &chunk).map_err(Failure::Port)? else {
                    break;
                };
                self.finish(stage, done)?;
            }
            while let Some(chunk) = self.next(stage) {
                let started = port.start(stage, &chunk).map_err(Failure::Port)?;
                if started == Started::Pending {
                    break;
                }
                self.start(stage, started);
            }
        }
        Ok(())
    }

    /// The chunk that may start this stage next.
    pub fn next(&self, stage: ChunkStage) -> Option<Chunk<'_, T>> {
        let at = self.progress(stage).started;
        let may = match stage {
            ChunkStage::Fill => at.chunk < self.drain.finished.chunk + self.slots,
            ChunkStage::Drain => at.chunk < self.fill.finished.chunk && self.tail != Tail::UnderWay,
        };
        self.chunk(stage, at).filter(|_| may)
    }

    /// Whether chunks have not started this stage, be it for want of a slot.
    pub fn has_more(&self, stage: ChunkStage) -> bool {
        self.chunk(stage, self.progress(stage).started).is_some()
    }

    /// Records how [`Pipeline::next`] has started this stage.
    pub fn start(&mut self, stage: ChunkStage, started: Started) {
        let Some(Chunk { is_last, .. }) = self.next(stage) else { return };
        match (stage, started) {
            (_, Started::Pending) => return,
            (ChunkStage::Drain, Started::AwaitsMore) if is_last => {
                self.tail = Tail::UnderWay;
                return;
            }
            (ChunkStage::Drain, _) => self.tail = Tail::No,
            (ChunkStage::Fill, _) => {}
        }
        let at = self.progress(stage).started;
        self.progress_mut(stage).started = self.after(at);
    }

    /// The chunk that has been in this stage for the longest time.
    pub fn oldest(&self, stage: ChunkStage) -> Option<Chunk<'_, T>> {
        let Progress { started, finished } = self.progress(stage);
        let is_tail = stage == ChunkStage::Drain && self.tail == Tail::UnderWay;
        self.chunk(stage, finished).filter(|_| finished != started || is_tail)
    }

    /// Records that [`Pipeline::oldest`] has finished this stage.
    ///
    /// # Errors
    /// The lengths are impossible. Nothing has changed then.
    pub fn finish<E>(&mut self, stage: ChunkStage, done: Done) -> Result<(), Failure<E>> {
        let Some(chunk) = self.oldest(stage) else { return Ok(()) };
        let Chunk { slot, len, .. } = chunk;
        if stage == ChunkStage::Fill {
            let of = self.check(&chunk, done)?;
            self.settle(of);
            self.filled[slot] = done.bytes.min(len);
        }
        let Progress { started, finished } = self.progress(stage);
        if stage == ChunkStage::Drain {
            if let Some(transfer) = &mut self.transfers[index(finished.transfer)] {
                transfer.moved += u64::from(len);
            }
            if finished == started {
                (self.tail, self.filled[slot]) = (Tail::Due, 0);
                return Ok(());
            }
        }
        self.progress_mut(stage).finished = self.after(finished);
        Ok(())
    }

    /// Checks the number of bytes of a chunk. Returns the length of the chunk's transfer, if it is now
    /// known.
    fn check<E>(&self, chunk: &Chunk<'_, T>, done: Done) -> Result<Option<u64>, Failure<E>> {
        let Done { bytes: came, of } = done;
        let Chunk { offset, is_last, of: len, chunk_bytes, .. } = *chunk;
        let transfer = self.transfers[index(self.fill.finished.transfer)].as_ref();
        let known = match (transfer.and_then(|transfer| transfer.of), of) {
            (_, None) if !is_last => {
                return Err(Failure::Unstaged { offset, came, chunk_bytes, len });
            }
            // The chunk is an ordinary message.
            (None, None) => return Ok(None),
            (None, Some(of)) if of > len => return Err(Failure::TooLong { of, len }),
            (None, Some(known)) | (Some(known), _) => known,
        };
        let of = [known, of.unwrap_or(known)];
        if of[0] != of[1] || u64::from(came) != rest(known, offset, chunk_bytes) {
            return Err(Failure::Contradiction { offset, came, of });
        }
        Ok(Some(known))
    }

    /// Sets the length of the transfer that fills. Chunks that have not started are dropped if this
    /// length does not need them. One chunk is always kept: it ends the transfer.
    fn settle(&mut self, of: Option<u64>) {
        let Progress { started, finished } = self.fill;
        let chunk_bytes = self.chunk_bytes;
        let transfer = self.transfers[index(finished.transfer)].as_mut();
        let (Some(len), Some(transfer)) = (of, transfer) else { return };
        if started.transfer == finished.transfer {
            let next = started.offset / u64::from(chunk_bytes) + 1;
            transfer.chunks = transfer.chunks.min(next.max(chunks(len, chunk_bytes)));
        }
        transfer.of = Some(len);
    }

    /// The chunk at a cursor, if a transfer is there.
    fn chunk(&self, stage: ChunkStage, at: Cursor) -> Option<Chunk<'_, T>> {
        if at.transfer >= self.next {
            return None;
        }
        let Transfer { data, len, of, .. } = self.transfers[index(at.transfer)].as_ref()?;
        let (of, chunk_bytes, offset) = (of.unwrap_or(*len), self.chunk_bytes, at.offset);
        let slot = (at.chunk % self.slots) as usize;
        let len = match stage {
            ChunkStage::Fill => rest(of, offset, chunk_bytes) as u32,
            ChunkStage::Drain => self.filled[slot],
        };
        let is_last = self.after(at).transfer != at.transfer;
        Some(Chunk { data, slot, offset, len, is_last, of, chunk_bytes })
    }

    /// The cursor behind a chunk.
    fn after(&self, at: Cursor) -> Cursor {
        let chunks = self.transfers[index(at.transfer)].as_ref().map_or(0, |of| of.chunks);
        let (chunk, offset) = (at.chunk + 1, at.offset + u64::from(self.chunk_bytes));
        if offset / u64::from(self.chunk_bytes) < chunks {
            Cursor { chunk, offset, ..at }
        } else {
            Cursor { chunk, transfer: at.transfer + 1, offset: 0 }
        }
    }

    fn progress(&self, stage: ChunkStage) -> Progress {
        match stage {
            ChunkStage::Fill => self.fill,
            ChunkStage::Drain => self.drain,
        }
    }

    fn progress_mut(&mut self, stage: ChunkStage) -> &mut Progress {
        match stage {
            ChunkStage::Fill => &mut self.fill,
            ChunkStage::Drain => &mut self.drain,
        }
    }
}

fn index(transfer: u64) -> usize {
    (transfer % TRANSFERS_MAX as u64) as usize
}

/// The number of chunks of a transfer.
fn chunks(len: u64, chunk_bytes: u32) -> u64 {
    len.div_ceil(chunk_bytes.into()).max(1)
}

/// Bytes of the chunk at an offset of a transfer.
fn rest(len: u64, offset: u64, chunk_bytes: u32) -> u64 {
    len.saturating_sub(offset).min(chunk_bytes.into())
}

impl<E: fmt::Display> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Port(error) => error.fmt(f),
            Failure::Unstaged { offset, came, chunk_bytes, len } => write!(
                f,
                "{came} bytes came at byte {offset} of a staged receive of {len} bytes in chunks \
                 of {chunk_bytes}, without a trailer: the peer does not stage it, or its \
                 INVAR_STAGING_CHUNK_BYTES is another; what meets a receive longer than a chunk \
                 must be staged at both ends"
            ),
            Failure::TooLong { of, len } => {
                write!(f, "a staged send of {of} bytes meets a staged receive of {len} bytes")
            }
            Failure::Contradiction { offset, came, of: [first, now] } => write!(
                f,
                "{came} bytes came at byte {offset} of a staged transfer that the peer says has {now} \
                 bytes, and said had {first}: these do not agree"
            ),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for Failure<E> {}
