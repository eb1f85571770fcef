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
//! transfer of at most one chunk is an ordinary message; where it is longer, both ends must cut it
//! alike, with the same size of chunks and the same length of the whole.
//!
//! The [`Pipeline`] says what may start and when a transfer is done. What a chunk is copied with
//! and which NIC it goes through is the host's part, its [`Port`].

#[cfg(test)]
mod tests;

use core::fmt;

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
}

/// Does the work on chunks, each of which it starts once and is then asked about.
pub trait Port<T> {
    /// What may go wrong.
    type Error;

    /// Starts a stage of a chunk; `false`, where that is not possible yet.
    fn start(&mut self, stage: Stage, chunk: &Chunk<'_, T>) -> Result<bool, Self::Error>;

    /// The bytes of a chunk whose stage is done; `None`, where it is not yet. Asked about the
    /// oldest of each stage only.
    fn finished(&mut self, stage: Stage, chunk: &Chunk<'_, T>) -> Result<Option<u32>, Self::Error>;
}

/// What ends a pipeline: every later transfer would be cut wrongly, or its slots are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// The [`Port`] could not go on.
    Port(E),
    /// A chunk that is not its transfer's last one came with fewer bytes: the peer's transfer is
    /// shorter, or cut otherwise.
    Short {
        /// First byte of the chunk within the transfer.
        offset: u64,
        /// Bytes that came.
        came: u32,
        /// Bytes of each chunk here.
        chunk_bytes: u32,
        /// Bytes of the transfer.
        len: u64,
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
}

#[derive(Debug)]
struct Transfer<T> {
    data: T,
    len: u64,
    /// Bytes of the chunks that are done.
    moved: u64,
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
        *place = Some(Transfer { data, len, moved: 0 });
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
                let Some(bytes) = port.finished(stage, &chunk).map_err(Failure::Port)? else {
                    break;
                };
                self.finish(stage, bytes)?;
            }
            while let Some(chunk) = self.next(stage) {
                if !port.start(stage, &chunk).map_err(Failure::Port)? {
                    break;
                }
                self.start(stage);
            }
        }
        Ok(())
    }

    /// The chunk that may start this stage next.
    pub fn next(&self, stage: Stage) -> Option<Chunk<'_, T>> {
        let at = self.progress(stage).started;
        let may = match stage {
            Stage::Fill => at.chunk < self.drain.finished.chunk + self.slots,
            Stage::Drain => at.chunk < self.fill.finished.chunk,
        };
        self.chunk(stage, at).filter(|_| may)
    }

    /// [`Pipeline::next`] has started this stage.
    pub fn start(&mut self, stage: Stage) {
        if self.next(stage).is_some() {
            let at = self.progress(stage).started;
            self.progress_mut(stage).started = self.after(at);
        }
    }

    /// The chunk that has been in this stage for longest.
    pub fn oldest(&self, stage: Stage) -> Option<Chunk<'_, T>> {
        let Progress { started, finished } = self.progress(stage);
        self.chunk(stage, finished).filter(|_| finished != started)
    }

    /// [`Pipeline::oldest`] is through this stage, with so many bytes.
    pub fn finish<E>(&mut self, stage: Stage, bytes: u32) -> Result<(), Failure<E>> {
        let Some(chunk) = self.oldest(stage) else { return Ok(()) };
        let (slot, offset, len, bytes) =
            (chunk.slot, chunk.offset, chunk.len, bytes.min(chunk.len));
        let at = self.progress(stage).finished;
        let next = self.after(at);
        let Some(transfer) = &mut self.transfers[index(at.transfer)] else { return Ok(()) };
        match stage {
            Stage::Fill if bytes < len && next.transfer == at.transfer => {
                let (chunk_bytes, len) = (self.chunk_bytes, transfer.len);
                return Err(Failure::Short { offset, came: bytes, chunk_bytes, len });
            }
            Stage::Fill => self.filled[slot] = bytes,
            Stage::Drain => transfer.moved += u64::from(bytes),
        }
        self.progress_mut(stage).finished = next;
        Ok(())
    }

    /// The chunk at a cursor, if it is that of a transfer.
    fn chunk(&self, stage: Stage, at: Cursor) -> Option<Chunk<'_, T>> {
        if at.transfer >= self.next {
            return None;
        }
        let Transfer { data, len, .. } = self.transfers[index(at.transfer)].as_ref()?;
        let slot = (at.chunk % self.slots) as usize;
        let len = match stage {
            Stage::Fill => (len - at.offset).min(u64::from(self.chunk_bytes)) as u32,
            Stage::Drain => self.filled[slot],
        };
        Some(Chunk { data, slot, offset: at.offset, len })
    }

    /// The cursor behind a chunk.
    fn after(&self, at: Cursor) -> Cursor {
        let len = self.transfers[index(at.transfer)].as_ref().map_or(0, |transfer| transfer.len);
        let (chunk, offset) = (at.chunk + 1, at.offset + u64::from(self.chunk_bytes));
        if offset < len {
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

impl<E: fmt::Display> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Port(error) => error.fmt(f),
            Failure::Short { offset, came, chunk_bytes, len } => write!(
                f,
                "{came} bytes came at byte {offset} of a staged transfer of {len} bytes in chunks \
                 of {chunk_bytes}: the peer's length or its INVAR_STAGING_CHUNK_BYTES is another"
            ),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for Failure<E> {}
