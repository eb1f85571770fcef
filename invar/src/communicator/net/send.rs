//! The sending end of a link.

use std::ptr::NonNull;
use std::sync::Arc;

use invar_core::comm::Request;

use super::ring::{LinkRing, SLOTS, index};
use super::status::LinkStatus;
use super::{SHORT_BYTES, TAG};
use crate::Error;
use crate::error::Kind;
use crate::raw::{SendBuf, SendEnd};

/// Calls with nothing new to send between two looks at what a NIC has sent: with the software NIC a
/// look is a system call.
const LOOK_EVERY: u32 = 64;

/// The sending end of a link to another rank: slots that the rank fills.
///
/// A message is published, started, and done. Whoever calls moves it: [`free`](NetSend::free),
/// [`publish`](NetSend::publish) and [`progress`](NetSend::progress) all advance the same state.
pub struct NetSend {
    // Ends before the slots' memory.
    end: Box<dyn SendEnd>,
    /// Those that are published and not done, by step.
    messages: [Message; SLOTS],
    published: u64,
    started: u64,
    done: u64,
    /// The slot that is to be filled next.
    slot: u64,
    /// Calls since the last look at what is done.
    unlooked: u32,
    /// Whether bytes move in calls alone, and from any memory: over TCP.
    moves_in_calls: bool,
    ring: LinkRing,
    status: Arc<LinkStatus>,
}

/// Where a message is, and how long it is.
struct Message {
    start: NonNull<u8>,
    len: u32,
    /// Once it is started.
    request: Option<Request>,
}

// SAFETY: the pointers are to slots of the ring, or to what `publish_from` was promised, whichever
// thread goes on.
unsafe impl Send for NetSend {}

impl NetSend {
    pub(super) fn new(end: Box<dyn SendEnd>, ring: LinkRing, status: Arc<LinkStatus>) -> Self {
        let moves_in_calls = end.needs_calls();
        let start = ring.slot(0);
        NetSend {
            end,
            messages: std::array::from_fn(|_| Message { start, len: 0, request: None }),
            published: 0,
            started: 0,
            done: 0,
            slot: 0,
            unlooked: 0,
            moves_in_calls,
            ring,
            status,
        }
    }

    /// The memory of the next free slot, for `len` bytes; `None`: no slot is free yet. Asked again it
    /// gives the same slot.
    ///
    /// Until the slot is published nobody else accesses it. It is there as long as this end.
    ///
    /// # Errors
    /// More bytes than a slot has; or what ended the link.
    #[inline]
    pub fn free(&mut self, len: usize) -> Result<Option<NonNull<u8>>, Error> {
        if len > self.slot_bytes() {
            let text = format!("{len} bytes for a slot of {}", self.slot_bytes());
            return Err(Kind::Usage(text).into());
        }
        if self.is_full() || len > SHORT_BYTES {
            self.has_delivered()?;
        }
        if self.is_full() {
            return Ok(None);
        }
        if self.published == self.done {
            // The same slot each time stays in the processor's cache.
            self.slot = 0;
        }
        Ok(Some(self.ring.slot(self.slot)))
    }

    /// Sends the slot that [`NetSend::free`] gave, with `len` bytes, which are cut to those of a slot.
    ///
    /// # Errors
    /// What ended the link.
    #[inline]
    pub fn publish(&mut self, len: usize) -> Result<(), Error> {
        let (slot, len) = (self.ring.slot(self.slot), len.min(self.slot_bytes()));
        // SAFETY: the slot is the ring's, and not given out again while a message is in it.
        unsafe { self.publish_from(slot, len) }
    }

    /// Whether [`NetSend::publish_from`] spares a copy.
    #[inline]
    pub(in crate::communicator) fn takes_memory(&self) -> bool {
        self.moves_in_calls
    }

    /// Publishes `len` bytes that are in a slot, or, where the link [takes
    /// memory](Self::takes_memory), anywhere; in place of the slot that [`NetSend::free`] gave for as
    /// many.
    ///
    /// # Safety
    ///
    /// The bytes are valid for reads, and not written by anyone, until [`NetSend::progress`] has said
    /// that all has left or the peer has received them, or this end is dropped.
    #[inline]
    pub(in crate::communicator) unsafe fn publish_from(
        &mut self,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<(), Error> {
        if self.is_full() {
            // `free` has given nothing.
            return Ok(());
        }
        self.messages[index(self.published)] = Message { start, len: len as u32, request: None };
        self.published += 1;
        self.slot += 1;
        self.progress().map(drop)
    }

    /// Sends what can be sent. Says whether all that was published gets to the peer without more
    /// calls.
    ///
    /// # Errors
    /// What ended the link.
    #[inline]
    pub fn progress(&mut self) -> Result<bool, Error> {
        if self.done == self.published {
            return Ok(true);
        }
        self.unlooked += 1;
        if self.moves_in_calls || self.unlooked == LOOK_EVERY {
            self.advance(true)?;
        } else if self.started < self.published {
            self.advance(false)?;
        }
        Ok(self.published == if self.moves_in_calls { self.done } else { self.started })
    }

    /// Sends what can be sent. Says whether the peer has all that was published, or, over TCP, the
    /// kernel has: then this end may go.
    ///
    /// # Errors
    /// What ended the link.
    pub fn has_delivered(&mut self) -> Result<bool, Error> {
        if self.done < self.published {
            self.advance(true)?;
        }
        Ok(self.done == self.published)
    }

    /// Bytes of a slot.
    #[inline]
    pub fn slot_bytes(&self) -> usize {
        self.ring.slot_bytes()
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.status.link().peer
    }

    /// Starts the messages that the peer has room for, and looks, if told to, which are done.
    fn advance(&mut self, look: bool) -> Result<(), Error> {
        self.status.check()?;
        let mut moved = self.start();
        if look {
            self.unlooked = 0;
            moved = moved.and_then(|()| self.finish());
        }
        moved.map_err(|error| self.status.named(&error))?;
        self.status.set([self.published, self.started, self.done]);
        Ok(())
    }

    fn start(&mut self) -> Result<(), Error> {
        while self.started < self.published {
            let message = &mut self.messages[index(self.started)];
            let addr = message.start.as_ptr().expose_provenance() as u64;
            let buf = SendBuf { addr, len: message.len, lkey: self.ring.lkey() };
            // SAFETY: in the registered ring, or of TCP, which looks at no keys. By the promise of
            // `publish_from` the bytes stay until the message is done.
            let request = unsafe { self.end.isend(&buf, TAG) };
            let request = request.map_err(|error| self.end.failed(error))?;
            if request.is_none() {
                break;
            }
            message.request = request;
            self.started += 1;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        while self.done < self.started
            && let Some(request) = &self.messages[index(self.done)].request
        {
            let sent = self.end.test(request).map_err(|error| self.end.failed(error))?;
            if sent.is_none() {
                break;
            }
            self.messages[index(self.done)].request = None;
            self.done += 1;
        }
        Ok(())
    }

    /// Whether there is no room for another message.
    #[inline]
    fn is_full(&self) -> bool {
        self.published - self.done == SLOTS as u64
    }
}
