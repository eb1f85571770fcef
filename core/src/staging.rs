//! Transfers of memory that no NIC reaches, through memory that one does, piece by piece.
//!
//! GPU memory that is neither registered as a DMA-BUF nor by its address is copied to pinned host
//! memory before it is sent, and from there after it is received. A transfer is cut into chunks,
//! and the host memory into as many slots as there is room for. Each chunk fills a slot and then
//! drains from it, so that chunks are copied while others are on the wire:
//!
//! ```text
//!              fill                 drain
//!   sending    copy GPU → slot      NIC sends the slot
//!   receiving  NIC receives into it copy slot → GPU
//! ```
//!
//! Chunks, also of several transfers, keep their order. Each is a message of its own, so that a
//! transfer of at most one chunk is an ordinary message. A longer receive is several, all but the
//! last with room for a [`Trailer`], and wants to be sent to by a peer that stages too: that one
//! says in the trailers how long its transfer is, which may be shorter, and fills the messages that
//! are left over with trailers alone. The receive ends early then ([`Done::of`]), and the send as
//! late as the receive does ([`Started::AwaitsMore`]).
//!
//! The [`Pipeline`] says what may start and when a transfer is done. What a chunk is copied with
//! and which NIC it goes through is the host's part, its [`Port`].

mod message;

#[cfg(test)]
mod tests;

use core::fmt;

pub use message::{NoTrailer, TRAILER_BYTES, Trailer};

/// Most slots of a pipeline.
pub const SLOTS_MAX: usize = 32;
/// Transfers that may be in a pipeline, those that are done and not yet taken included.
pub const TRANSFERS_MAX: usize = 32;

/// What happens to a chunk, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its bytes come into its slot.
    Fill,
    /// They leave it.
    Drain,
}

/// A piece of a transfer.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk<'a, T> {
    /// What [`Pipeline::push`] was given with the transfer.
    pub data: &'a T,
    /// The slot that it goes through, from 0.
    pub slot: usize,
    /// Its first byte within the transfer.
    pub offset: u64,
    /// Bytes: while it fills, as many as there may be; while it drains, as many as came.
    pub len: u32,
    /// No other of its transfer is behind it.
    pub is_last: bool,
    /// Bytes of the transfer, as far as that is known.
    pub of: u64,
    /// Bytes of a chunk that is not the last.
    pub chunk_bytes: u32,
}

/// What came of the start of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// Nothing: it is not possible yet.
    NotYet,
    /// The stage is under way.
    Whole,
    /// It is, as a message behind which the peer awaits another of the transfer. If there is none,
    /// the chunk drains once more, without bytes.
    AwaitsMore,
}

/// What came of a stage; where that is [`Stage::Drain`], it matters only that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes of the chunk.
    pub bytes: u32,
    /// Bytes of the whole transfer, as who fills it says: of one's own, as many as were pushed; of
    /// a peer's, as its trailer says. `None`: it does not say.
    pub of: Option<u64>,
}

/// Does the work on chunks, each of which it starts once and is then asked about.
pub trait Port<T> {
    /// What may go wrong.
    type Error;

    /// Starts a stage of a chunk.
    fn start(&mut self, stage: Stage, chunk: &Chunk<'_, T>) -> Result<Started, Self::Error>;

    /// What came of a chunk whose stage is done; `None`, where it is not yet. Asked about the
    /// oldest of each stage only.
    fn finished(&mut self, stage: Stage, chunk: &Chunk<'_, T>)
    -> Result<Option<Done>, Self::Error>;
}

/// What ends a pipeline: every later transfer would be cut wrongly, or its slots are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// The [`Port`] could not go on.
    Port(E),
    /// A chunk that is not its transfer's last one came without a trailer: the peer does not stage
    /// it, or cuts it otherwise.
    Unstaged {
        /// First byte of the chunk within the transfer.
        offset: u64,
        /// Bytes that came.
        came: u32,
        /// Bytes of each chunk here.
        chunk_bytes: u32,
        /// Bytes of the transfer.
        len: u64,
    },
    /// The peer's transfer is longer.
    TooLong {
        /// Its bytes.
        of: u64,
        /// Bytes that there is room for.
        len: u64,
    },
    /// What the peer says and what came do not agree.
    Contradiction {
        /// First byte of the chunk within the transfer.
        offset: u64,
        /// Bytes that came.
        came: u32,
        /// Bytes of the transfer, as the peer said first, and says with this chunk.
        of: [u64; 2],
    },
}

/// Chunks of transfers on their way through slots. Transfers carry a `T` of the host's.
#[derive(Debug)]
pub struct Pipeline<T> {
    chunk_bytes: u32,
    slots: u64,
    /// Transfer `n` is at `n % TRANSFERS_MAX`.
    transfers: [Option<Transfer<T>>; TRANSFERS_MAX],
    /// Number of the next transfer.
    next: u64,
    /// How far chunks have come; each of them is at most as far as the one before it.
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
    /// Bytes as who fills it says, once that is known.
    of: Option<u64>,
    chunks: u64,
    /// Bytes of the chunks that are done.
    moved: u64,
}

/// Whether the chunk that drains next is the last of a transfer of which the peer awaits more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    No,
    /// It drains, for the first time or once more.
    UnderWay,
    /// It is to drain once more.
    Due,
}

/// How far a stage is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    started: Cursor,
    finished: Cursor,
}

/// A place in the order of chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    /// Chunks before it, of all transfers.
    chunk: u64,
    /// The transfer that it is in, and its first byte there.
    transfer: u64,
    offset: u64,
}

impl<T> Pipeline<T> {
    /// An empty one. Both numbers are at least 1; there are at most [`SLOTS_MAX`] slots, and more
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

    /// Adds a transfer of `len` bytes, behind those before it, and gives its number. One without
    /// bytes is a chunk without bytes.
    ///
    /// # Errors
    /// There are [`TRANSFERS_MAX`] already; `data` comes back.
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

    /// Gives a transfer back that is done, and the bytes that were moved; `None` where it is not
    /// done yet, or taken already.
    pub fn take(&mut self, number: u64) -> Option<(T, u64)> {
        // One that was taken may have left its place to another.
        if !self.is_done(number) || number + (TRANSFERS_MAX as u64) < self.next {
            return None;
        }
        let transfer = self.transfers[index(number)].take()?;
        Some((transfer.data, transfer.moved))
    }

    /// Whether a transfer is done, taken or not.
    pub fn is_done(&self, number: u64) -> bool {
        number < self.drain.finished.transfer
    }

    /// What came with the transfers that are not done, in their order.
    pub fn pending(&self) -> impl Iterator<Item = &T> {
        let numbers = self.drain.finished.transfer..self.next;
        numbers.filter_map(|number| Some(&self.transfers[index(number)].as_ref()?.data))
    }

    /// Whether every transfer is done.
    pub fn is_idle(&self) -> bool {
        self.drain.finished.transfer == self.next
    }

    /// Starts and finishes whatever can be, without waiting.
    pub fn advance<P: Port<T>>(&mut self, port: &mut P) -> Result<(), Failure<P::Error>> {
        // A chunk that has drained leaves its slot to another, which may fill it.
        for stage in [Stage::Fill, Stage::Drain, Stage::Fill] {
            while let Some(chunk) = self.oldest(stage) {
                let Some(done) = port.finished(stage, &chunk).map_err(Failure::Port)? else {
                    break;
                };
                self.finish(stage, done)?;
            }
            while let Some(chunk) = self.next(stage) {
                let started = port.start(stage, &chunk).map_err(Failure::Port)?;
                if started == Started::NotYet {
                    break;
                }
                self.start(stage, started);
            }
        }
        Ok(())
    }

    /// The chunk that may start this stage next.
    pub fn next(&self, stage: Stage) -> Option<Chunk<'_, T>> {
        let at = self.progress(stage).started;
        let may = match stage {
            Stage::Fill => at.chunk < self.drain.finished.chunk + self.slots,
            Stage::Drain => at.chunk < self.fill.finished.chunk && self.tail != Tail::UnderWay,
        };
        self.chunk(stage, at).filter(|_| may)
    }

    /// [`Pipeline::next`] has started this stage, in this way.
    pub fn start(&mut self, stage: Stage, started: Started) {
        let Some(Chunk { is_last, .. }) = self.next(stage) else { return };
        match (stage, started) {
            (_, Started::NotYet) => return,
            (Stage::Drain, Started::AwaitsMore) if is_last => {
                self.tail = Tail::UnderWay;
                return;
            }
            (Stage::Drain, _) => self.tail = Tail::No,
            (Stage::Fill, _) => {}
        }
        let at = self.progress(stage).started;
        self.progress_mut(stage).started = self.after(at);
    }

    /// The chunk that has been in this stage for longest.
    pub fn oldest(&self, stage: Stage) -> Option<Chunk<'_, T>> {
        let Progress { started, finished } = self.progress(stage);
        let is_tail = stage == Stage::Drain && self.tail == Tail::UnderWay;
        self.chunk(stage, finished).filter(|_| finished != started || is_tail)
    }

    /// [`Pipeline::oldest`] is through this stage.
    ///
    /// # Errors
    /// Lengths that cannot be, after which nothing has changed.
    pub fn finish<E>(&mut self, stage: Stage, done: Done) -> Result<(), Failure<E>> {
        let Some(chunk) = self.oldest(stage) else { return Ok(()) };
        let Chunk { slot, len, .. } = chunk;
        if stage == Stage::Fill {
            let of = self.check(&chunk, done)?;
            self.settle(of);
            self.filled[slot] = done.bytes.min(len);
        }
        let Progress { started, finished } = self.progress(stage);
        if stage == Stage::Drain {
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

    /// Whether so much may have come with a chunk: the length of its transfer, where that is now
    /// known.
    fn check<E>(&self, chunk: &Chunk<'_, T>, done: Done) -> Result<Option<u64>, Failure<E>> {
        let Done { bytes: came, of } = done;
        let Chunk { offset, is_last, of: len, chunk_bytes, .. } = *chunk;
        let transfer = self.transfers[index(self.fill.finished.transfer)].as_ref();
        let known = match (transfer.and_then(|transfer| transfer.of), of) {
            (_, None) if !is_last => {
                return Err(Failure::Unstaged { offset, came, chunk_bytes, len });
            }
            // An ordinary message.
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

    /// The transfer that fills has so many bytes. Of what has not started of it, no more is kept
    /// than these need, and one chunk at least: it ends the transfer.
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

    /// The chunk at a cursor, if it is that of a transfer.
    fn chunk(&self, stage: Stage, at: Cursor) -> Option<Chunk<'_, T>> {
        if at.transfer >= self.next {
            return None;
        }
        let Transfer { data, len, of, .. } = self.transfers[index(at.transfer)].as_ref()?;
        let (of, chunk_bytes, offset) = (of.unwrap_or(*len), self.chunk_bytes, at.offset);
        let slot = (at.chunk % self.slots) as usize;
        let len = match stage {
            Stage::Fill => rest(of, offset, chunk_bytes) as u32,
            Stage::Drain => self.filled[slot],
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

    fn progress(&self, stage: Stage) -> Progress {
        match stage {
            Stage::Fill => self.fill,
            Stage::Drain => self.drain,
        }
    }

    fn progress_mut(&mut self, stage: Stage) -> &mut Progress {
        match stage {
            Stage::Fill => &mut self.fill,
            Stage::Drain => &mut self.drain,
        }
    }
}

fn index(transfer: u64) -> usize {
    (transfer % TRANSFERS_MAX as u64) as usize
}

/// Chunks of a transfer.
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
