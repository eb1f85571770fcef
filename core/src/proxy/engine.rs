//! The engine: active operations, moved step by step.
//!
//! What waits for the same connection is chained (`next_peer`), and only the first of a chain is
//! active, or also the next once all of the first is on its way; operations of one `op_count` over connections that share their buffers are merged into
//! one [`Args`] with a [`Sub`] each. The transport under it is one call, [`Transport::advance`].

mod append;
mod args;
mod dump;
mod progress;
mod transport;

pub use append::AppendError;
pub use args::{Args, SUBS_MAX, Stage, Sub};
pub use transport::{Event, Probe, ProgressError, Step, Transport};

use super::{Banks, ConnectionId, Direction, Pool, Slot};
use crate::fifo::RECVS_MAX;

/// What the engine keeps of a connection.
#[derive(Clone, Debug)]
pub struct Connection {
    spec: ConnectionSpec,
    /// Steps that operations have taken or will take, so that the next knows its slot.
    step: u64,
    /// Steps that are done, of an operation that has not begun early.
    done: u64,
    /// The last operation of the chain that waits for this connection, or for those that share
    /// its buffers. Only where the chain hangs on this one.
    tail: Option<u32>,
    /// Operations, and other connections, that need it.
    uses: u32,
}

/// What is to be known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSpec {
    /// Which way data goes.
    pub direction: Direction,
    /// The local rank whose operations may name it.
    pub local_rank: u32,
    /// Whose buffers it uses.
    pub sharing: Sharing,
    /// Receives that one request can serve together; `None` for one each.
    pub recv_group: Option<RecvGroup>,
}

/// Whose buffers a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Its own.
    Own,
    /// Buffers that others may share with it.
    First,
    /// Those of a connection that is [`Sharing::First`].
    With(ConnectionId),
}

/// Connections over the same receiving comm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvGroup {
    /// Which comm.
    pub comm: u32,
    /// Most buffers of one of its requests (`maxRecvs`); at most [`RECVS_MAX`] count.
    pub buffers_max: u8,
}

/// Why a connection can't be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is one of that name.
    #[error("connection {0} is open already")]
    Open(ConnectionId),
    /// There is no memory for it.
    #[error("connection {0}: no memory for one more bank of connections")]
    NoMemory(ConnectionId),
    /// What it is to share buffers with does not share, or goes the other way.
    #[error(
        "connection {0} can't share the buffers of {1}, which is not open, has its own, or \
             goes the other way"
    )]
    Sharing(ConnectionId, ConnectionId),
}

/// Why a connection can't be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseError {
    /// There is none of that name.
    #[error("connection {0} is not open")]
    NotOpen(ConnectionId),
    /// Operations, or connections that share its buffers, need it.
    #[error("connection {0} is in use by {1} operations or connections")]
    InUse(ConnectionId, u32),
}

/// The operations that a progress thread moves (`ncclProxyProgressState`), in the memory that the
/// host gives.
#[derive(Debug)]
pub struct Engine<A, C> {
    args: Pool<Args, A>,
    connections: C,
    /// First and last of the operations that are active.
    active: Option<(u32, u32)>,
}

impl<A: Banks<Slot<Args>>, C: Banks<Option<Connection>>> Engine<A, C> {
    /// An engine without connections and operations.
    pub fn new(args: A, connections: C) -> Self {
        Engine { args: Pool::new(args), connections, active: None }
    }

    /// Whether no operation is active.
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

    /// Closes a connection that nothing uses any more.
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
    /// The connection that the chain hangs on.
    fn chain_at(&self, id: ConnectionId) -> ConnectionId {
        match self.spec.sharing {
            Sharing::Own | Sharing::First => id,
            Sharing::With(first) => first,
        }
    }

    fn shares(&self) -> bool {
        self.spec.sharing != Sharing::Own
    }

    /// The comm whose request serves several receives, and how many.
    fn recv_group(&self) -> Option<(u32, usize)> {
        let RecvGroup { comm, buffers_max } = self.spec.recv_group?;
        Some((comm, usize::from(buffers_max).clamp(1, RECVS_MAX)))
    }
}
