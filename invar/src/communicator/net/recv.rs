//! The receiving end of a link.

use std::ptr::NonNull;
use std::sync::Arc;

use invar_core::comm::Request;
use invar_linux::interest::Interest;

use super::ring::{LinkRing, SLOTS, index};
use super::status::LinkStatus;
use super::{SHORT_BYTES, TAG};
use crate::Error;
use crate::raw::{RecvBuf, RecvEnd};

/// Number of free slots that are announced to the sender at once. One announcement costs as much as a
/// short message.
const CREDITS: u64 = SLOTS as u64 / 2;
/// Number of free slots that are announced at once if messages are short. The sender then has two slots
/// left for the time of the announcement.
const CREDITS_SHORT: u64 = SLOTS as u64 - 2;

/// The receiving end of a link from another rank; the rank uses its slots.
///
/// Over a NIC, this end posts receives ahead for the free slots. Over TCP, it posts one receive at a
/// time, directly to the memory that needs the data; later data stays in the socket. Calls of
/// [`full`](NetRecv::full) and [`progress`](NetRecv::progress) move the link.
pub struct NetRecv {
    // The end must be dropped before the memory of the slots.
    end: Box<dyn RecvEnd>,
    /// Requests of the receives that are posted and not done, by step.
    requests: [Option<Request>; SLOTS],
    /// Number of steps for which a receive has been posted.
    posted: u64,
    /// Number of released steps.
    released: u64,
    /// The memory that the message of the next step arrives in.
    place: NonNull<u8>,
    /// Length of the next message, once it has arrived.
    len: Option<usize>,
    /// Whether the rank has asked for the next message in vain.
    is_awaited: bool,
    /// Number of free slots that are announced to the sender at once.
    credits: u64,
    /// Whether data moves only in calls, and to any memory, as over TCP.
    moves_in_calls: bool,
    ring: LinkRing,
    status: Arc<LinkStatus>,
}

// SAFETY: `place` is a slot of the ring, or memory that the caller of `full_at` has promised, whichever
// thread uses it.
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
            is_awaited: false,
            credits: CREDITS,
            moves_in_calls,
            ring,
            status,
        };
        if !moves_in_calls {
            // The first messages of the sender need not wait until the sender hears of free slots.
            link.post_free()?;
        }
        Ok(link)
    }

    /// Returns the memory of the next full slot and the number of bytes in it. Returns `None` if no
    /// message has arrived yet. Until the slot is released, repeated calls return the same slot.
    ///
    /// Until then nobody else accesses the slot, except a peer that breaks the protocol. The memory
    /// lives as long as this end.
    ///
    /// # Errors
    /// Fails if the link has ended.
    #[inline]
    pub fn full(&mut self) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        // Over TCP there is one message at a time. The same slot for all messages stays in the
        // processor's cache.
        let (slot, len) = (self.ring.slot(0), self.slot_bytes());
        // SAFETY: the slot belongs to the ring, and nobody else has it while a message is to come.
        unsafe { self.full_at(slot, len) }
    }

    /// Returns the next message, like [`NetRecv::full`], which has at most `len` bytes. The message may
    /// arrive directly in `to`; the returned pointer says where it is. Repeated calls must pass the
    /// same arguments.
    ///
    /// # Errors
    /// Fails if the link has ended or if the message has more than `len` bytes.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `to` are valid for writes. Nobody else accesses them until this function
    /// returns the message or this end is dropped.
    #[inline]
    pub(in crate::communicator) unsafe fn full_at(
        &mut self,
        to: NonNull<u8>,
        len: usize,
    ) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        if self.len.is_none() {
            // SAFETY: the caller has promised what `advance` demands.
            unsafe { self.advance(to, len as u32) }?;
        }
        Ok(self.len.map(|len| (self.place, len)))
    }

    /// Gives the slot that [`NetRecv::full`] returned back to the network.
    #[inline]
    pub fn release(&mut self) {
        if self.len.take().is_some() {
            self.released += 1;
            self.status.set([self.released; 3]);
        }
    }

    /// Receives the data that has arrived.
    ///
    /// # Errors
    /// Fails if the link has ended.
    #[inline]
    pub fn progress(&mut self) -> Result<(), Error> {
        self.full().map(drop)
    }

    /// Arms what ends a wait for the next message, if the rank waits for it.
    pub(in crate::communicator) fn arm(&mut self, interest: &mut Interest) {
        if self.is_awaited {
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

    /// Posts receives, and checks whether the next message has arrived.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`full_at`](Self::full_at).
    unsafe fn advance(&mut self, to: NonNull<u8>, len: u32) -> Result<(), Error> {
        self.status.check()?;
        // SAFETY: the caller has promised what `receive` demands.
        let received = unsafe { self.receive(to, len) };
        self.len = received.map_err(|error| self.status.named(&error))?;
        self.is_awaited = self.len.is_none();
        let (through, come) = (self.released, u64::from(self.len.is_some()));
        self.status.set([through + 1, through + come, through]);
        Ok(())
    }

    /// # Safety
    ///
    /// The caller makes the promises of [`full_at`](Self::full_at).
    unsafe fn receive(&mut self, to: NonNull<u8>, len: u32) -> Result<Option<usize>, Error> {
        if !self.moves_in_calls {
            if self.released + SLOTS as u64 - self.posted >= self.credits {
                self.post_free()?;
            }
            self.place = self.ring.slot(self.released);
        } else if self.posted == self.released {
            let addr = to.as_ptr().expose_provenance() as u64;
            // SAFETY: TCP ignores keys, and the caller has promised that the memory at `to` is valid.
            if !unsafe { self.post(addr, len) }? {
                return Ok(None);
            }
            self.place = to;
        }
        self.received()
    }

    /// Posts receives for all free slots, until the end has no room.
    fn post_free(&mut self) -> Result<(), Error> {
        while self.posted < self.released + SLOTS as u64 {
            let (addr, len) = (self.ring.addr(self.posted), self.slot_bytes() as u32);
            // SAFETY: the slot is in the ring, which stays registered as long as this end exists. The
            // rank does not touch a slot that it has released.
            if !unsafe { self.post(addr, len) }? {
                break;
            }
        }
        Ok(())
    }

    /// Posts the receive of the next step. Returns whether the end had room for it.
    ///
    /// # Safety
    ///
    /// The bytes are registered with the ring's key, or the link is over TCP. The bytes stay valid, and
    /// nobody accesses them, until the step is received or this end is dropped.
    unsafe fn post(&mut self, addr: u64, len: u32) -> Result<bool, Error> {
        let buf = RecvBuf { addr, len, tag: TAG, rkey: self.ring.rkey() };
        // SAFETY: the caller has promised that the buffer stays valid until the receive is done.
        let request = unsafe { self.end.irecv_ahead(&buf) };
        let request = request.map_err(|error| self.end.failed(error))?;
        let posted = request.is_some();
        if posted {
            self.requests[index(self.posted)] = request;
            self.posted += 1;
        }
        Ok(posted)
    }

    /// Returns the number of bytes of the next message, if it has arrived. The number is at most the
    /// size of a slot, because the connection fails otherwise.
    fn received(&mut self) -> Result<Option<usize>, Error> {
        let at = index(self.released);
        let Some(request) = &self.requests[at] else { return Ok(None) };
        let mut len = 0;
        // SAFETY: the receive has one buffer, so `len` has room for all sizes.
        let received = unsafe { self.end.test(request, &mut len) };
        if received.map_err(|error| self.end.failed(error))?.is_none() {
            return Ok(None);
        }
        self.requests[at] = None;
        self.credits = if len as usize > SHORT_BYTES { CREDITS } else { CREDITS_SHORT };
        Ok(Some(len as usize))
    }
}
