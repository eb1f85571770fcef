//! A link carries data from one rank to another on one channel. It is a ring of eight slots.
//!
//! The sending rank takes the next free slot, fills it and publishes it. The receiving rank takes the
//! next full slot and releases it. Both ranks work in the slots themselves: a reduction reads from the
//! slot of one link and writes into the slot of the next link. Another process or a NIC may write a
//! slot at any time. A link therefore gives out a pointer to the slot, never a slice.
//!
//! No function of a link waits. A caller that waits for a link calls `progress` meanwhile, and checks
//! for peers that are gone. An error names the rank at the other end, and every later call returns it
//! again.

use std::ptr::NonNull;

use invar_linux::shm::{RecvRing, RingError, SendRing};

use super::net::{NetRecv, NetSend};
use crate::Error;
use crate::error::Kind;

/// The sending end of a link.
pub(crate) enum SendLink {
    /// A link through memory that both processes share. Data moves without calls of `progress`.
    Shm {
        /// The rank at the other end.
        peer: u32,
        ring: SendRing,
    },
    /// A link over the network.
    Net(Box<NetSend>),
}

/// The receiving end of a link.
pub(crate) enum RecvLink {
    /// A link through memory that both processes share.
    Shm {
        /// The rank at the other end.
        peer: u32,
        ring: RecvRing,
    },
    /// A link over the network.
    Net(Box<NetRecv>),
}

impl SendLink {
    /// Returns the memory of the next free slot, for `len` bytes, at most as many as a slot has.
    /// Returns `None` if no slot is free yet. Until the slot is published, repeated calls return the
    /// same memory.
    ///
    /// Until the slot is published, only this end may access the bytes.
    #[inline]
    pub(crate) fn free(&mut self, len: usize) -> Result<Option<NonNull<u8>>, Error> {
        match self {
            SendLink::Shm { peer, ring } => ring.free(len).map_err(|error| broken(*peer, error)),
            SendLink::Net(link) => link.free(len),
        }
    }

    /// Publishes the slot that [`free`](Self::free) returned to the other end, with `len` bytes.
    #[inline]
    pub(crate) fn publish(&mut self, len: usize) -> Result<(), Error> {
        match self {
            SendLink::Shm { ring, .. } => {
                ring.publish(len);
                Ok(())
            }
            SendLink::Net(link) => link.publish(len),
        }
    }

    /// Publishes `len` bytes of other memory in place of the slot that [`free`](Self::free) returned
    /// for `len` bytes. Call this only if the link [takes memory](Self::takes_memory).
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`NetSend::publish_from`].
    #[inline]
    pub(crate) unsafe fn publish_from(
        &mut self,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<(), Error> {
        match self {
            SendLink::Shm { .. } => unreachable!("it takes no memory"),
            // SAFETY: the caller has promised what `NetSend::publish_from` demands.
            SendLink::Net(link) => unsafe { link.publish_from(start, len) },
        }
    }

    /// Returns whether the link can send data that is not in a slot.
    #[inline]
    pub(crate) fn takes_memory(&self) -> bool {
        matches!(self, SendLink::Net(link) if link.takes_memory())
    }
}

impl RecvLink {
    /// Returns the memory of the next full slot and the number of bytes in it. Returns `None` if no
    /// slot is full yet. Until the slot is released, repeated calls return the same memory.
    #[inline]
    pub(crate) fn full(&mut self) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        match self {
            RecvLink::Shm { peer, ring } => ring.full().map_err(|error| broken(*peer, error)),
            RecvLink::Net(link) => link.full(),
        }
    }

    /// Returns the memory of the next message, which must have `len` bytes, like [`full`](Self::full).
    /// The link may receive the bytes directly into `to` and then returns `to`.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`NetRecv::full_at`].
    #[inline]
    pub(crate) unsafe fn full_at(
        &mut self,
        to: NonNull<u8>,
        len: usize,
    ) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        match self {
            RecvLink::Shm { .. } => self.full(),
            // SAFETY: the caller has promised what `NetRecv::full_at` demands.
            RecvLink::Net(link) => unsafe { link.full_at(to, len) },
        }
    }

    /// Releases the slot that [`full`](Self::full) returned to the other end.
    #[inline]
    pub(crate) fn release(&mut self) {
        match self {
            RecvLink::Shm { ring, .. } => ring.release(),
            RecvLink::Net(link) => link.release(),
        }
    }
}

#[cold]
fn broken(rank: u32, error: RingError) -> Error {
    Kind::Rank { rank, text: error.to_string() }.into()
}
