//! The engine moves the active operations step by step.
//!
//! Operations that wait for the same connection form a chain (`next_peer`). Only the first operation of
//! a chain is active. Once all steps of the first are on their way, the second becomes active too.
//!
//! The engine merges operations with the same `op_count` over connections that share their buffers.
//! Merged operations become one [`Args`] with one [`Sub`] each. The engine uses its transport by one
//! call, [`Transport::advance`].

mod append;
mod args;
mod dump;
mod progress;
mod transport;

pub use append::AppendError;
pub use args::{Args, OpStage, SUBS_MAX, Sub};
pub use transport::{Probe, ProgressError, ProxyEvent, ProxySlice, Transport};

use super::{BankSlot, Banks, ConnectionId, Pool};
use crate::fifo::RECVS_MAX;
use crate::topology::Direction;

/// The state that the engine keeps for one connection.
#[derive(Clone, Debug)]
pub struct Connection {
    spec: ConnectionSpec,
    /// Steps that operations have taken or will take, so that the next operation knows its slot.
    step: u64,
    /// Completed steps. An operation that began early does not count its steps here.
    done: u64,
    /// The last operation of the chain that waits for this connection, or for the connections that
    /// share its buffers. Only the connection that the chain hangs on has a tail.
    tail: Option<u32>,
    /// Number of operations and other connections that need this connection.
    uses: u32,
}

/// The properties of a connection that the host gives when it opens the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSpec {
    /// Direction in which data goes over the connection.
    pub direction: Direction,
    /// The local rank whose operations may name the connection.
    pub local_rank: u32,
    /// Says which buffers the connection uses.
    pub sharing: Sharing,
    /// The receives that one request can serve together; `None` if each receive has its own request.
    pub recv_group: Option<RecvGroup>,
}

/// Says whose buffers a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The connection uses its own buffers.
    Own,
    /// The connection has buffers that other connections may share with it.
    First,
    /// The connection uses the buffers of another connection, which is [`Sharing::First`].
    With(ConnectionId),
}

/// Connections over the same receiving comm, whose receives one request can serve together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvGroup {
    /// Number of the receiving comm.
    pub comm: u32,
    /// Most buffers that one request of the comm serves (`maxRecvs`); values above [`RECVS_MAX`] count
    /// as [`RECVS_MAX`].
    pub buffers_max: u8,
}

/// The reason why the engine can't open a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// A connection with this number is open already.
    #[error("connection {0} is open already")]
    Open(ConnectionId),
    /// The host has no memory for the connection.
    #[error("connection {0}: no memory for one more bank of connections")]
    NoMemory(ConnectionId),
    /// The other connection is not open, does not share its buffers, or goes the other way.
    #[error(
        "connection {0} can't share the buffers of {1}, which is not open, has its own, or \
             goes the other way"
    )]
    Sharing(ConnectionId, ConnectionId),
}

/// The reason why the engine can't close a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseError {
    /// No connection with this number is open.
    #[error("connection {0} is not open")]
    NotOpen(ConnectionId),
    /// Operations, or connections that share its buffers, still need the connection.
    #[error("connection {0} is in use by {1} operations or connections")]
    InUse(ConnectionId, u32),
}

/// The operations that a progress thread moves (`ncclProxyProgressState`). The host provides the memory
/// for them.
#[derive(Debug)]
pub struct Engine<A, C> {
    args: Pool<Args, A>,
    connections: C,
    /// The first and the last active operation.
    active: Option<(u32, u32)>,
}

impl<A: Banks<BankSlot<Args>>, C: Banks<Option<Connection>>> Engine<A, C> {
    /// Creates an engine without connections and operations.
    pub fn new(args: A, connections: C) -> Self {
        Engine { args: Pool::new(args), connections, active: None }
    }

    /// Returns whether no operation is active.
    pub fn is_idle(&self) -> bool {
        self.active.is_none()
    }

    /// Opens a connection, so that operations may name it.
    pub fn open(&mut self, id: ConnectionId, spec: ConnectionSpec) -> Result<(), OpenError> {
        if self.connection(id).is_some() {
            return Err(OpenError::Open(id));
        }
        while self.connections.at(id.0).is_none() {
            if !self.connections.grow() {
                return Err(OpenError::NoMemory(id));
            }
        }
        if let Sharing::With(first) = spec.sharing {
            let fits = |c: &&mut Connection| {
                c.spec.sharing == Sharing::First && c.spec.direction == spec.direction
            };
            match self.connection_mut(first).as_mut().filter(|c| fits(c)) {
                Some(first) => first.uses += 1,
                None => return Err(OpenError::Sharing(id, first)),
            }
        }
        if let Some(place) = self.connections.at_mut(id.0) {
            *place = Some(Connection { spec, step: 0, done: 0, tail: None, uses: 0 });
        }
        Ok(())
    }

    /// Closes a connection that no operation and no other connection uses.
    pub fn close(&mut self, id: ConnectionId) -> Result<(), CloseError> {
        let connection = self.connection(id).ok_or(CloseError::NotOpen(id))?;
        if connection.uses > 0 {
            return Err(CloseError::InUse(id, connection.uses));
        }
        if let Sharing::With(first) = connection.spec.sharing
            && let Some(first) = self.connection_mut(first)
        {
            first.uses -= 1;
        }
        if let Some(place) = self.connections.at_mut(id.0) {
            *place = None;
        }
        Ok(())
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.at(id.0)?.as_ref()
    }

    fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.at_mut(id.0)?.as_mut()
    }
}

impl Connection {
    /// The connection that holds the chain's tail: this one, or the one whose buffers this one uses.
    fn chain_at(&self, id: ConnectionId) -> ConnectionId {
        match self.spec.sharing {
            Sharing::Own | Sharing::First => id,
            Sharing::With(first) => first,
        }
    }

    fn shares(&self) -> bool {
        self.spec.sharing != Sharing::Own
    }

    /// The receiving comm whose request serves several receives, and how many receives it serves.
    fn recv_group(&self) -> Option<(u32, usize)> {
        let RecvGroup { comm, buffers_max } = self.spec.recv_group?;
        Some((comm, usize::from(buffers_max).clamp(1, RECVS_MAX)))
    }
}
