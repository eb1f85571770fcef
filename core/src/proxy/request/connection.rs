//! The connections of the service, and the trait that sets them up.

use core::fmt;

use super::wire::Init;
use crate::proxy::{BankSlot, Banks, ConnectionId, Pool};

/// The functions of a host's transports that set up connections.
pub trait Setup {
    /// The reason why a transport can't do something.
    type Error: fmt::Display;
    /// The host's type for a file descriptor.
    type Fd;

    /// Opens a new connection. The service passes the returned file descriptor to the rank. If the
    /// transport needs a progress thread, this is the shared memory of the pool of operations.
    fn open(&mut self, id: ConnectionId, init: Init) -> Result<Option<Self::Fd>, Self::Error>;

    /// Prepares a connection before the peer is known (`proxySetup`). Returns `false` if this takes
    /// longer; the service then calls again with the same bytes until the connection is prepared.
    fn setup(
        &mut self,
        id: ConnectionId,
        request: &[u8],
        response: &mut [u8],
    ) -> Result<bool, Self::Error>;

    /// Connects to the peer (`proxyConnect`). Returns `false` if this takes longer; the service then
    /// calls again with the same bytes until the connection is made.
    fn connect(
        &mut self,
        id: ConnectionId,
        request: &[u8],
        response: &mut [u8],
    ) -> Result<bool, Self::Error>;

    /// Returns the file descriptor of a handle that the connection gave out (`proxyConvertFd`).
    fn convert_fd(&mut self, id: ConnectionId, handle: u32) -> Result<Self::Fd, Self::Error>;

    /// Closes a connection (`proxyFree`). Operations that the rank has posted may still name the
    /// connection.
    fn close(&mut self, id: ConnectionId);

    /// Tells the transports that a local rank has no connection any more, for example because its
    /// process was killed.
    fn left(&mut self, _local_rank: u32) {}
}

/// How far the setup of a connection is (`connInitialized` …). The states follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The connection has a number.
    #[default]
    Initialized,
    /// The connection is ready to connect to the peer.
    SetUp,
    /// The connection is ready for operations.
    Connected,
}

/// The service's record of a connection, an element of the pool of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionEntry {
    pub(super) state: State,
    /// The session that owns the connection; `None` once the connection is closed.
    pub(super) session: Option<u32>,
    /// Whether a request for the connection is pending.
    pub(super) busy: bool,
    /// The rank whose operations may name the connection.
    pub(super) local_rank: u32,
}

/// The connections of all ranks.
///
/// The service never gives out the number of a closed connection again, because operations that its
/// rank has posted may still name it.
#[derive(Debug)]
pub struct Connections<B> {
    pool: Pool<ConnectionEntry, B>,
}

impl<B: Banks<BankSlot<ConnectionEntry>>> Connections<B> {
    /// Creates an empty set of connections, in memory that holds default values.
    pub fn new(banks: B) -> Self {
        Connections { pool: Pool::new(banks) }
    }

    /// Returns how far the setup of a connection is.
    pub fn state(&self, id: ConnectionId) -> Option<State> {
        self.pool.get(id.0).filter(|place| place.session.is_some()).map(|place| place.state)
    }

    /// Creates a connection of a local rank for a session. Returns `None` if there is no memory for the
    /// connection.
    pub(super) fn open(&mut self, session: u32, local_rank: u32) -> Option<ConnectionId> {
        let (index, place) = self.pool.take()?;
        *place =
            ConnectionEntry { session: Some(session), local_rank, ..ConnectionEntry::default() };
        Some(ConnectionId(index))
    }

    /// Takes back the number of a connection that no rank knows yet.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        self.pool.give_back(id.0);
    }

    /// Returns the connection if the session owns it.
    pub(super) fn of(&mut self, session: u32, id: ConnectionId) -> Option<&mut ConnectionEntry> {
        self.pool.get_mut(id.0).filter(|place| place.session == Some(session))
    }

    /// Closes all connections of a session.
    pub(super) fn close_all(&mut self, session: u32, setup: &mut impl Setup) {
        let bit = |local_rank| 1u64.checked_shl(local_rank).unwrap_or(0);
        let mut left = 0;
        for id in (0..self.pool.touched()).map(ConnectionId) {
            if let Some(place) = self.of(session, id) {
                place.session = None;
                left |= bit(place.local_rank);
                setup.close(id);
            }
        }
        let others = (0..self.pool.touched()).filter_map(|index| self.pool.get(index));
        for place in others.filter(|place| place.session.is_some()) {
            left &= !bit(place.local_rank);
        }
        (0..u64::BITS).filter(|rank| left & bit(*rank) != 0).for_each(|rank| setup.left(rank));
    }
}
