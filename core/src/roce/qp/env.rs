//! The interface between a queue pair and its host.

use crate::nic::{Access, Atomic, RecvWr, Wc, WcStatus};
use crate::roce::{Headers, NakCode};

/// The services that a host offers to its queue pairs.
pub trait Env {
    /// Finds `len` bytes at `addr` in a registered region, where `len` is not 0. The queue pair calls
    /// this for each packet, or for each run of packets sent together. So the end of a region takes
    /// effect at once. The call should take constant time.
    ///
    /// # Errors
    /// The key does not exist, some bytes lie outside the region, or the region does not permit
    /// `need`.
    fn resolve(
        &mut self,
        key: u32,
        addr: u64,
        len: u32,
        need: Access,
        side: QpSide,
    ) -> Result<Region, AccessFault>;
    /// Copies the payload of a packet to a place that [`Env::resolve`] has just returned.
    fn place(&mut self, to: Region, payload: &[u8]);
    /// Returns the payload of the first of `packets` packets, each with `len` bytes, from `offset` on in
    /// the buffers that the adapter keeps for a send ([`Qp::post_send_list`](super::Qp::post_send_list)).
    /// The result is [`Payload::List`], or [`Payload::Memory`] if one buffer has all these bytes. `len`
    /// is not 0.
    ///
    /// # Errors
    /// Some bytes are not registered.
    fn gather(
        &mut self,
        slot: u16,
        offset: u32,
        len: u32,
        packets: u32,
    ) -> Result<Payload, AccessFault> {
        let _ = (slot, offset, len, packets);
        Err(AccessFault)
    }
    /// Copies the payload of a packet to `offset` in the buffers that the adapter keeps for a work
    /// request with several: a receive, or a READ on the send queue. `payload` is not empty.
    ///
    /// # Errors
    /// Some bytes are not registered for local writes. Then none may be copied.
    fn scatter(
        &mut self,
        queue: Queue,
        slot: u16,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), AccessFault> {
        let _ = (queue, slot, offset, payload);
        Err(AccessFault)
    }
    /// Returns the operation that the adapter keeps for an atomic of the send queue
    /// ([`Qp::post_atomic`](super::Qp::post_atomic)). `None` fails the request.
    fn atomic(&mut self, slot: u16) -> Option<Atomic> {
        let _ = slot;
        None
    }
    /// Carries out an atomic operation on 8 bytes that [`Env::resolve`] has just returned, and returns
    /// the word before the operation.
    ///
    /// # Errors
    /// The word is not aligned in memory.
    fn update(&mut self, at: Region, atomic: Atomic) -> Result<u64, AccessFault> {
        let _ = (at, atomic);
        Err(AccessFault)
    }
    /// Carries out the operation that the adapter keeps for a local operation of the send queue
    /// ([`Qp::post_local`](super::Qp::post_local)).
    ///
    /// # Errors
    /// The status with which the request completes. The queue pair then fails.
    fn local(&mut self, slot: u16) -> Result<(), WcStatus> {
        let _ = slot;
        Err(WcStatus::LOC_QP_OP_ERR)
    }
    /// Invalidates a key because a SEND of the peer asks for it.
    ///
    /// # Errors
    /// The peer may not invalidate this key.
    fn invalidate(&mut self, key: u32) -> Result<(), AccessFault> {
        let _ = key;
        Err(AccessFault)
    }
    /// Returns the receiver that the adapter keeps for a datagram of the send queue. `None` fails the
    /// request.
    fn destination(&mut self, slot: u16) -> Option<Destination> {
        let _ = slot;
        None
    }
    /// Takes the oldest receive of a shared receive queue. The queue pair calls this if a message of the
    /// peer needs a receive and the queue pair has none of its own. The second value says whether the
    /// receive has several buffers. Then the length of its one buffer is that of all, and the adapter
    /// keeps the list for `slot` ([`Env::scatter`]).
    fn take_receive(&mut self, slot: u16) -> Option<(RecvWr, bool)> {
        let _ = slot;
        None
    }
    /// Reports that the responder refused a request of the peer, which ends the connection.
    fn refused(&mut self, code: NakCode) {
        let _ = code;
    }
    /// Reports that a work request ended. Everything placed before belongs to this work request or to
    /// earlier ones. `solicited` says that the peer asked for an event
    /// ([`SOLICITED`](crate::nic::SendFlags::SOLICITED)).
    fn complete(&mut self, queue: Queue, wc: Wc, solicited: bool);
}

/// The kind of key that a call uses. Each region has an lkey and an rkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpSide {
    /// The lkey, taken from a send of this host.
    Local,
    /// The lkey, taken from a receive of this host. The receive may come from a shared receive queue, which can
    /// have another protection domain than the queue pair.
    Receive,
    /// The rkey, received from the peer.
    Remote,
}

/// The queue pair to which a datagram goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// Number of the queue pair, 24 bits.
    pub qp_num: u32,
    /// Q_Key of the queue pair. With the top bit set, the sender's own Q_Key stands for it.
    pub qkey: u32,
}

/// Registered bytes, named as the adapter wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Number of the region.
    pub index: u32,
    /// Offset of the first byte in the region.
    pub offset: u64,
}

/// The memory does not exist, or its permissions forbid this use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFault;

/// Work queue of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The send queue, filled by [`Qp::post_send`](super::Qp::post_send).
    Send,
    /// The receive queue, filled by [`Qp::post_recv`](super::Qp::post_recv).
    Recv,
}

/// A packet to send, and the number of packets that [follow](Transmit::advance) it. The adapter adds
/// the padding ([`pad_count`](crate::roce::Bth::pad_count) bytes) and the ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Transmit {
    /// Complete headers for the peer's queue pair.
    pub headers: Headers,
    /// Payload behind the headers.
    pub payload: Payload,
    /// Number of packets behind this one that belong to the same message and have the same length.
    pub following: u32,
    /// Slot of a datagram's work request, for which the adapter keeps the receiver's address.
    pub slot: u16,
}

impl Transmit {
    /// Turns this packet into the one that follows it, or returns `false` if none follows. The next
    /// packet has another PSN and another payload position. If each packet names its remote memory,
    /// the remote address moves too.
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
            Payload::Inline { offset, .. } | Payload::List { offset, .. } => *offset += len,
            Payload::Memory { region, .. } => region.offset += u64::from(len),
        }
        true
    }
}

/// Position of a packet's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// The packet has no payload.
    #[default]
    None,
    /// Payload that the adapter copied when a work request was posted with
    /// [`INLINE`](crate::nic::SendFlags::INLINE).
    Inline {
        /// Slot that [`Qp::post_send`](super::Qp::post_send) returned.
        slot: u16,
        /// Offset of the first byte.
        offset: u32,
        /// Length in bytes.
        len: u32,
    },
    /// Payload in several buffers, which the adapter keeps for a work request of the send queue.
    List {
        /// Slot that [`Qp::post_send_list`](super::Qp::post_send_list) returned.
        slot: u16,
        /// Offset of the first byte from the start of the first buffer.
        offset: u32,
        /// Length in bytes.
        len: u32,
    },
    /// Payload in registered memory.
    Memory {
        /// Position of the first byte.
        region: Region,
        /// Length in bytes.
        len: u32,
    },
}

impl Payload {
    /// Length in bytes.
    pub const fn len(&self) -> u32 {
        match *self {
            Payload::None => 0,
            Payload::Inline { len, .. }
            | Payload::List { len, .. }
            | Payload::Memory { len, .. } => len,
        }
    }

    /// Returns whether the payload has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
