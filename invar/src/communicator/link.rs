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
    /// Over the network, moved by the proxy.
    Net(NetSend),
}

/// The receiving end of a link.
pub(crate) enum RecvLink {
    /// Through memory that both processes have.
    Shm {
        /// The rank at the other end.
        peer: u32,
        ring: RecvRing,
    },
    /// Over the network, moved by the proxy.
    Net(NetRecv),
}

impl SendLink {
    /// Says that `steps` slots are going to be published. Both ends say so, of the same number,
    /// before the first of them; a transport that has helpers sets them to work.
    pub(crate) fn start(&mut self, steps: u64) -> Result<(), Error> {
        match self {
            SendLink::Shm { .. } => Ok(()),
            SendLink::Net(link) => link.start(steps),
        }
    }

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
            SendLink::Shm { ring, .. } => ring.publish(len),
            SendLink::Net(link) => link.publish(len),
        }
        Ok(())
    }

    /// Moves what can be moved; whether all that was published has left this end's memory.
    #[inline]
    pub(crate) fn progress(&mut self) -> Result<bool, Error> {
        match self {
            SendLink::Shm { .. } => Ok(true),
            SendLink::Net(link) => link.progress(),
        }
    }
}

impl RecvLink {
    /// As [`SendLink::start`].
    pub(crate) fn start(&mut self, steps: u64) -> Result<(), Error> {
        match self {
            RecvLink::Shm { .. } => Ok(()),
            RecvLink::Net(link) => link.start(steps),
        }
    }

    /// The memory of the next full slot, and how many bytes are in it; `None`: it is not there
    /// yet. Asked again it gives the same.
    #[inline]
    pub(crate) fn full(&mut self) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        match self {
            RecvLink::Shm { peer, ring } => ring.full().map_err(|error| broken(*peer, error)),
            RecvLink::Net(link) => Ok(link.full()),
        }
    }

    /// Gives the slot that [`full`](Self::full) gave back to the other end.
    #[inline]
    pub(crate) fn release(&mut self) -> Result<(), Error> {
        match self {
            RecvLink::Shm { ring, .. } => ring.release(),
            RecvLink::Net(link) => link.release(),
        }
        Ok(())
    }

    /// Moves what can be moved.
    #[inline]
    pub(crate) fn progress(&mut self) -> Result<(), Error> {
        match self {
            RecvLink::Shm { .. } => Ok(()),
            RecvLink::Net(link) => link.progress(),
        }
    }
}

#[cold]
fn broken(rank: u32, error: RingError) -> Error {
    Kind::Rank { rank, text: error.to_string() }.into()
}
