//! Links without a proxy: a rank moves each by its own calls, from and to wherever the data is.
//!
//! For TCP, where bytes move in calls alone and no memory is registered. The kernel keeps what was
//! sent, so that a rank which has left nothing behind here need not come back for it.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use invar_core::comm::{RecvBuf, Request, SendBuf};
use invar_core::error::Error as CoreError;

use super::ring::{Ring, SLOTS};
use super::wire::{RecvWire, SendWire, TAG};
use crate::Error;
use crate::error::Kind;
use crate::raw::{RecvEnd, SendEnd};

/// TCP looks at no keys.
const NO_KEY: u32 = 0;

/// The sending end.
pub(super) struct DirectSend {
    // The end before the ring's memory.
    end: Box<dyn SendEnd>,
    /// What was published and has not left, the oldest first.
    waiting: VecDeque<Message>,
    ring: Arc<Ring>,
    /// The slot that is to be filled next.
    next: u64,
    peer: u32,
}

struct Message {
    start: NonNull<u8>,
    len: u32,
    request: Option<Request>,
}

// SAFETY: the pointers are to slots of the ring, or to what `publish_from` was promised, whichever
// thread goes on.
unsafe impl Send for DirectSend {}

/// The receiving end. One message is awaited at a time; those behind it stay in the socket.
pub(super) struct DirectRecv {
    // The end before the ring's memory.
    end: Box<dyn RecvEnd>,
    state: State,
    ring: Arc<Ring>,
    peer: u32,
}

/// What is with the next message.
enum State {
    Unasked,
    /// It is to come there.
    Awaited(NonNull<u8>, Request),
    /// It is there.
    Full(NonNull<u8>, usize),
}

// SAFETY: as of `DirectSend`, and `full_at`.
unsafe impl Send for DirectRecv {}

impl DirectSend {
    pub(super) fn new(wire: SendWire, peer: u32) -> Self {
        let (end, ring) = wire.into_parts();
        DirectSend { end, waiting: VecDeque::with_capacity(SLOTS), ring, next: 0, peer }
    }

    #[inline]
    pub(super) fn free(&mut self) -> Result<Option<NonNull<u8>>, Error> {
        if self.waiting.len() == SLOTS {
            self.progress()?;
        }
        if self.waiting.len() == SLOTS {
            return Ok(None);
        }
        if self.waiting.is_empty() {
            // The same one each time stays in the processor's cache.
            self.next = 0;
        }
        Ok(Some(self.ring.slot(self.next)))
    }

    #[inline]
    pub(super) fn publish(&mut self, len: usize) -> Result<(), Error> {
        let slot = self.ring.slot(self.next);
        // SAFETY: the slot is the ring's, and not given out again while a message is in it.
        unsafe { self.publish_from(slot, len.min(self.ring.slot_bytes())) }
    }

    /// # Safety
    ///
    /// As of [`NetSend::publish_from`](super::NetSend::publish_from).
    #[inline]
    pub(super) unsafe fn publish_from(
        &mut self,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<(), Error> {
        self.waiting.push_back(Message { start, len: len as u32, request: None });
        self.next += 1;
        self.progress().map(drop)
    }

    /// Sends what the socket takes. Whether all has left.
    #[inline]
    pub(super) fn progress(&mut self) -> Result<bool, Error> {
        if self.waiting.is_empty() {
            return Ok(true);
        }
        self.send().map_err(|error| named(self.peer, &self.end.failed(error)))
    }

    fn send(&mut self) -> Result<bool, CoreError> {
        for message in self.waiting.iter_mut().filter(|message| message.request.is_none()) {
            let addr = message.start.as_ptr().expose_provenance() as u64;
            let buf = SendBuf { addr, len: message.len, lkey: NO_KEY };
            // SAFETY: by the promise of `publish_from`; it is over when the request is done.
            message.request = unsafe { self.end.isend(&buf, TAG) }?;
            if message.request.is_none() {
                break;
            }
        }
        while let Some(Message { request: Some(request), .. }) = self.waiting.front() {
            if self.end.test(request)?.is_none() {
                return Ok(false);
            }
            self.waiting.pop_front();
        }
        Ok(self.waiting.is_empty())
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.ring.slot_bytes()
    }

    pub(super) fn peer(&self) -> u32 {
        self.peer
    }
}

impl DirectRecv {
    pub(super) fn new(wire: RecvWire, peer: u32) -> Self {
        let (end, ring) = wire.into_parts();
        DirectRecv { end, state: State::Unasked, ring, peer }
    }

    #[inline]
    pub(super) fn full(&mut self) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        // There is one message at a time: the same slot stays in the processor's cache.
        let (slot, len) = (self.ring.slot(0), self.ring.slot_bytes());
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
        // SAFETY: the caller's promise.
        unsafe { self.receive(to, len as u32) }.map_err(|error| self.failed(error))
    }

    /// # Safety
    ///
    /// As of [`full_at`](Self::full_at).
    unsafe fn receive(
        &mut self,
        to: NonNull<u8>,
        len: u32,
    ) -> Result<Option<(NonNull<u8>, usize)>, CoreError> {
        if let State::Unasked = self.state {
            let addr = to.as_ptr().expose_provenance() as u64;
            // SAFETY: the caller's promise.
            let request =
                unsafe { self.end.irecv(&[RecvBuf { addr, len, tag: TAG, rkey: NO_KEY }]) }?;
            let Some(request) = request else { return Ok(None) };
            self.state = State::Awaited(to, request);
        }
        if let State::Awaited(to, request) = &self.state {
            let mut len = 0;
            // SAFETY: the receive has one buffer.
            if unsafe { self.end.test(request, &mut len) }?.is_none() {
                return Ok(None);
            }
            self.state = State::Full(*to, len as usize);
        }
        match self.state {
            State::Full(start, len) => Ok(Some((start, len))),
            _ => Ok(None),
        }
    }

    #[inline]
    pub(super) fn release(&mut self) {
        if let State::Full(..) = self.state {
            self.state = State::Unasked;
        }
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.ring.slot_bytes()
    }

    pub(super) fn peer(&self) -> u32 {
        self.peer
    }

    #[cold]
    fn failed(&self, error: CoreError) -> Error {
        named(self.peer, &self.end.failed(error))
    }
}

/// An error of the rank that it is about.
#[cold]
fn named(rank: u32, error: &Error) -> Error {
    Kind::Rank { rank, text: error.to_string() }.into()
}
