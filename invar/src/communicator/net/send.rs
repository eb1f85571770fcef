//! The sending end of a link.

use std::ptr::NonNull;
use std::sync::Arc;

use invar_core::comm::Request;
use invar_linux::interest::Interest;

use super::ring::{LinkRing, SLOTS, index};
use super::status::LinkStatus;
use super::{SHORT_BYTES, TAG};
use crate::Error;
use crate::error::Kind;
use crate::raw::{SendBuf, SendEnd};

/// Calls without new data between two checks for messages that a NIC has sent. With the software NIC
/// each check is a system call.
const LOOK_EVERY: u32 = 64;

/// The sending end of a link to another rank; the rank fills its slots.
///
/// A message is first published, then started, then done. The calling thread moves it:
/// [`free`](NetSend::free), [`publish`](NetSend::publish) and [`progress`](NetSend::progress) all
/// advance the same state.
pub struct NetSend {
    // The end must be dropped before the memory of the slots.
    end: Box<dyn SendEnd>,
    /// The messages that are published and not done, by step.
    messages: [NetMessage; SLOTS],
    published: u64,
    started: u64,
    done: u64,
    /// Index of the slot that the rank fills next.
    slot: u64,
    /// Number of calls since the last check for messages that are done.
    unlooked: u32,
    /// Whether data moves only in calls, and from any memory, as over TCP.
    moves_in_calls: bool,
    ring: LinkRing,
    status: Arc<LinkStatus>,
}

/// The memory and the length of a message.
struct NetMessage {
    start: NonNull<u8>,
    len: u32,
    /// The request of the message, once the message is started.
    request: Option<Request>,
}

// SAFETY: the pointers are to slots of the ring, or to memory that the caller of `publish_from` has
// promised, whichever thread uses them.
unsafe impl Send for NetSend {}

impl NetSend {
    pub(super) fn new(end: Box<dyn SendEnd>, ring: LinkRing, status: Arc<LinkStatus>) -> Self {
        let moves_in_calls = end.needs_calls();
        let start = ring.slot(0);
        NetSend {
            end,
            messages: std::array::from_fn(|_| NetMessage { start, len: 0, request: None }),
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

    /// Returns the memory of the next free slot, for `len` bytes. Returns `None` if no slot is free
    /// yet. Fill and publish the slot of the last call: once messages have left, a call may return another
    /// slot than the call before.
    ///
    /// Nobody else accesses the slot before it is published. The memory lives as long as this end.
    ///
    /// # Errors
    /// Fails if `len` exceeds the size of a slot, or if the link has ended.
    #[inline]
    pub fn free(&mut self, len: usize) -> Result<Option<NonNull<u8>>, Error> {
        if len > self.slot_bytes() {
            let text = format!("{len} bytes for a slot of {}", self.slot_bytes());
            return Err(Kind::Usage(text).into());
        }
        if self.is_full() || len > SHORT_BYTES {
            self.finish_sent()?;
        }
        if self.is_full() {
            return Ok(None);
        }
        if self.published == self.done {
            // If all messages are done, the first slot is used again, because it stays in the
            // processor's cache.
            self.slot = 0;
        }
        Ok(Some(self.ring.slot(self.slot)))
    }

    /// Sends `len` bytes of the slot that [`NetSend::free`] returned. A larger `len` is cut to the size
    /// of a slot.
    ///
    /// # Errors
    /// Fails if the link has ended.
    #[inline]
    pub fn publish(&mut self, len: usize) -> Result<(), Error> {
        let (slot, len) = (self.ring.slot(self.slot), len.min(self.slot_bytes()));
        // SAFETY: the slot belongs to the ring, and `free` does not return it again while it holds a
        // message.
        unsafe { self.publish_from(slot, len) }
    }

    /// Returns whether [`NetSend::publish_from`] can send without a copy to a slot.
    #[inline]
    pub(in crate::communicator) fn takes_memory(&self) -> bool {
        self.moves_in_calls
    }

    /// Publishes `len` bytes in place of the slot that [`NetSend::free`] returned for `len` bytes. The
    /// bytes are in a slot; if the link [takes memory](Self::takes_memory), they may be anywhere.
    ///
    /// # Safety
    ///
    /// The bytes are valid for reads, and nobody writes them, until one of these: [`NetSend::progress`]
    /// has said that all data has left, the peer has received the bytes, or this end is dropped.
    #[inline]
    pub(in crate::communicator) unsafe fn publish_from(
        &mut self,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<(), Error> {
        if self.is_full() {
            // `free` has returned no slot, so there is nothing to publish.
            return Ok(());
        }
        self.messages[index(self.published)] = NetMessage { start, len: len as u32, request: None };
        self.published += 1;
        self.slot += 1;
        self.progress().map(drop)
    }

    /// Sends the data that can be sent. Returns whether all published messages reach the peer without
    /// more calls.
    ///
    /// # Errors
    /// Fails if the link has ended.
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

    /// Sends the data that can be sent. Returns whether the peer's host has all published messages. This end
    /// may be dropped then.
    ///
    /// # Errors
    /// Fails if the link has ended.
    pub fn has_delivered(&mut self) -> Result<bool, Error> {
        self.finish_sent()?;
        Ok(self.done == self.published && self.end.is_settled())
    }

    /// Finishes the messages that have left.
    fn finish_sent(&mut self) -> Result<(), Error> {
        if self.done < self.published { self.advance(true) } else { Ok(()) }
    }

    /// Arms what ends a wait until messages have left or a slot is free, if there are messages.
    pub(in crate::communicator) fn arm(&mut self, interest: &mut Interest) {
        let has_started = self.started == self.published && !self.is_full();
        if self.done < self.published && (self.moves_in_calls || !has_started) {
            self.end.arm(interest);
        }
    }

    /// Returns the number of bytes of a slot.
    #[inline]
    pub fn slot_bytes(&self) -> usize {
        self.ring.slot_bytes()
    }

    /// Returns the rank at the other end.
    pub fn peer(&self) -> u32 {
        self.status.link().peer
    }

    /// Starts the messages that the peer has room for. If `look` is set, also checks which messages are
    /// done.
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
            // SAFETY: the memory is in the registered ring, or the link is over TCP, which ignores
            // keys. By the promise of `publish_from` the bytes stay valid until the message is done.
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

    /// Returns whether there is no room for another message.
    #[inline]
    fn is_full(&self) -> bool {
        self.published - self.done == SLOTS as u64
    }
}
