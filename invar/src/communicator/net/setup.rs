//! Setting connections up, in the proxy's service thread (`net.cc sendProxyConnect`,
//! `recvProxyConnect`).

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use invar_core::proxy::{ConnectionId, ConnectionSpec, Direction, Init, Setup, Sharing};
use invar_linux::proxy::ProgressConnections;

use super::greeting::Incoming;
use super::ring::Ring;
use super::wire::{Arrivals, RecvWire, SendWire, WayBack, Wire};
use crate::error::Kind;
use crate::{Connecting, Device, Error, Handle, SendComm, Settings};

/// Connections that are open, on their way to the rank; clones are of the same.
#[derive(Clone, Default)]
pub(super) struct Made(Arc<Mutex<HashMap<ConnectionId, Share>>>);

/// What a rank has of a connection.
pub(super) enum Share {
    /// The ring: the proxy has the end.
    Ring(Arc<Ring>),
    /// All of it.
    Whole(Wire),
}

impl Made {
    pub(super) fn take(&self, id: ConnectionId) -> Option<Share> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }

    fn add(&self, id: ConnectionId, share: Share) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id, share);
    }
}

/// What the connections of a rank are set up with.
pub(super) struct Opener {
    pub(super) devices: Vec<Device>,
    pub(super) settings: Settings,
    pub(super) slot_bytes: usize,
    /// Whether ranks have the ends themselves.
    pub(super) without_proxy: bool,
    pub(super) connections: ProgressConnections,
    pub(super) arrivals: Arrivals,
    pub(super) made: Made,
    pub(super) places: HashMap<ConnectionId, Place>,
}

/// What a rank says to [`Setup::setup`] of a connection that another one shares.
pub(super) const BOTH_WAYS: &[u8] = &[1];

/// How far a connection is.
pub(super) struct Place {
    device: Device,
    init: Init,
    stage: Stage,
    shared: Shared,
}

enum Stage {
    New,
    Out(Connecting),
    In(Box<Incoming>),
    /// Over the sockets of this one, the other way.
    Back(ConnectionId),
    /// Moved by the proxy.
    Open,
    /// The rank's own.
    Given,
}

/// Whether there is a connection back over the same sockets.
enum Shared {
    No,
    /// There will be.
    Wanted,
    /// Its end waits for it.
    Ready(WayBack),
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
        self.places.insert(id, Place { device, init, stage: Stage::New, shared: Shared::No });
        Ok(None)
    }

    fn shared_init(&mut self, _: ConnectionId, _: u32) -> Result<(), Error> {
        Err(Kind::Usage("connections over the network share no buffers".to_owned()).into())
    }

    /// To receive: the response is where. The request is empty or [`BOTH_WAYS`]; or the number of
    /// such a connection that this one shares, and then there is nothing to respond.
    fn setup(
        &mut self,
        id: ConnectionId,
        request: &[u8],
        response: &mut [u8],
    ) -> Result<bool, Error> {
        let Some(place) = self.places.get_mut(&id) else { return Err(not_open()) };
        if let Ok(first) = request.try_into() {
            place.stage = Stage::Back(ConnectionId(u32::from_le_bytes(first)));
            return Ok(true);
        }
        if request == BOTH_WAYS {
            place.shared = Shared::Wanted;
        }
        if place.init.direction == Direction::Recv {
            let incoming = Incoming::listen(&place.device, &self.settings)?;
            let handle: &mut [u8; _] = response.try_into().map_err(|_| wrong_length())?;
            *handle = *incoming.handle().as_bytes();
            place.stage = Stage::In(Box::new(incoming));
        }
        Ok(true)
    }

    /// To send: the request is where to.
    fn connect(&mut self, id: ConnectionId, request: &[u8], _: &mut [u8]) -> Result<bool, Error> {
        let Some(place) = self.places.get_mut(&id) else { return Err(not_open()) };
        let Place { device, stage, shared, .. } = place;
        if let Stage::Back(first) = *stage {
            return self.connect_back(id, first);
        }
        if matches!(stage, Stage::New) {
            let handle = Handle::from_bytes(request.try_into().map_err(|_| wrong_length())?);
            *stage = Stage::Out(SendComm::connect(device, &handle, &self.settings)?);
        }
        let ring = || Ok::<_, Error>(Arc::new(Ring::new(device, self.slot_bytes)?));
        let mut wire = match stage {
            Stage::Out(connecting) => match connecting.poll_raw()? {
                Some(end) => Wire::Send(SendWire::new(end.boxed(), ring()?)?),
                None => return Ok(false),
            },
            Stage::In(incoming) => match incoming.poll()? {
                Some(end) => Wire::Recv(RecvWire::new(end.boxed(), ring()?)?),
                None => return Ok(false),
            },
            Stage::New | Stage::Back(_) | Stage::Open | Stage::Given => return Ok(false),
        };
        if matches!(shared, Shared::Wanted) {
            *shared = Shared::Ready(wire.way_back()?.ok_or_else(one_way)?);
        }
        self.up(id, wire)
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

impl Opener {
    fn connect_back(&mut self, id: ConnectionId, first: ConnectionId) -> Result<bool, Error> {
        let Some(place) = self.places.get_mut(&first) else { return Err(not_open()) };
        let back = match std::mem::replace(&mut place.shared, Shared::No) {
            Shared::Ready(back) => back,
            Shared::Wanted => {
                place.shared = Shared::Wanted;
                return Ok(false);
            }
            Shared::No => return Err(one_way()),
        };
        let ring = Ring::new(&place.device, self.slot_bytes)?;
        self.up(id, back.wire(Arc::new(ring))?)
    }

    /// A connection is there.
    fn up(&mut self, id: ConnectionId, mut wire: Wire) -> Result<bool, Error> {
        let Some(place) = self.places.get_mut(&id) else { return Err(not_open()) };
        if let Wire::Recv(wire) = &mut wire
            && !(self.without_proxy && wire.needs_calls())
        {
            wire.open()?;
        }
        if self.without_proxy {
            place.stage = Stage::Given;
            self.made.add(id, Share::Whole(wire));
            return Ok(true);
        }
        place.stage = Stage::Open;
        let Init { direction, local_rank, .. } = place.init;
        self.made.add(id, Share::Ring(wire.ring()));
        self.arrivals.add(id, wire);
        self.connections.open(id, own_ring(direction, local_rank));
        Ok(true)
    }
}

/// A connection with a ring of its own.
pub(super) fn own_ring(direction: Direction, local_rank: u32) -> ConnectionSpec {
    ConnectionSpec { direction, local_rank, sharing: Sharing::Own, recv_group: None }
}

fn not_open() -> Error {
    Kind::Proxy("a connection that was never opened".to_owned()).into()
}

fn one_way() -> Error {
    Kind::Usage("a connection that goes one way is to go both ways".to_owned()).into()
}

fn wrong_length() -> Error {
    Kind::Usage("a handle of another length".to_owned()).into()
}
