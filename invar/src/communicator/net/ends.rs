//! Links over connections that the caller has made, moved in the caller's own calls.

use std::sync::{Arc, Mutex};

use invar_core::proxy::{ConnectionId, Direction, Poster};
use invar_linux::proxy::{Abort, ProgressConnections, SharedOps, driven};

use super::direct::{DirectRecv, DirectSend};
use super::link::{Posting, Way};
use super::ring::Ring;
use super::setup::own_ring;
use super::standing::Standings;
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
    without_proxy: bool,
    standings: Standings,
    connections: ProgressConnections,
    arrivals: Arrivals,
    post: Arc<Posting>,
    /// The next connection's.
    id: u32,
}

impl NetEnds {
    /// Links over `device`, none as yet. `abort` ends them.
    pub fn new(device: Device, settings: &NetSettings, abort: Abort) -> Result<Self, Error> {
        let ops = SharedOps::create(1).map_err(starting)?;
        let (arrivals, standings) = (Arrivals::default(), Standings::default());
        let wires = Wires::new(arrivals.clone(), standings.clone());
        let (connections, driver) = driven(ops.clone(), abort, wires);
        let poster = Mutex::new(Poster::new(LOCAL_RANK));
        let post = Arc::new(Posting { ops, poster, driver, timeout: settings.timeout });
        Ok(NetEnds {
            device,
            slot_bytes: settings.slot_bytes()?,
            without_proxy: settings.without_proxy,
            standings,
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
        let wire = SendWire::new(end, Arc::clone(&ring))?;
        let way = Way { connection: self.next(), peer, channel };
        if self.without_proxy {
            let standing = self.standings.add(way, Direction::Send);
            return Ok(NetSend::direct(DirectSend::new(wire, standing)));
        }
        self.open(way, Wire::Send(wire), Direction::Send);
        Ok(NetSend::new(ring, Arc::clone(&self.post), way))
    }

    /// A link from rank `peer` on `channel`, by an end that is connected to one of that rank's.
    pub fn receiver(
        &mut self,
        peer: u32,
        channel: u16,
        end: Box<dyn RecvEnd>,
    ) -> Result<NetRecv, Error> {
        let ring = self.ring()?;
        let wire = RecvWire::new(end, Arc::clone(&ring))?;
        let way = Way { connection: self.next(), peer, channel };
        if self.without_proxy {
            let standing = self.standings.add(way, Direction::Recv);
            return Ok(NetRecv::direct(DirectRecv::new(wire, standing)));
        }
        self.open(way, Wire::Recv(wire), Direction::Recv);
        Ok(NetRecv::new(ring, Arc::clone(&self.post), way))
    }

    /// What is being moved, in the notation of NCCL's dump.
    pub fn dump(&self) -> String {
        self.post.driver.dump()
    }

    fn ring(&self) -> Result<Arc<Ring>, Error> {
        Ok(Arc::new(Ring::new(&self.device, self.slot_bytes)?))
    }

    fn next(&mut self) -> ConnectionId {
        let id = ConnectionId(self.id);
        self.id += 1;
        id
    }

    fn open(&self, way: Way, wire: Wire, direction: Direction) {
        self.arrivals.add(way.connection, wire);
        self.connections.open(way.connection, own_ring(direction, LOCAL_RANK));
    }
}
