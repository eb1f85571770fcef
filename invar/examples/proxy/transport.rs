//! The proxy's transport: each connection is an end over a device and a ring that a rank shares
//! (`net.cc sendProxyProgress`, `recvProxyProgress`).

use std::collections::HashMap;
use std::sync::mpsc::Receiver;

use invar::raw::{Keys, RecvBuf, RecvEnd, Request, SendBuf, SendEnd};
use invar::{Device, Error};
use invar_core::math::STEPS;
use invar_core::proxy::{ConnectionId, OpStage, ProxySlice, Transport};

use crate::ring::{STEP_BYTES, SharedRing};

/// The messages of a connection need no telling apart.
const TAG: u32 = 0;

/// A connection: it is made by the service, and moved by the engine.
pub(crate) struct ProxyWire {
    // Ends before the registration, and that before the memory.
    end: End,
    requests: [Option<Request>; STEPS as usize],
    keys: Keys,
    device: Device,
    ring: SharedRing,
}

/// Which way it goes.
pub(crate) enum End {
    Send(Box<dyn SendEnd>),
    Recv(Box<dyn RecvEnd>),
    /// It is gone.
    Closed,
}

impl ProxyWire {
    pub(crate) fn new(end: End, device: Device, ring: SharedRing) -> Result<Self, Error> {
        let (start, len) = ring.slots();
        // SAFETY: the ring stays mapped until `drop` has deregistered it. Kernel and network take turns
        // at each slot, as the flags say.
        let keys = unsafe { invar::raw::register(&device, start, len) }?;
        Ok(ProxyWire { end, requests: Default::default(), keys, device, ring })
    }

    fn advance(&mut self, stage: OpStage, step: &ProxySlice) -> Result<bool, Error> {
        let ProxyWire { end, requests, keys, ring, .. } = self;
        let request = &mut requests[usize::from(step.slot)];
        let (first, steps) = (step.step, u64::from(step.steps));
        let addr = ring.slot(first).as_ptr().expose_provenance() as u64;
        // The other process may claim more bytes than the slice has.
        let most = (step.slice_bytes as usize).min(usize::from(step.steps) * STEP_BYTES) as u32;
        match (end, stage) {
            (End::Send(end), OpStage::Transmit) => {
                if ring.tail() < first + steps {
                    return Ok(false);
                }
                let buf = SendBuf { addr, len: ring.size(first).min(most), lkey: keys.lkey };
                // SAFETY: the ring is registered, and the kernel leaves what it has filled alone.
                *request = unsafe { end.isend(&buf, TAG) }.map_err(|error| end.failed(error))?;
                Ok(request.is_some())
            }
            (End::Send(end), OpStage::Complete) => {
                let Some(sent) = request.as_ref() else { return Ok(false) };
                let is_sent = end.test(sent).map_err(|error| end.failed(error))?.is_some();
                if is_sent {
                    *request = None;
                    ring.empty(first + steps);
                }
                Ok(is_sent)
            }
            (End::Recv(end), OpStage::Post) => {
                let buf = RecvBuf { addr, len: most, tag: TAG, rkey: keys.rkey };
                // SAFETY: the ring is registered, and the kernel leaves what it has emptied alone.
                let posted = unsafe { end.irecv(&[buf]) };
                *request = posted.map_err(|error| end.failed(error))?;
                Ok(request.is_some())
            }
            (End::Recv(end), OpStage::Receive) => {
                let Some(posted) = request.as_ref() else { return Ok(false) };
                let mut size = 0;
                // SAFETY: the receive has one buffer.
                let received = unsafe { end.test(posted, &mut size) };
                if received.map_err(|error| end.failed(error))?.is_none() {
                    return Ok(false);
                }
                *request = None;
                ring.fill(first, steps, size);
                Ok(true)
            }
            // The slot is the network's until the kernel has emptied it.
            (End::Recv(_), OpStage::Complete) => Ok(ring.head() >= first + steps),
            // The ring is in host memory; the kernel sees by the flags what it may fill or empty.
            _ => Ok(true),
        }
    }
}

impl Drop for ProxyWire {
    fn drop(&mut self) {
        self.end = End::Closed;
        if let Err(error) = invar::raw::deregister(&self.device, self.keys) {
            eprintln!("deregistering a ring: {error}");
        }
    }
}

/// All connections.
pub(crate) struct Wires {
    pub(crate) made: Receiver<(ConnectionId, ProxyWire)>,
    pub(crate) wires: HashMap<ConnectionId, ProxyWire>,
}

impl Transport for Wires {
    type Error = Error;

    fn advance(&mut self, stage: OpStage, steps: &[ProxySlice]) -> Result<bool, Error> {
        // Each receive is a request of its own, since connections share no buffers.
        let [step] = steps else { return Ok(false) };
        self.wires.extend(self.made.try_iter());
        match self.wires.get_mut(&step.connection) {
            Some(wire) => wire.advance(stage, step),
            None => Ok(false),
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        self.wires.extend(self.made.try_iter());
        self.wires.remove(&connection);
    }
}
