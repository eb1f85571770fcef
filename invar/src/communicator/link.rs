//! The way of data from one rank to another on one channel: a ring of eight slots.
//!
//! The sending rank takes the next free slot, fills it and publishes it; the receiving rank sees
//! the next full one, and releases it. Both work in the slots themselves: a reduction reads from
//! the slot of one link and writes into that of the next. What is in a slot another process (or a
//! NIC) may write at any time, so it is handed out as a pointer, and never as a slice.
//!
//! Nothing here waits. Who waits for a link calls `progress` while it does, and looks after peers
//! that are gone. An error names the rank at the other end, and stays.

use std::ptr::NonNull;

use invar_linux::shm::{RecvRing, RingError, SendRing};

use super::net::{NetRecv, NetSend};
use crate::Error;
use crate::error::Kind;

/// The sending end of a link.
pub(crate) enum SendLink {
    /// Through memory that both processes have; it moves without anybody's help.
    Shm {
        /// The rank at the other end.
        peer: u32,
        ring: SendRing,
    },
    /// Over the network.
    Net(Box<NetSend>),
}

/// The receiving end of a link.
pub(crate) enum RecvLink {
    /// Through memory that both processes have.
    Shm {
        /// The rank at the other end.
        peer: u32,
        ring: RecvRing,
    },
    /// Over the network.
    Net(Box<NetRecv>),
}

impl SendLink {
    /// The memory of the next free slot, for `len` bytes, at most those of a slot; `None`: there
    /// is none yet. Asked again it gives the same.
    ///
    /// Until it is published only this end may access the bytes.
    #[inline]
    pub(crate) fn free(&mut self, len: usize) -> Result<Option<NonNull<u8>>, Error> {
        match self {
            SendLink::Shm { peer, ring } => ring.free(len).map_err(|error| broken(*peer, error)),
            SendLink::Net(link) => link.free(len),
        }
    }

    /// Gives the slot that [`free`](Self::free) gave to the other end, with as many bytes.
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

    /// Publishes `len` bytes that lie elsewhere, in place of the slot that [`free`](Self::free) gave
    /// for as many; only where the link [takes memory](Self::takes_memory).
    ///
    /// # Safety
    ///
    /// As of [`NetSend::publish_from`].
    #[inline]
    pub(crate) unsafe fn publish_from(
        &mut self,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<(), Error> {
        match self {
            SendLink::Shm { .. } => unreachable!("it takes no memory"),
            // SAFETY: the caller's promise.
            SendLink::Net(link) => unsafe { link.publish_from(start, len) },
        }
    }

    /// Whether data need not be in a slot.
    #[inline]
    pub(crate) fn takes_memory(&self) -> bool {
        matches!(self, SendLink::Net(link) if link.takes_memory())
    }
}

impl RecvLink {
    /// The memory of the next full slot, and how many bytes are in it; `None`: it is not there
    /// yet. Asked again it gives the same.
    #[inline]
    pub(crate) fn full(&mut self) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        match self {
            RecvLink::Shm { peer, ring } => ring.full().map_err(|error| broken(*peer, error)),
            RecvLink::Net(link) => link.full(),
        }
    }

    /// As [`full`](Self::full), of `len` bytes, which may come right to `to` and be there then.
    ///
    /// # Safety
    ///
    /// As of [`NetRecv::full_at`].
    #[inline]
    pub(crate) unsafe fn full_at(
        &mut self,
        to: NonNull<u8>,
        len: usize,
    ) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        match self {
            RecvLink::Shm { .. } => self.full(),
            // SAFETY: the caller's promise.
            RecvLink::Net(link) => unsafe { link.full_at(to, len) },
        }
    }

    /// Gives the slot that [`full`](Self::full) gave back to the other end.
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
