//! What is under the engine, and what looks on.

use core::fmt;

use super::Stage;
use crate::math::Protocol;
use crate::proxy::{ConnectionId, Direction};

/// Moves slices of steps between GPU and network.
///
/// The transport keeps what it needs for a slice under way (requests, sizes) by connection and
/// [`Step::slot`]; the engine knows what may come next. All subs of a slice of `steps` are moved,
/// or none.
pub trait Transport {
    /// Why it can go no further.
    type Error: fmt::Display;

    /// Brings a slice past `stage`. `false` where it is not ready for that yet; it is asked again.
    ///
    /// `steps` is one element, but to receive also as many as one request serves
    /// ([`RecvGroup`](super::RecvGroup)), up to [`Stage::Flush`]; the first names the request.
    ///
    /// | stage | send | recv |
    /// |---|---|---|
    /// | `Post` | tell the GPU that the slot is free | give the slots to the network: `irecv` |
    /// | `Receive` | | `test` the request; begin to flush if need be: `iflush` |
    /// | `Flush` | | `test` the flush |
    /// | `Transmit` | is it filled? then `isend` | tell the GPU that the slot is filled |
    /// | `Complete` | `test` the request; the slot is free | has the GPU used it? |
    fn advance(&mut self, stage: Stage, steps: &[Step]) -> Result<bool, Self::Error>;

    /// Lets go of what it has of a connection, which no operation will name any more.
    fn close(&mut self, _connection: ConnectionId) {}
}

/// A slice of steps of one sub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Over which connection.
    pub connection: ConnectionId,
    /// Which way.
    pub direction: Direction,
    /// On which channel.
    pub channel: u16,
    /// With which rank.
    pub peer: u32,
    /// In which protocol the data is.
    pub protocol: Protocol,
    /// Of which operation.
    pub op_count: u64,
    /// The first step, counted since the connection was opened.
    pub step: u64,
    /// Its slot in the connection's ring of [`STEPS`](crate::math::STEPS).
    pub slot: u8,
    /// Its slot in the buffer that connections share, of [`SUBS_MAX`](super::SUBS_MAX); the same
    /// as `slot` where they don't.
    pub buffer_slot: u8,
    /// Number of steps.
    pub steps: u8,
    /// Most bytes of it.
    pub slice_bytes: u64,
}

/// What happens, for profiling (`ncclProxyProfileState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The thread goes to sleep.
    Sleep,
    /// It has been woken.
    Wakeup,
    /// No operation could be moved, for the first time since one could.
    Idle,
    /// An operation could be moved again.
    Active,
    /// It begins to take new operations.
    Append,
    /// It has taken as many.
    AppendEnd {
        /// Operations taken.
        ops: u32,
    },
    /// A slice is past a stage.
    Step {
        /// Which slice.
        step: Step,
        /// Which stage.
        stage: Stage,
    },
}

/// Looks on.
pub trait Probe {
    /// Something happens now.
    fn record(&mut self, event: Event);
}

/// Nobody looks on.
impl Probe for () {
    fn record(&mut self, _: Event) {}
}

/// The transport can go no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressError<E> {
    /// At which stage.
    pub stage: Stage,
    /// With which slice; the first, where one request serves several.
    pub step: Step,
    /// Why.
    pub error: E,
}

impl<E: fmt::Display> fmt::Display for ProgressError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { op_count, direction, peer, channel, connection, step, .. } = self.step;
        write!(
            f,
            "operation {op_count:#x}, {direction:?} with rank {peer} on channel {channel} over \
             connection {connection}, {:?} of step {step}: {}",
            self.stage, self.error
        )
    }
}

impl<E: fmt::Display + fmt::Debug> core::error::Error for ProgressError<E> {}
