//! Links over connections that the caller has made, moved in the caller's own calls.

use std::sync::{Arc, Mutex};

use invar_core::proxy::{ConnectionId, Direction, Poster};
use invar_linux::proxy::{Abort, ProgressConnections, SharedOps, driven};

use super::link::{Posting, Way};
use super::ring::Ring;
use super::setup::own_ring;
use super::wire::{Arrivals, RecvWire, SendWire, Wire, Wires};
use super::{LOCAL_RANK, NetRecv, NetSend, NetSettings, starting};
use crate::raw::{RecvEnd, SendEnd};
use crate::{Device, Error};

/// One rank's links where there is neither thread nor socket: the caller connects the ends, and all
/// data moves in the rounds that links make when they are asked for progress. So one thread can be
/// many ranks, and decide on all that happens.
pub struct NetEnds {
    device: Device,
    slot_bytes: usize,
    connections: ProgressConnections,
    arrivals: Arrivals,
    post: Arc<Posting>,
    /// The next connection's.
    id: u32,
}

impl NetEnds {
    /// Links over `device`, none as yet. `abort` ends them.
    pub fn new(device: Device, settings: &NetSettings, abort: Abort) -> Result<Self, Error> {
        let (ops, arrivals) = (SharedOps::create(1).map_err(starting)?, Arrivals::default());
        let (connections, driver) = driven(ops.clone(), abort, Wires::new(arrivals.clone()));
        let poster = Mutex::new(Poster::new(LOCAL_RANK));
        let post = Arc::new(Posting { ops, poster, driver, timeout: settings.timeout });
        Ok(NetEnds {
            device,
            slot_bytes: settings.slot_bytes(),
            connections,
            arrivals,
            post,
            id: 0,
        })
    }

    /// A link to rank `peer` on `channel`, by an end that is connected to one of that rank's.
    pub fn sender(
        &mut self,
        peer: u32,
        channel: u16,
        end: Box<dyn SendEnd>,
    ) -> Result<NetSend, Error> {
        let ring = self.ring()?;
        let wire = Wire::Send(SendWire::new(end, Arc::clone(&ring))?);
        let connection = self.open(wire, Direction::Send);
        Ok(NetSend::new(ring, Arc::clone(&self.post), Way { connection, peer, channel }))
    }

    /// A link from rank `peer` on `channel`, by an end that is connected to one of that rank's.
    pub fn receiver(
        &mut self,
        peer: u32,
        channel: u16,
        end: Box<dyn RecvEnd>,
    ) -> Result<NetRecv, Error> {
        let ring = self.ring()?;
        let wire = Wire::Recv(RecvWire::new(end, Arc::clone(&ring))?);
        let connection = self.open(wire, Direction::Recv);
        Ok(NetRecv::new(ring, Arc::clone(&self.post), Way { connection, peer, channel }))
    }

    /// What is being moved, in the notation of NCCL's dump.
    pub fn dump(&self) -> String {
        self.post.driver.dump()
    }

    fn ring(&self) -> Result<Arc<Ring>, Error> {
        Ok(Arc::new(Ring::new(&self.device, self.slot_bytes)?))
    }

    fn open(&mut self, wire: Wire, direction: Direction) -> ConnectionId {
        let id = ConnectionId(self.id);
        self.id += 1;
        self.arrivals.add(id, wire);
        self.connections.open(id, own_ring(direction, LOCAL_RANK));
        id
    }
}
