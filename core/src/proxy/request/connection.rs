//! Connections as the service knows them, and who sets them up.

use core::fmt;

use super::wire::Init;
use crate::proxy::{Banks, ConnectionId, Pool, Slot};

/// What the transports of a host do to set connections up.
pub trait Setup {
    /// Why something can't be done.
    type Error: fmt::Display;
    /// What the host has for a file descriptor.
    type Fd;

    /// A new connection. What is given back goes to the rank: the shared memory of the pool of
    /// operations, where the transport needs a progress thread.
    fn open(&mut self, id: ConnectionId, init: Init) -> Result<Option<Self::Fd>, Self::Error>;

    /// Buffers that connections share (`proxySharedInit`).
    fn shared_init(&mut self, id: ConnectionId, nchannels: u32) -> Result<(), Self::Error>;

    /// What is to be done before the peer is known (`proxySetup`). `false` where it takes longer;
    /// it is asked again, with the same bytes, until then.
    fn setup(
        &mut self,
        id: ConnectionId,
        request: &[u8],
        response: &mut [u8],
    ) -> Result<bool, Self::Error>;

    /// What is to be done with the peer (`proxyConnect`). As [`Setup::setup`].
    fn connect(
        &mut self,
        id: ConnectionId,
        request: &[u8],
        response: &mut [u8],
    ) -> Result<bool, Self::Error>;

    /// The file descriptor of a handle that the connection gave out (`proxyConvertFd`).
    fn convert_fd(&mut self, id: ConnectionId, handle: u32) -> Result<Self::Fd, Self::Error>;

    /// Ends a connection (`proxyFree`). Operations that its rank has posted may still name it.
    fn close(&mut self, id: ConnectionId);

    /// A local rank has no connection any more, as when its process was killed.
    fn left(&mut self, _local_rank: u32) {}
}

/// How far a connection is (`connInitialized` …).
///
/// Initialized → SharedInitialized → SetUp → Connected; the second may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It has a number.
    #[default]
    Initialized,
    /// It has shared buffers.
    SharedInitialized,
    /// It can be connected.
    SetUp,
    /// It can be used.
    Connected,
}

/// A connection's place in its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub(super) state: State,
    /// Whose it is; nobody's once it is closed.
    pub(super) session: Option<u32>,
    /// Whether something is being done with it.
    pub(super) busy: bool,
    /// The rank whose operations may name it.
    pub(super) local_rank: u32,
}

/// The connections of all ranks.
///
/// The number of one that is closed is not given out again: operations that its rank has posted
/// may still name it.
#[derive(Debug)]
pub struct Connections<B> {
    pool: Pool<Place, B>,
}

impl<B: Banks<Slot<Place>>> Connections<B> {
    /// None, in memory that holds default values.
    pub fn new(banks: B) -> Self {
        Connections { pool: Pool::new(banks) }
    }

    /// How far a connection is.
    pub fn state(&self, id: ConnectionId) -> Option<State> {
        self.pool.get(id.0).filter(|place| place.session.is_some()).map(|place| place.state)
    }

    /// A new one of a local rank for a session; `None` where there is no memory.
    pub(super) fn open(&mut self, session: u32, local_rank: u32) -> Option<ConnectionId> {
        let (index, place) = self.pool.take()?;
        *place = Place { session: Some(session), local_rank, ..Place::default() };
        Some(ConnectionId(index))
    }

    /// Takes back a number that nobody knows yet.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        self.pool.give_back(id.0);
    }

    /// One that is a session's.
    pub(super) fn of(&mut self, session: u32, id: ConnectionId) -> Option<&mut Place> {
        self.pool.get_mut(id.0).filter(|place| place.session == Some(session))
    }

    /// Ends all that are a session's.
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
