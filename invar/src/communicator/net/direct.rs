//! Links without a proxy: a rank moves each by its own calls.
//!
//! Over TCP bytes move in calls alone and no memory is registered, so messages come from and go to
//! wherever the data is, and one receive is posted at a time: what comes behind it stays in the
//! socket. Elsewhere messages are slots of the ring, and receives are posted ahead for those that
//! are free; what was posted moves without more calls. How it does is looked at where a slot is
//! needed, and else now and then, for errors: with the software NIC a look is a system call.

use std::ptr::NonNull;
use std::sync::Arc;

use super::ring::SLOTS;
use super::standing::Standing;
use super::wire::{RecvWire, SHORT_BYTES, SendWire};
use crate::Error;

/// Of so many calls that have nothing to send one looks how what was sent does.
const LOOK_EVERY: u32 = 64;

/// The sending end.
pub(super) struct DirectSend {
    wire: SendWire,
    /// Those that were published and are not done, by step.
    messages: [Message; SLOTS],
    /// Steps that are done, begun with, and published.
    done: u64,
    started: u64,
    next: u64,
    /// The slot that is to be filled next.
    slot: u64,
    /// Calls since the last look.
    unlooked: u32,
    standing: Arc<Standing>,
}

/// Where a message is, and how long it is.
#[derive(Clone, Copy)]
struct Message {
    start: NonNull<u8>,
    len: u32,
}

// SAFETY: the pointers are to slots of the ring, or to what `publish_from` was promised, whichever
// thread goes on.
unsafe impl Send for DirectSend {}

/// The receiving end.
pub(super) struct DirectRecv {
    wire: RecvWire,
    /// Steps that are released.
    next: u64,
    /// Where the message of the next step comes.
    place: NonNull<u8>,
    /// Its length, once it is there.
    len: Option<usize>,
    standing: Arc<Standing>,
}

// SAFETY: as of `DirectSend`, and `full_at`.
unsafe impl Send for DirectRecv {}

impl DirectSend {
    pub(super) fn new(wire: SendWire, standing: Arc<Standing>) -> Self {
        let messages = [Message { start: wire.ring().slot(0), len: 0 }; SLOTS];
        DirectSend { wire, messages, done: 0, started: 0, next: 0, slot: 0, unlooked: 0, standing }
    }

    #[inline]
    pub(super) fn free(&mut self, len: usize) -> Result<Option<NonNull<u8>>, Error> {
        if self.is_busy() || len > SHORT_BYTES {
            self.has_delivered()?;
        }
        if self.is_busy() {
            return Ok(None);
        }
        if self.next == self.done {
            // The same one each time stays in the processor's cache.
            self.slot = 0;
        }
        Ok(Some(self.wire.ring().slot(self.slot)))
    }

    #[inline]
    pub(super) fn publish(&mut self, len: usize) -> Result<(), Error> {
        let ring = self.wire.ring();
        let (slot, len) = (ring.slot(self.slot), len.min(ring.slot_bytes()));
        // SAFETY: the slot is the ring's, and not given out again while a message is in it.
        unsafe { self.publish_from(slot, len) }
    }

    /// Whether messages need not be in slots.
    #[inline]
    pub(super) fn takes_memory(&self) -> bool {
        self.wire.needs_calls()
    }

    /// # Safety
    ///
    /// As of [`NetSend::publish_from`](super::NetSend::publish_from); in a slot, unless the link
    /// [takes memory](Self::takes_memory).
    #[inline]
    pub(super) unsafe fn publish_from(
        &mut self,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<(), Error> {
        if self.is_busy() {
            // `free` has given nothing.
            return Ok(());
        }
        self.messages[(self.next % SLOTS as u64) as usize] = Message { start, len: len as u32 };
        self.next += 1;
        self.slot += 1;
        self.progress().map(drop)
    }

    /// Sends what can be sent. Whether all gets to the peer without more calls.
    #[inline]
    pub(super) fn progress(&mut self) -> Result<bool, Error> {
        if self.done == self.next {
            return Ok(true);
        }
        self.unlooked += 1;
        if self.wire.needs_calls() || self.unlooked == LOOK_EVERY {
            self.has_delivered()?;
        } else if self.started < self.next {
            self.start().map_err(|error| self.standing.named(&error))?;
            self.show();
        }
        Ok(self.next == if self.wire.needs_calls() { self.done } else { self.started })
    }

    /// The same. Whether the peer has all, or, over TCP, the kernel.
    pub(super) fn has_delivered(&mut self) -> Result<bool, Error> {
        self.unlooked = 0;
        if self.done < self.next {
            let looked = self.start().and_then(|()| self.look());
            looked.map_err(|error| self.standing.named(&error))?;
            self.show();
        }
        Ok(self.done == self.next)
    }

    /// Whether there is no room for another message.
    fn is_busy(&self) -> bool {
        self.next - self.done == SLOTS as u64
    }

    fn start(&mut self) -> Result<(), Error> {
        while self.started < self.next {
            let Message { start, len } = self.messages[(self.started % SLOTS as u64) as usize];
            let addr = start.as_ptr().expose_provenance() as u64;
            // SAFETY: by the promise of `publish_from`; it is over when the step is sent.
            if !unsafe { self.wire.start_from(self.started, addr, len) }? {
                break;
            }
            self.started += 1;
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), Error> {
        while self.done < self.started && self.wire.is_sent(self.done)? {
            self.done += 1;
        }
        Ok(())
    }

    fn show(&self) {
        self.standing.set([self.next, self.started, self.done]);
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.wire.ring().slot_bytes()
    }

    pub(super) fn peer(&self) -> u32 {
        self.standing.peer()
    }
}

impl DirectRecv {
    pub(super) fn new(wire: RecvWire, standing: Arc<Standing>) -> Self {
        let place = wire.ring().slot(0);
        DirectRecv { wire, next: 0, place, len: None, standing }
    }

    #[inline]
    pub(super) fn full(&mut self) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        // There is one message at a time: the same slot stays in the processor's cache.
        let (slot, len) = (self.wire.ring().slot(0), self.slot_bytes());
        // SAFETY: the slot is the ring's, and given to nobody while a message is to come.
        unsafe { self.full_at(slot, len) }
    }

    /// # Safety
    ///
    /// As of [`NetRecv::full_at`](super::NetRecv::full_at).
    #[inline]
    pub(super) unsafe fn full_at(
        &mut self,
        to: NonNull<u8>,
        len: usize,
    ) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        if self.len.is_none() {
            // SAFETY: the caller's promise.
            let received = unsafe { self.receive(to, len as u32) };
            self.len = received.map_err(|error| self.standing.named(&error))?;
            self.standing.set([
                self.next + 1,
                self.next + u64::from(self.len.is_some()),
                self.next,
            ]);
        }
        Ok(self.len.map(|len| (self.place, len)))
    }

    /// # Safety
    ///
    /// As of [`full_at`](Self::full_at).
    unsafe fn receive(&mut self, to: NonNull<u8>, len: u32) -> Result<Option<usize>, Error> {
        if !self.wire.needs_calls() {
            self.wire.post_free(self.next)?;
            self.place = self.wire.ring().slot(self.next);
        } else if self.wire.posted() == self.next {
            let addr = to.as_ptr().expose_provenance() as u64;
            // SAFETY: the caller's promise.
            if !unsafe { self.wire.post_at(addr, len) }? {
                return Ok(None);
            }
            self.place = to;
        }
        Ok(self.wire.received(self.next)?.map(|len| len as usize))
    }

    #[inline]
    pub(super) fn release(&mut self) {
        if self.len.take().is_some() {
            self.next += 1;
            self.standing.set([self.next; 3]);
        }
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.wire.ring().slot_bytes()
    }

    pub(super) fn peer(&self) -> u32 {
        self.standing.peer()
    }
}
