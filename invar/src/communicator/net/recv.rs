//! The receiving end of a link.

use std::ptr::NonNull;
use std::sync::Arc;

use invar_core::comm::Request;

use super::ring::{LinkRing, SLOTS, index};
use super::status::LinkStatus;
use super::{SHORT_BYTES, TAG};
use crate::Error;
use crate::raw::{RecvBuf, RecvEnd};

/// Free slots that the sender is told of at once: to tell of one costs as much as a short message.
const CREDITS: u64 = SLOTS as u64 / 2;
/// As [`CREDITS`], where messages are short. The sender has two slots left, for the time that these
/// take.
const CREDITS_SHORT: u64 = SLOTS as u64 - 2;

/// The receiving end of a link from another rank: slots that the rank uses.
///
/// Over a NIC, receives are posted ahead for the slots that are free. Over TCP one receive is posted
/// at a time, to the memory where the data is to be; what comes behind it stays in the socket.
/// Whoever calls [`full`](NetRecv::full) or [`progress`](NetRecv::progress) moves the link.
pub struct NetRecv {
    // Ends before the slots' memory.
    end: Box<dyn RecvEnd>,
    /// Of receives that are posted and not done, by step.
    requests: [Option<Request>; SLOTS],
    /// Steps for which a receive is posted, or was.
    posted: u64,
    /// Steps that are released.
    released: u64,
    /// Where the message of the next step comes.
    place: NonNull<u8>,
    /// Its length, once it is there.
    len: Option<usize>,
    /// Free slots that the sender is told of at once.
    credits: u64,
    /// Whether bytes move in calls alone, and to any memory: over TCP.
    moves_in_calls: bool,
    ring: LinkRing,
    status: Arc<LinkStatus>,
}

// SAFETY: `place` is a slot of the ring, or what `full_at` was promised, whichever thread goes on.
unsafe impl Send for NetRecv {}

impl NetRecv {
    pub(super) fn new(
        end: Box<dyn RecvEnd>,
        ring: LinkRing,
        status: Arc<LinkStatus>,
    ) -> Result<Self, Error> {
        let moves_in_calls = end.needs_calls();
        let mut link = NetRecv {
            end,
            requests: Default::default(),
            posted: 0,
            released: 0,
            place: ring.slot(0),
            len: None,
            credits: CREDITS,
            moves_in_calls,
            ring,
            status,
        };
        if !moves_in_calls {
            // What the sender has first need not wait until it hears of a slot.
            link.post_free()?;
        }
        Ok(link)
    }

    /// The memory of the next full slot and how many bytes are in it; `None`: the message is not there
    /// yet. Asked again it gives the same slot.
    ///
    /// Until the slot is released nobody else accesses it, but a peer that breaks the protocol. It is
    /// there as long as this end.
    ///
    /// # Errors
    /// What ended the link.
    #[inline]
    pub fn full(&mut self) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        // Over TCP there is one message at a time: the same slot stays in the processor's cache.
        let (slot, len) = (self.ring.slot(0), self.slot_bytes());
        // SAFETY: the slot is the ring's, and given to nobody while a message is to come.
        unsafe { self.full_at(slot, len) }
    }

    /// As [`NetRecv::full`], of a message of at most `len` bytes, which may come right to `to`: look
    /// where it is. Asked again it must be with the same.
    ///
    /// # Errors
    /// As of [`NetRecv::full`]; and a message of more bytes.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `to` are valid for writes, and not accessed by anyone else, until the slot
    /// is given or this end is dropped.
    #[inline]
    pub(in crate::communicator) unsafe fn full_at(
        &mut self,
        to: NonNull<u8>,
        len: usize,
    ) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        if self.len.is_none() {
            // SAFETY: the caller's promise.
            unsafe { self.advance(to, len as u32) }?;
        }
        Ok(self.len.map(|len| (self.place, len)))
    }

    /// Gives the slot that [`NetRecv::full`] gave back to the network.
    #[inline]
    pub fn release(&mut self) {
        if self.len.take().is_some() {
            self.released += 1;
            self.status.set([self.released; 3]);
        }
    }

    /// Receives what can be received.
    ///
    /// # Errors
    /// What ended the link.
    #[inline]
    pub fn progress(&mut self) -> Result<(), Error> {
        self.full().map(drop)
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

    /// Posts receives, and looks whether the next message is there.
    ///
    /// # Safety
    ///
    /// As of [`full_at`](Self::full_at).
    unsafe fn advance(&mut self, to: NonNull<u8>, len: u32) -> Result<(), Error> {
        self.status.check()?;
        // SAFETY: the caller's promise.
        let received = unsafe { self.receive(to, len) };
        self.len = received.map_err(|error| self.status.named(&error))?;
        let (through, come) = (self.released, u64::from(self.len.is_some()));
        self.status.set([through + 1, through + come, through]);
        Ok(())
    }

    /// # Safety
    ///
    /// As of [`full_at`](Self::full_at).
    unsafe fn receive(&mut self, to: NonNull<u8>, len: u32) -> Result<Option<usize>, Error> {
        if !self.moves_in_calls {
            if self.released + SLOTS as u64 - self.posted >= self.credits {
                self.post_free()?;
            }
            self.place = self.ring.slot(self.released);
        } else if self.posted == self.released {
            let addr = to.as_ptr().expose_provenance() as u64;
            // SAFETY: TCP looks at no keys; and the caller's promise.
            if !unsafe { self.post(addr, len) }? {
                return Ok(None);
            }
            self.place = to;
        }
        self.received()
    }

    /// Posts receives for all free slots, as far as it can.
    fn post_free(&mut self) -> Result<(), Error> {
        while self.posted < self.released + SLOTS as u64 {
            let (addr, len) = (self.ring.addr(self.posted), self.slot_bytes() as u32);
            // SAFETY: the slot is in the ring, which stays registered as long as this end is there, and
            // the rank does not touch a slot that it has given back.
            if !unsafe { self.post(addr, len) }? {
                break;
            }
        }
        Ok(())
    }

    /// Posts the receive of the next step; whether it could.
    ///
    /// # Safety
    ///
    /// The bytes are registered with the ring's key, or of TCP. They stay, not accessed by anyone,
    /// until the step is received or this end is dropped.
    unsafe fn post(&mut self, addr: u64, len: u32) -> Result<bool, Error> {
        let buf = RecvBuf { addr, len, tag: TAG, rkey: self.ring.rkey() };
        // SAFETY: the caller's promise.
        let request = unsafe { self.end.irecv_ahead(&buf) };
        let request = request.map_err(|error| self.end.failed(error))?;
        let posted = request.is_some();
        if posted {
            self.requests[index(self.posted)] = request;
            self.posted += 1;
        }
        Ok(posted)
    }

    /// How many bytes have come for the next step, if they have; no more than a slot has, or the
    /// connection would have failed.
    fn received(&mut self) -> Result<Option<usize>, Error> {
        let at = index(self.released);
        let Some(request) = &self.requests[at] else { return Ok(None) };
        let mut len = 0;
        // SAFETY: the receive has one buffer.
        let received = unsafe { self.end.test(request, &mut len) };
        if received.map_err(|error| self.end.failed(error))?.is_none() {
            return Ok(None);
        }
        self.requests[at] = None;
        self.credits = if len as usize > SHORT_BYTES { CREDITS } else { CREDITS_SHORT };
        Ok(Some(len as usize))
    }
}
