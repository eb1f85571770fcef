//! Setting connections up, in the proxy's service thread (`net.cc sendProxyConnect`,
//! `recvProxyConnect`).

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use invar_core::proxy::{ConnectionId, ConnectionSpec, Direction, Init, Setup, Sharing};
use invar_linux::proxy::ProgressConnections;

use super::greeting::{Address, Incoming, Outgoing};
use super::ring::Ring;
use super::wire::{Arrivals, Wire};
use crate::error::Kind;
use crate::{Device, Error, Settings};

/// The rings of connections that are open, on their way to the rank; clones are of the same.
#[derive(Clone, Default)]
pub(super) struct Rings(Arc<Mutex<HashMap<ConnectionId, Arc<Ring>>>>);

impl Rings {
    pub(super) fn take(&self, id: ConnectionId) -> Option<Arc<Ring>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }

    fn add(&self, id: ConnectionId, ring: Arc<Ring>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id, ring);
    }
}

/// What the connections of a rank are set up with.
pub(super) struct Opener {
    pub(super) devices: Vec<Device>,
    pub(super) settings: Settings,
    pub(super) slot_bytes: usize,
    pub(super) connections: ProgressConnections,
    pub(super) arrivals: Arrivals,
    pub(super) rings: Rings,
    pub(super) places: HashMap<ConnectionId, Place>,
}

/// How far a connection is.
pub(super) struct Place {
    device: Device,
    init: Init,
    stage: Stage,
}

enum Stage {
    New,
    Out(Outgoing),
    In(Incoming),
    Open,
}

impl Setup for Opener {
    type Error = Error;
    type Fd = OwnedFd;

    /// The pool of operations is in this process; no descriptor of it need be given out.
    fn open(&mut self, id: ConnectionId, init: Init) -> Result<Option<OwnedFd>, Error> {
        let device = self.devices.get(init.transport as usize).cloned().ok_or_else(|| {
            let text = format!("device {}: there are {}", init.transport, self.devices.len());
            Kind::Usage(text)
        })?;
        self.places.insert(id, Place { device, init, stage: Stage::New });
        Ok(None)
    }

    fn shared_init(&mut self, _: ConnectionId, _: u32) -> Result<(), Error> {
        Err(Kind::Usage("connections over the network share no buffers".to_owned()).into())
    }

    /// To receive: the response is where.
    fn setup(&mut self, id: ConnectionId, _: &[u8], response: &mut [u8]) -> Result<bool, Error> {
        let Some(place) = self.places.get_mut(&id) else { return Err(not_open()) };
        if place.init.direction == Direction::Recv {
            let incoming = Incoming::listen(&place.device, &self.settings)?;
            let address: &mut [u8; _] = response.try_into().map_err(|_| wrong_length())?;
            *address = incoming.address().0;
            place.stage = Stage::In(incoming);
        }
        Ok(true)
    }

    /// To send: the request is where to.
    fn connect(&mut self, id: ConnectionId, request: &[u8], _: &mut [u8]) -> Result<bool, Error> {
        let Some(place) = self.places.get_mut(&id) else { return Err(not_open()) };
        let Place { device, init, stage } = place;
        if matches!(stage, Stage::New) {
            let address = Address(request.try_into().map_err(|_| wrong_length())?);
            *stage = Stage::Out(Outgoing::start(device, address, &self.settings)?);
        }
        let ring = || Ok(Arc::new(Ring::new(device, self.slot_bytes)?));
        let wire = match stage {
            Stage::Out(outgoing) => outgoing.poll(ring)?.map(Wire::Send),
            Stage::In(incoming) => incoming.poll(ring)?.map(Wire::Recv),
            Stage::New | Stage::Open => None,
        };
        let Some(wire) = wire else { return Ok(false) };
        *stage = Stage::Open;
        self.rings.add(id, wire.ring());
        self.arrivals.add(id, wire);
        self.connections.open(id, own_ring(init.direction, init.local_rank));
        Ok(true)
    }

    fn convert_fd(&mut self, _: ConnectionId, _: u32) -> Result<OwnedFd, Error> {
        Err(Kind::Usage("connections over the network give no descriptors".to_owned()).into())
    }

    fn close(&mut self, id: ConnectionId) {
        let place = self.places.remove(&id);
        if place.is_some_and(|place| matches!(place.stage, Stage::Open)) {
            self.connections.close(id);
        }
    }
}

/// A connection with a ring of its own.
pub(super) fn own_ring(direction: Direction, local_rank: u32) -> ConnectionSpec {
    ConnectionSpec { direction, local_rank, sharing: Sharing::Own, recv_group: None }
}

fn not_open() -> Error {
    Kind::Proxy("a connection that was never opened".to_owned()).into()
}

fn wrong_length() -> Error {
    Kind::Usage("an address of another length".to_owned()).into()
}
