//! A rank's ends of links.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use invar_core::math::Protocol;
use invar_core::proxy::{Appended, ConnectionId, Op, Pattern, PostError, Poster};
use invar_linux::proxy::{Driver, ProgressFailure, SharedOps};

use super::ring::{Ring, SLOTS};
use crate::Error;
use crate::error::Kind;

/// The sending end of a link to another rank: slots that the rank fills and the proxy sends.
pub struct NetSend(End);

/// The receiving end of a link from another rank: slots that the proxy fills and the rank uses.
pub struct NetRecv(End);

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
        NetSend(End::new(ring, post, way, Pattern::Send))
    }

    /// Has the proxy send the next `steps` slots that will be published. The other end is told of
    /// the same number, and each slot that is published must have been told of.
    pub fn start(&mut self, steps: u64) -> Result<(), Error> {
        self.0.start(steps)
    }

    /// The memory of the next free slot, for `len` bytes; `None`: there is none yet. Asked again it
    /// gives the same.
    ///
    /// Until it is published nobody else accesses it. It is there as long as this end.
    ///
    /// # Errors
    /// More bytes than a slot has.
    #[inline]
    pub fn free(&mut self, len: usize) -> Result<Option<NonNull<u8>>, Error> {
        let End { ring, next, .. } = &self.0;
        if len > ring.slot_bytes() {
            let text = format!("{len} bytes for a slot of {}", ring.slot_bytes());
            return Err(Kind::Usage(text).into());
        }
        Ok((*next < ring.used() + SLOTS as u64).then(|| ring.slot(*next)))
    }

    /// Gives the slot that [`NetSend::free`] gave to the network, with as many bytes, which are cut
    /// to those of a slot.
    #[inline]
    pub fn publish(&mut self, len: usize) {
        let End { ring, next, .. } = &mut self.0;
        if *next < ring.used() + SLOTS as u64 {
            ring.fill(*next, len.min(ring.slot_bytes()) as u32);
            *next += 1;
        }
    }

    /// Moves what can be moved, on any link of this rank. Says whether all that was published
    /// gets to the peer without more calls.
    #[inline]
    pub fn progress(&mut self) -> Result<bool, Error> {
        self.0.post.round()?;
        Ok(self.0.ring.settled() == self.0.next)
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.0.ring.slot_bytes()
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.0.op.peer
    }
}

impl NetRecv {
    pub(super) fn new(ring: Arc<Ring>, post: Arc<Posting>, way: Way) -> Self {
        NetRecv(End::new(ring, post, way, Pattern::Recv))
    }

    /// Has the proxy receive the next `steps` slots. The other end is told of the same number.
    pub fn start(&mut self, steps: u64) -> Result<(), Error> {
        self.0.start(steps)
    }

    /// The memory of the next full slot and how many bytes are in it; `None`: it is not there yet.
    /// Asked again it gives the same.
    ///
    /// Until it is released nobody else accesses it, but a peer that breaks the protocol. It is
    /// there as long as this end.
    #[inline]
    pub fn full(&mut self) -> Option<(NonNull<u8>, usize)> {
        let End { ring, next, .. } = &self.0;
        ring.filled(*next).map(|len| (ring.slot(*next), len as usize))
    }

    /// Gives the slot that [`NetRecv::full`] gave back to the network.
    #[inline]
    pub fn release(&mut self) {
        let End { ring, next, .. } = &mut self.0;
        if ring.filled(*next).is_some() {
            ring.give_back(*next);
            *next += 1;
        }
    }

    /// Moves what can be moved, on any link of this rank.
    #[inline]
    pub fn progress(&mut self) -> Result<(), Error> {
        self.0.post.round()
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.0.ring.slot_bytes()
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.0.op.peer
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
