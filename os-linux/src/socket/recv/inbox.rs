//! The destinations of received bytes: buffers, parking places, and a stage for bytes whose destination
//! is unknown.

use std::collections::HashMap;
use std::ptr::NonNull;

use invar_core::comm::RecvBuf;
use invar_core::conn::StreamError;
use invar_core::error::Error;
use invar_core::fifo::{DEPTH_MAX, RECVS_MAX};
use invar_core::nic::{NicError, Verb};
use invar_core::socket::{Receiver, Target};

use crate::memory::{HostMemory, Scatter, write_raw};
use crate::socket::pointer::pointer;
use crate::tcp::OobStream;

/// Maximum number of bytes that are read before their destination is known. One call reads many short
/// messages.
const STAGE_BYTES: usize = 64 << 10;

/// A message of at least this length is read directly into its destination by a call of its own, which
/// saves a copy.
const LONG_BYTES: usize = 16 << 10;

/// After a long message, only this many further bytes are read, enough for the next frame.
const STAGE_BEHIND_LONG_BYTES: usize = 2 << 10;

pub(super) struct Inbox {
    /// Addresses of the buffers' first bytes, by the index of their receives.
    starts: Box<[[NonNull<u8>; RECVS_MAX]; DEPTH_MAX]>,
    parked: HashMap<u8, HostMemory>,
    stage: Box<[u8; STAGE_BYTES]>,
    /// `first..end` is the range of the stage that was read and not yet consumed.
    first: usize,
    end: usize,
    /// Length of the last message.
    last_bytes: usize,
    /// Whether no message in the other direction acknowledges the received ones.
    is_one_way: bool,
    /// Whether a short message has come since the last acknowledge on main.
    owes_ack: bool,
}

// SAFETY: The caller of `irecv` promised the memory behind the pointers, whichever thread continues.
unsafe impl Send for Inbox {}

impl Inbox {
    pub(super) fn new() -> Self {
        Inbox {
            is_one_way: true,
            starts: Box::new([[NonNull::dangling(); RECVS_MAX]; DEPTH_MAX]),
            parked: HashMap::new(),
            stage: Box::new([0; STAGE_BYTES]),
            first: 0,
            end: 0,
            last_bytes: 0,
            owes_ack: true,
        }
    }

    /// Notes that messages go back over main and acknowledge the received ones.
    pub(super) fn goes_both_ways(&mut self) {
        self.is_one_way = false;
    }

    /// Stores the buffers of a receive.
    pub(super) fn note(&mut self, index: usize, bufs: &[RecvBuf]) -> Result<(), Error> {
        for (start, buf) in self.starts[index].iter_mut().zip(bufs) {
            *start = pointer(buf.addr, buf.len)?;
        }
        Ok(())
    }

    /// Returns the bytes that were read and not yet consumed.
    pub(super) fn staged(&self) -> &[u8] {
        &self.stage[self.first..self.end]
    }

    pub(super) fn skip(&mut self, bytes: usize) {
        self.first += bytes;
    }

    /// Copies the staged part of a payload, of which `len` bytes are awaited, and returns its length.
    pub(super) fn place(&mut self, to: Target, offset: u32, len: u32) -> u32 {
        if offset == 0 {
            self.last_bytes = len as usize;
        }
        let now = self.staged().len().min(len as usize);
        // SAFETY: The message fits into its buffer, which the caller of `irecv` keeps until the receive
        // is done, or into its parking place.
        unsafe { write_raw(self.at(to, offset), &self.staged()[..now]) };
        self.first += now;
        now as u32
    }

    /// Reads available bytes from main and returns their number. Awaited payload goes directly to its
    /// destination, and the bytes behind it go to the stage.
    pub(super) fn read(
        &mut self,
        main: &OobStream,
        receiver: &mut Receiver,
    ) -> Result<usize, StreamError> {
        // At most a part of a frame is left in the stage.
        self.stage.copy_within(self.first..self.end, 0);
        (self.first, self.end) = (0, self.end - self.first);
        let Some((to, range)) = receiver.awaited() else {
            let most =
                if self.last_bytes < LONG_BYTES { STAGE_BYTES } else { STAGE_BEHIND_LONG_BYTES };
            let stage = Scatter::bytes(&mut self.stage[self.end..most]);
            let read = main.recv_scatter(&mut [stage])?;
            self.end += read;
            match read {
                // Acknowledge while there is no other work, because it takes as long as a send.
                0 if self.owes_ack && self.is_one_way => {
                    main.acknowledge();
                    self.owes_ack = false;
                }
                0 => {}
                _ => self.owes_ack = read < STAGE_BEHIND_LONG_BYTES,
            }
            return Ok(read);
        };
        let (start, len) = (self.at(to, range.start), range.len());
        let most = if len < LONG_BYTES { STAGE_BYTES } else { STAGE_BEHIND_LONG_BYTES };
        // SAFETY: The range lies within a message that fits into its buffer, which the caller of `irecv`
        // keeps, or into its parking place.
        let payload = unsafe { Scatter::from_raw(start, len) };
        let read = main.recv_scatter(&mut [payload, Scatter::bytes(&mut self.stage[..most])])?;
        let placed = read.min(len);
        receiver.placed(placed as u32);
        self.end = read - placed;
        Ok(read)
    }

    /// Returns the destination of byte `offset` of a message.
    pub(super) fn at(&self, to: Target, offset: u32) -> NonNull<u8> {
        let start = match to {
            Target::Buffer { index, member } => {
                self.starts[usize::from(index)][usize::from(member)]
            }
            Target::Parked(place) => {
                let memory =
                    self.parked.get(&place).and_then(|memory| NonNull::new(memory.as_ptr()));
                memory.expect("the protocol parks where it has made a place")
            }
        };
        // SAFETY: The offset lies within the message, and so within its destination.
        unsafe { start.add(offset as usize) }
    }

    /// Allocates a parking place.
    pub(super) fn park(&mut self, place: u8, len: u32) -> Result<(), Error> {
        let memory = HostMemory::alloc(len as usize).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            NicError::new(
                Verb::AllocMemory,
                errno,
                "no memory for a message that came before its receive",
            )
        })?;
        self.parked.insert(place, memory);
        Ok(())
    }

    /// Copies a parked message to its buffer.
    pub(super) fn unpark(&mut self, place: u8, to: Target, len: u32) {
        let Some(memory) = self.parked.remove(&place) else { return };
        let mut bytes = vec![0; len as usize];
        let copied = memory.read_at(0, &mut bytes);
        debug_assert_eq!(copied, Ok(()), "it is as long as the message");
        // SAFETY: The message fits into its buffer, which the caller of `irecv` keeps until the receive
        // is done.
        unsafe { write_raw(self.at(to, 0), &bytes) };
    }
}
