//! What passes between a queue pair and its host.

use crate::nic::{Access, Wc};
use crate::roce::Headers;

/// What the host does for a queue pair.
pub trait Env {
    /// Finds `len` bytes at `addr` in a registered region. Called for each packet, or for all that
    /// are sent together, so that a region's end takes effect at once; O(1) is expected. `len` is
    /// not 0.
    ///
    /// # Errors
    /// No such key, not all of the bytes inside the region, or `need` not permitted there.
    fn resolve(
        &mut self,
        key: u32,
        addr: u64,
        len: u32,
        need: Access,
        side: Side,
    ) -> Result<Region, AccessFault>;
    /// Puts the payload of a packet to a place that [`Env::resolve`] gave just before.
    fn place(&mut self, to: Region, payload: &[u8]);
    /// A work request ended. Everything placed before belongs to it or to earlier ones.
    fn complete(&mut self, queue: Queue, wc: Wc);
}

/// Which of a region's two keys is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// An lkey, from a work request of this host.
    Local,
    /// An rkey, from the peer.
    Remote,
}

/// Registered bytes, as the adapter names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Which region.
    pub index: u32,
    /// Where in it.
    pub offset: u64,
}

/// The memory is not there, or not for this use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFault;

/// Which work queue a completion is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Posted by [`Qp::post_send`](super::Qp::post_send).
    Send,
    /// Posted by [`Qp::post_recv`](super::Qp::post_recv).
    Recv,
}

/// A packet to be sent, and how many [follow](Transmit::advance) it. Padding
/// ([`pad_count`](crate::roce::Bth::pad_count) bytes) and ICRC are the adapter's to add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Transmit {
    /// Complete, for the peer's queue pair.
    pub headers: Headers,
    /// What follows them.
    pub payload: Payload,
    /// Packets behind this one that are part of the same message and as long.
    pub following: u32,
}

impl Transmit {
    /// Becomes the packet that follows; `false` if none does. It differs in its PSN and in where its
    /// payload comes from and, if each packet says it, goes to.
    #[inline]
    pub fn advance(&mut self) -> bool {
        let Some(following) = self.following.checked_sub(1) else { return false };
        self.following = following;
        let len = self.payload.len();
        let Headers { bth, reth, .. } = &mut self.headers;
        bth.psn = bth.psn.add(1);
        if let Some(reth) = reth {
            reth.va = reth.va.wrapping_add(len.into());
        }
        match &mut self.payload {
            Payload::None => {}
            Payload::Inline { offset, .. } => *offset += len,
            Payload::Memory { region, .. } => region.offset += u64::from(len),
        }
        true
    }
}

/// Where the payload of a packet lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// There is none.
    #[default]
    None,
    /// In what the adapter copied when a work request was posted with
    /// [`INLINE`](crate::nic::SendFlags::INLINE).
    Inline {
        /// The answer of [`Qp::post_send`](super::Qp::post_send).
        slot: u16,
        /// First byte.
        offset: u32,
        /// Bytes.
        len: u32,
    },
    /// In registered memory.
    Memory {
        /// First byte.
        region: Region,
        /// Bytes.
        len: u32,
    },
}

impl Payload {
    /// Bytes.
    pub const fn len(&self) -> u32 {
        match *self {
            Payload::None => 0,
            Payload::Inline { len, .. } | Payload::Memory { len, .. } => len,
        }
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
