//! Ends of connections, as the proxy's engine moves them (`net.cc sendProxyProgress`,
//! `recvProxyProgress`).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar_core::comm::Request;
use invar_core::proxy::{ConnectionId, Stage, Step, Transport};

use super::ring::{Ring, SLOTS};
use super::standing::Standings;
use crate::error::Kind;
use crate::raw::{RecvBuf, RecvEnd, SendBuf, SendEnd};
use crate::{Error, MemoryRegion};

/// The messages of a link need no telling apart.
pub(super) const TAG: u32 = 0;
/// Free slots that the sender is told of at once: each message about it costs as much as a short
/// one with data.
const CREDITS: u64 = SLOTS as u64 / 2;
/// The same where messages are short. The sender has two left, for the time that they take.
const CREDITS_SHORT: u64 = SLOTS as u64 - 2;
/// Up to so many bytes a message takes no longer than a call or two around it.
pub(super) const SHORT_BYTES: usize = 32 << 10;

/// The ends of connections, by number.
pub(super) struct Wires {
    wires: Vec<Option<Wire>>,
    arrivals: Arrivals,
    /// Of the rank's links that have no proxy.
    standings: Standings,
}

/// Ends that are connected, on their way to who moves them; clones are of the same.
#[derive(Clone, Default)]
pub(super) struct Arrivals(Arc<Mutex<Vec<(ConnectionId, Wire)>>>);

impl Arrivals {
    pub(super) fn add(&self, id: ConnectionId, wire: Wire) {
        self.lock().push((id, wire));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(ConnectionId, Wire)>> {
        // Whoever panicked, a list of ends is one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An end of a connection, and the ring that it works on.
pub(super) enum Wire {
    Send(SendWire),
    Recv(RecvWire),
}

impl Wire {
    pub(super) fn ring(&self) -> Arc<Ring> {
        match self {
            Wire::Send(wire) => Arc::clone(&wire.ring),
            Wire::Recv(wire) => Arc::clone(&wire.ring),
        }
    }

    /// The end for messages back, where there can be one; the peer takes its own too.
    pub(super) fn way_back(&mut self) -> Result<Option<WayBack>, Error> {
        Ok(match self {
            Wire::Send(wire) => wire.end.way_back()?.map(WayBack::Recv),
            Wire::Recv(wire) => wire.end.way_back()?.map(WayBack::Send),
        })
    }
}

/// Sends what the rank fills.
pub(super) struct SendWire {
    // Ends before the ring's memory.
    end: Box<dyn SendEnd>,
    requests: [Option<Request>; SLOTS],
    needs_calls: bool,
    slots: Slots,
    ring: Arc<Ring>,
}

/// Receives into what the rank gives back.
pub(super) struct RecvWire {
    // Ends before the ring's memory.
    end: Box<dyn RecvEnd>,
    requests: [Option<Request>; SLOTS],
    /// Steps for which a receive is posted, or was.
    posted: u64,
    /// Free slots that the sender is told of at once.
    credits: u64,
    needs_calls: bool,
    slots: Slots,
    ring: Arc<Ring>,
}

/// An end for messages back over a connection that a [`Wire`] has.
pub(super) enum WayBack {
    Send(Box<dyn SendEnd>),
    Recv(Box<dyn RecvEnd>),
}

impl WayBack {
    pub(super) fn wire(self, ring: Arc<Ring>) -> Result<Wire, Error> {
        Ok(match self {
            WayBack::Send(end) => Wire::Send(SendWire::new(end, ring)?),
            WayBack::Recv(end) => Wire::Recv(RecvWire::new(end, ring)?),
        })
    }
}

/// How messages name the slots of a ring.
#[derive(Clone, Copy)]
struct Slots {
    addr: u64,
    bytes: u32,
    lkey: u32,
    rkey: u32,
}

impl Slots {
    fn new(ring: &Ring) -> Result<Self, Error> {
        let region: &MemoryRegion = ring.region();
        let (addr, bytes) = region.locate(region.device(), &(0..ring.slot_bytes()))?;
        Ok(Slots { addr, bytes, lkey: region.lkey(), rkey: region.rkey() })
    }

    fn addr(&self, step: u64) -> u64 {
        self.addr + step % SLOTS as u64 * u64::from(self.bytes)
    }
}

fn slot(step: u64) -> usize {
    (step % SLOTS as u64) as usize
}

impl SendWire {
    pub(super) fn new(end: Box<dyn SendEnd>, ring: Arc<Ring>) -> Result<Self, Error> {
        let needs_calls = end.needs_calls();
        let (requests, slots) = (Default::default(), Slots::new(&ring)?);
        Ok(SendWire { end, requests, needs_calls, slots, ring })
    }

    pub(super) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Whether bytes move only in calls of ours, and from any memory.
    pub(super) fn needs_calls(&self) -> bool {
        self.needs_calls
    }

    /// Starts to send the slot of a step; whether it could.
    fn start(&mut self, step: u64, len: u32) -> Result<bool, Error> {
        // SAFETY: the slot is in memory of the ring, which stays registered as long as this end
        // is there, and the rank does not touch a slot that it has filled until it is used.
        unsafe { self.start_from(step, self.slots.addr(step), len) }
    }

    /// The same of bytes that are anywhere in the ring, or, where bytes [move in
    /// calls](Self::needs_calls), anywhere.
    ///
    /// # Safety
    ///
    /// They stay, not written by anyone, until the step is sent or this end is dropped.
    pub(super) unsafe fn start_from(
        &mut self,
        step: u64,
        addr: u64,
        len: u32,
    ) -> Result<bool, Error> {
        let buf = SendBuf { addr, len, lkey: self.slots.lkey };
        // SAFETY: registered, or of TCP, which looks at no keys; and the caller's promise.
        let request = unsafe { self.end.isend(&buf, TAG) };
        let request = request.map_err(|error| self.end.failed(error))?;
        let started = request.is_some();
        self.requests[slot(step)] = request;
        Ok(started)
    }

    /// Whether the slot of a step is sent.
    pub(super) fn is_sent(&mut self, step: u64) -> Result<bool, Error> {
        let Some(request) = &self.requests[slot(step)] else { return Ok(true) };
        let sent = self.end.test(request).map_err(|error| self.end.failed(error))?.is_some();
        if sent {
            self.requests[slot(step)] = None;
        }
        Ok(sent)
    }

    fn advance(&mut self, stage: Stage, step: u64) -> Result<bool, Error> {
        match stage {
            Stage::Transmit => {
                let Some(len) = self.ring.filled(step) else { return Ok(false) };
                let started = self.start(step, len)?;
                if started && !self.needs_calls {
                    self.ring.settle(step);
                }
                Ok(started)
            }
            Stage::Complete => {
                let sent = self.is_sent(step)?;
                if sent {
                    self.ring.settle(step);
                    self.ring.give_back(step);
                }
                Ok(sent)
            }
            // The rank sees by itself which slots are free.
            _ => Ok(true),
        }
    }
}

impl RecvWire {
    pub(super) fn new(end: Box<dyn RecvEnd>, ring: Arc<Ring>) -> Result<Self, Error> {
        let needs_calls = end.needs_calls();
        let (requests, slots) = (Default::default(), Slots::new(&ring)?);
        Ok(RecvWire { end, requests, posted: 0, credits: CREDITS, needs_calls, slots, ring })
    }

    /// Posts receives for all slots: what comes need not wait for an operation.
    pub(super) fn open(&mut self) -> Result<(), Error> {
        self.post(SLOTS as u64)
    }

    pub(super) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Whether bytes move only in calls of ours, and to any memory.
    pub(super) fn needs_calls(&self) -> bool {
        self.needs_calls
    }

    /// Steps for which a receive is posted, or was.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    /// Posts receives for the slots that are free when `used` steps are, if there are enough.
    pub(super) fn post_free(&mut self, used: u64) -> Result<(), Error> {
        let free = used + SLOTS as u64;
        if free - self.posted >= self.credits { self.post(free) } else { Ok(()) }
    }

    /// Posts the receives of steps up to `end`, as far as it can.
    ///
    /// Receives are posted when slots are free, before an operation asks for them: when the sender
    /// has something, it need not wait to hear of a place for it.
    fn post(&mut self, end: u64) -> Result<(), Error> {
        while self.posted < end {
            let (addr, len) = (self.slots.addr(self.posted), self.slots.bytes);
            // SAFETY: the slot is in memory of the ring, which stays registered as long as this
            // end is there, and the rank does not touch a slot that it has given back.
            if !unsafe { self.post_at(addr, len) }? {
                break;
            }
        }
        Ok(())
    }

    /// Posts the receive of the next step to bytes that are anywhere in the ring, or, where bytes
    /// [move in calls](Self::needs_calls), anywhere; whether it could.
    ///
    /// # Safety
    ///
    /// They stay, not accessed by anyone, until the step is received or this end is dropped.
    pub(super) unsafe fn post_at(&mut self, addr: u64, len: u32) -> Result<bool, Error> {
        let buf = RecvBuf { addr, len, tag: TAG, rkey: self.slots.rkey };
        // SAFETY: registered, or of TCP, which looks at no keys; and the caller's promise.
        let request = unsafe { self.end.irecv_ahead(&buf) };
        let request = request.map_err(|error| self.end.failed(error))?;
        let posted = request.is_some();
        if posted {
            self.requests[slot(self.posted)] = request;
            self.posted += 1;
        }
        Ok(posted)
    }

    /// How many bytes have come for a step, if they have; no more than a slot has, or the
    /// connection would have failed.
    pub(super) fn received(&mut self, step: u64) -> Result<Option<u32>, Error> {
        let Some(request) = &self.requests[slot(step)] else { return Ok(None) };
        let mut len = 0;
        // SAFETY: the receive has one buffer.
        let received = unsafe { self.end.test(request, &mut len) };
        if received.map_err(|error| self.end.failed(error))?.is_none() {
            return Ok(None);
        }
        self.requests[slot(step)] = None;
        self.credits = if len as usize > SHORT_BYTES { CREDITS } else { CREDITS_SHORT };
        Ok(Some(len))
    }

    fn advance(&mut self, stage: Stage, step: u64) -> Result<bool, Error> {
        match stage {
            Stage::Post => {
                self.post(step + 1)?;
                Ok(self.posted > step)
            }
            // The length is kept in the ring, whose slot is the network's up to `Transmit`.
            Stage::Receive => match self.received(step)? {
                Some(len) => {
                    self.ring.fill(step, len);
                    Ok(true)
                }
                None => Ok(false),
            },
            // The ring is in host memory, and filled already.
            Stage::Flush | Stage::Transmit => Ok(true),
            Stage::Complete => {
                let used = self.ring.used();
                if used <= step {
                    return Ok(false);
                }
                self.post_free(used)?;
                Ok(true)
            }
        }
    }
}

impl Wires {
    pub(super) fn new(arrivals: Arrivals, standings: Standings) -> Self {
        Wires { wires: Vec::new(), arrivals, standings }
    }

    #[cold]
    fn arrive(&mut self) {
        for (id, wire) in self.arrivals.lock().drain(..) {
            let at = id.0 as usize;
            if self.wires.len() <= at {
                self.wires.resize_with(at + 1, || None);
            }
            self.wires[at] = Some(wire);
        }
    }
}

impl Transport for Wires {
    type Error = Error;

    #[inline]
    fn advance(&mut self, stage: Stage, steps: &[Step]) -> Result<bool, Error> {
        // Each receive is a request of its own.
        let [step] = steps else { return Ok(false) };
        let at = step.connection.0 as usize;
        if !matches!(self.wires.get(at), Some(Some(_))) {
            self.arrive();
        }
        match self.wires.get_mut(at) {
            Some(Some(Wire::Send(wire))) => wire.advance(stage, step.step),
            Some(Some(Wire::Recv(wire))) => wire.advance(stage, step.step),
            _ => {
                let text = format!("connection {} is not connected", step.connection);
                Err(Kind::Proxy(text).into())
            }
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        self.arrive();
        if let Some(wire) = self.wires.get_mut(connection.0 as usize) {
            *wire = None;
        }
    }

    fn dump(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        self.standings.dump(to)
    }
}
