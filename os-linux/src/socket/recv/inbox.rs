//! The places to which received bytes go: buffers, parking places, and a stage for what is not yet understood.

use std::collections::HashMap;
use std::ptr::NonNull;

use invar_core::comm::RecvBuf;
use invar_core::conn::StreamError;
use invar_core::error::Error;
use invar_core::fifo::{DEPTH_MAX, RECVS_MAX};
use invar_core::nic::{NicError, Verb};
use invar_core::socket::{Receiver, Target};

use crate::memory::{HostMemory, Scatter, write_raw};
use crate::socket::send::pointer;
use crate::tcp::OobStream;

/// Bytes that are read without knowing where they belong. Many short messages come by one call.
const STAGE_BYTES: usize = 64 << 10;

/// From this length on a message is rather read right to where it belongs, by a call of its own,
/// than copied once more...
const LONG_BYTES: usize = 16 << 10;

/// ...and behind it just as much as brings the next frame along.
const STAGE_BEHIND_LONG_BYTES: usize = 2 << 10;

pub(super) struct Inbox {
    /// First bytes of the buffers, by the index of their receives.
    starts: Box<[[NonNull<u8>; RECVS_MAX]; DEPTH_MAX]>,
    parked: HashMap<u8, HostMemory>,
    stage: Box<[u8; STAGE_BYTES]>,
    /// Bytes of the stage that were read and not yet taken.
    first: usize,
    end: usize,
    /// Length of the message that came last.
    last_bytes: usize,
    /// Whether nothing goes back that would acknowledge what comes.
    is_one_way: bool,
    /// Whether something short came since main was last acknowledged.
    owes_ack: bool,
}

// SAFETY: the pointers are to memory that `irecv` was promised, whichever thread goes on.
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

    /// Messages go back over main, and acknowledge those that come.
    pub(super) fn goes_both_ways(&mut self) {
        self.is_one_way = false;
    }

    /// The buffers of a receive.
    pub(super) fn note(&mut self, index: usize, bufs: &[RecvBuf]) -> Result<(), Error> {
        for (start, buf) in self.starts[index].iter_mut().zip(bufs) {
            *start = pointer(buf.addr, buf.len)?;
        }
        Ok(())
    }

    /// Bytes that were read and not yet taken.
    pub(super) fn staged(&self) -> &[u8] {
        &self.stage[self.first..self.end]
    }

    pub(super) fn skip(&mut self, bytes: usize) {
        self.first += bytes;
    }

    /// Copies what is staged of a payload of which `len` bytes are awaited, and says how many.
    pub(super) fn place(&mut self, to: Target, offset: u32, len: u32) -> u32 {
        if offset == 0 {
            self.last_bytes = len as usize;
        }
        let now = self.staged().len().min(len as usize);
        // SAFETY: the message fits into its buffer, which the caller of `irecv` has promised until
        // the receive is done; or into its parking place.
        unsafe { write_raw(self.at(to, offset), &self.staged()[..now]) };
        self.first += now;
        now as u32
    }

    /// Reads what main has, and says how many bytes that was: awaited payload right to its place,
    /// what is behind it to the stage.
    pub(super) fn read(
        &mut self,
        main: &OobStream,
        receiver: &mut Receiver,
    ) -> Result<usize, StreamError> {
        // Less than a frame, if anything.
        self.stage.copy_within(self.first..self.end, 0);
        (self.first, self.end) = (0, self.end - self.first);
        let Some((to, range)) = receiver.awaited() else {
            let most =
                if self.last_bytes < LONG_BYTES { STAGE_BYTES } else { STAGE_BEHIND_LONG_BYTES };
            let stage = Scatter::bytes(&mut self.stage[self.end..most]);
            let read = main.recv_scatter(&mut [stage])?;
            self.end += read;
            match read {
                // Now that there is nothing to do, and before there is: it takes as long as a send.
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
        // SAFETY: as in `place`.
        let payload = unsafe { Scatter::from_raw(start, len) };
        let read = main.recv_scatter(&mut [payload, Scatter::bytes(&mut self.stage[..most])])?;
        let placed = read.min(len);
        receiver.placed(placed as u32);
        self.end = read - placed;
        Ok(read)
    }

    /// Byte `offset` of a message that belongs there.
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
        // SAFETY: within the message, and so within what is there.
        unsafe { start.add(offset as usize) }
    }

    /// Makes a parking place.
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

    /// Moves a parked message to its buffer.
    pub(super) fn unpark(&mut self, place: u8, to: Target, len: u32) {
        let Some(memory) = self.parked.remove(&place) else { return };
        let mut bytes = vec![0; len as usize];
        let copied = memory.read_at(0, &mut bytes);
        debug_assert_eq!(copied, Ok(()), "it is as long as the message");
        // SAFETY: as in `place`.
        unsafe { write_raw(self.at(to, 0), &bytes) };
    }
}
