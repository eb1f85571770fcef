//! A rank's ends of links.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use invar_core::math::Protocol;
use invar_core::proxy::{Appended, ConnectionId, Op, Pattern, PostError, Poster};
use invar_linux::proxy::{Driver, ProgressFailure, SharedOps};

use super::direct::{DirectRecv, DirectSend};
use super::ring::{Ring, SLOTS};
use crate::Error;
use crate::error::Kind;

/// The sending end of a link to another rank: slots that the rank fills.
pub struct NetSend(Sending);

/// The receiving end of a link from another rank: slots that the rank uses.
pub struct NetRecv(Receiving);

/// Who sends.
enum Sending {
    Proxy(End),
    Rank(Box<DirectSend>),
}

/// Who receives.
enum Receiving {
    Proxy(End),
    Rank(Box<DirectRecv>),
}

struct End {
    ring: Arc<Ring>,
    post: Arc<Posting>,
    /// An operation over this connection, without its count and steps.
    op: Op,
    /// The step that is next to be filled or used.
    next: u64,
}

/// By what the links of a rank post operations.
pub(super) struct Posting {
    pub(super) ops: SharedOps,
    pub(super) poster: Mutex<Poster>,
    pub(super) driver: Driver<Error>,
    /// How long to wait for the proxy to take operations.
    pub(super) timeout: Duration,
}

/// Which link: its connection, the rank at the other end, and the channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) connection: ConnectionId,
    pub(super) peer: u32,
    pub(super) channel: u16,
}

impl NetSend {
    pub(super) fn new(ring: Arc<Ring>, post: Arc<Posting>, way: Way) -> Self {
        NetSend(Sending::Proxy(End::new(ring, post, way, Pattern::Send)))
    }

    pub(super) fn direct(link: DirectSend) -> Self {
        NetSend(Sending::Rank(Box::new(link)))
    }

    /// Has the proxy send the next `steps` slots that will be published. The other end is told of
    /// the same number, and each slot that is published must have been told of.
    pub fn start(&mut self, steps: u64) -> Result<(), Error> {
        match &mut self.0 {
            Sending::Proxy(end) => end.start(steps),
            Sending::Rank(_) => Ok(()),
        }
    }

    /// The memory of the next free slot, for `len` bytes; `None`: there is none yet. Asked again it
    /// gives the same.
    ///
    /// Until it is published nobody else accesses it. It is there as long as this end.
    ///
    /// # Errors
    /// More bytes than a slot has; or what ended the link.
    #[inline]
    pub fn free(&mut self, len: usize) -> Result<Option<NonNull<u8>>, Error> {
        if len > self.slot_bytes() {
            let text = format!("{len} bytes for a slot of {}", self.slot_bytes());
            return Err(Kind::Usage(text).into());
        }
        match &mut self.0 {
            Sending::Proxy(End { ring, next, .. }) => {
                Ok((*next < ring.used() + SLOTS as u64).then(|| ring.slot(*next)))
            }
            Sending::Rank(link) => link.free(len),
        }
    }

    /// Gives the slot that [`NetSend::free`] gave to the network, with as many bytes, which are cut
    /// to those of a slot.
    #[inline]
    pub fn publish(&mut self, len: usize) -> Result<(), Error> {
        match &mut self.0 {
            Sending::Proxy(End { ring, next, .. }) => {
                if *next < ring.used() + SLOTS as u64 {
                    ring.fill(*next, len.min(ring.slot_bytes()) as u32);
                    *next += 1;
                }
                Ok(())
            }
            Sending::Rank(link) => link.publish(len),
        }
    }

    /// Whether [`NetSend::publish_from`] spares a copy.
    #[inline]
    pub(in crate::communicator) fn takes_memory(&self) -> bool {
        matches!(&self.0, Sending::Rank(link) if link.takes_memory())
    }

    /// Publishes `len` bytes that are not in a slot, in place of the one that [`NetSend::free`] gave
    /// for as many, where the link [takes memory](Self::takes_memory).
    ///
    /// # Safety
    ///
    /// The bytes are valid for reads, and not written by anyone, until [`NetSend::progress`] has said
    /// that all has left or the peer has received them, or this end is dropped.
    #[inline]
    pub(in crate::communicator) unsafe fn publish_from(
        &mut self,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<(), Error> {
        match &mut self.0 {
            Sending::Proxy(_) => Err(Kind::Usage("the proxy sends from slots".to_owned()).into()),
            // SAFETY: the caller's promise.
            Sending::Rank(link) => unsafe { link.publish_from(start, len) },
        }
    }

    /// Moves what can be moved: by the proxy on any link of this rank, else on this one. Says
    /// whether all that was published gets to the peer without more calls.
    #[inline]
    pub fn progress(&mut self) -> Result<bool, Error> {
        match &mut self.0 {
            Sending::Proxy(end) => {
                end.post.round()?;
                Ok(end.ring.settled() == end.next)
            }
            Sending::Rank(link) => link.progress(),
        }
    }

    /// Moves the same. Says whether the peer has all that was published, or, over TCP, the kernel has:
    /// then this end may go.
    ///
    /// # Errors
    /// What ended the link.
    pub fn has_delivered(&mut self) -> Result<bool, Error> {
        match &mut self.0 {
            Sending::Proxy(end) => {
                end.post.round()?;
                Ok(end.ring.used() == end.next)
            }
            Sending::Rank(link) => link.has_delivered(),
        }
    }

    /// Whether the proxy moves it, and with it all others.
    #[inline]
    pub(in crate::communicator) fn has_proxy(&self) -> bool {
        matches!(self.0, Sending::Proxy(_))
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        match &self.0 {
            Sending::Proxy(end) => end.ring.slot_bytes(),
            Sending::Rank(link) => link.slot_bytes(),
        }
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        match &self.0 {
            Sending::Proxy(end) => end.op.peer,
            Sending::Rank(link) => link.peer(),
        }
    }
}

impl NetRecv {
    pub(super) fn new(ring: Arc<Ring>, post: Arc<Posting>, way: Way) -> Self {
        NetRecv(Receiving::Proxy(End::new(ring, post, way, Pattern::Recv)))
    }

    pub(super) fn direct(link: DirectRecv) -> Self {
        NetRecv(Receiving::Rank(Box::new(link)))
    }

    /// Has the proxy receive the next `steps` slots. The other end is told of the same number.
    pub fn start(&mut self, steps: u64) -> Result<(), Error> {
        match &mut self.0 {
            Receiving::Proxy(end) => end.start(steps),
            Receiving::Rank(_) => Ok(()),
        }
    }

    /// The memory of the next full slot and how many bytes are in it; `None`: it is not there yet.
    /// Asked again it gives the same.
    ///
    /// Until it is released nobody else accesses it, but a peer that breaks the protocol. It is
    /// there as long as this end.
    ///
    /// # Errors
    /// What ended the link.
    #[inline]
    pub fn full(&mut self) -> Result<Option<(NonNull<u8>, usize)>, Error> {
        match &mut self.0 {
            Receiving::Proxy(End { ring, next, .. }) => {
                Ok(ring.filled(*next).map(|len| (ring.slot(*next), len as usize)))
            }
            Receiving::Rank(link) => link.full(),
        }
    }

    /// As [`NetRecv::full`], of a message of at most `len` bytes, which may come right to `to`: look
    /// where it is. Asked again it must be with the same.
    ///
    /// # Errors
    /// As there; and a message of more bytes.
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
        match &mut self.0 {
            Receiving::Proxy(_) => self.full(),
            // SAFETY: the caller's promise.
            Receiving::Rank(link) => unsafe { link.full_at(to, len) },
        }
    }

    /// Gives the slot that [`NetRecv::full`] gave back to the network.
    #[inline]
    pub fn release(&mut self) {
        match &mut self.0 {
            Receiving::Proxy(End { ring, next, .. }) => {
                if ring.filled(*next).is_some() {
                    ring.give_back(*next);
                    *next += 1;
                }
            }
            Receiving::Rank(link) => link.release(),
        }
    }

    /// Moves what can be moved: by the proxy on any link of this rank, else on this one.
    #[inline]
    pub fn progress(&mut self) -> Result<(), Error> {
        match &mut self.0 {
            Receiving::Proxy(end) => end.post.round(),
            Receiving::Rank(link) => link.full().map(drop),
        }
    }

    /// Whether the proxy moves it, and with it all others.
    #[inline]
    pub(in crate::communicator) fn has_proxy(&self) -> bool {
        matches!(self.0, Receiving::Proxy(_))
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        match &self.0 {
            Receiving::Proxy(end) => end.ring.slot_bytes(),
            Receiving::Rank(link) => link.slot_bytes(),
        }
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        match &self.0 {
            Receiving::Proxy(end) => end.op.peer,
            Receiving::Rank(link) => link.peer(),
        }
    }
}

impl End {
    fn new(ring: Arc<Ring>, post: Arc<Posting>, way: Way, pattern: Pattern) -> Self {
        let slot_bytes = ring.slot_bytes() as u32;
        let op = Op {
            op_count: 0,
            nsteps: 0,
            slice_bytes: slot_bytes.into(),
            connection: way.connection,
            peer: way.peer,
            chunk_bytes: slot_bytes,
            channel: way.channel,
            slice_steps: 1,
            chunk_steps: 1,
            pattern,
            protocol: Protocol::Simple,
            dtype: 0,
            red_op: 0,
        };
        End { ring, post, op, next: 0 }
    }

    fn start(&mut self, steps: u64) -> Result<(), Error> {
        if steps == 0 {
            return Ok(());
        }
        self.op.op_count += 1;
        self.post.post(&Op { nsteps: steps, ..self.op })
    }
}

impl Posting {
    /// Posts an operation. Whoever moves operations looks for it in its next round.
    fn post(&self, op: &Op) -> Result<(), Error> {
        let refused = |error: PostError| match error {
            // The reason why it ended is to be told, where there is one.
            PostError::Closed { .. } if let Some(failure) = self.driver.failure() => {
                failed(&failure)
            }
            error => Kind::Proxy(error.to_string()).into(),
        };
        let pool = self.ops.pool();
        let mut since = None;
        loop {
            let mut poster = self.poster.lock().unwrap_or_else(PoisonError::into_inner);
            if poster.append(pool, op).map_err(refused)? != Appended::NoRoom {
                poster.post(pool).map_err(refused)?;
                break;
            }
            drop(poster);
            self.round()?;
            if since.get_or_insert_with(Instant::now).elapsed() >= self.timeout {
                let what = "a place for an operation of the proxy's";
                return Err(Kind::TimedOut { what, within: self.timeout }.into());
            }
        }
        self.driver.wake();
        Ok(())
    }

    #[inline]
    fn round(&self) -> Result<(), Error> {
        match self.driver.round() {
            Ok(_) => Ok(()),
            Err(failure) => Err(failed(&failure)),
        }
    }
}

/// What ended a proxy, as an error of the rank that it was about.
#[cold]
pub(super) fn failed(failure: &ProgressFailure<Error>) -> Error {
    match failure {
        ProgressFailure::Transport(error) => {
            Kind::Rank { rank: error.step.peer, text: error.to_string() }.into()
        }
        failure => Kind::Proxy(failure.to_string()).into(),
    }
}
