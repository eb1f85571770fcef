//! The transport under the engine, and the probe that records the engine's events.

use core::fmt;

use super::OpStage;
use crate::math::Protocol;
use crate::proxy::ConnectionId;
use crate::topology::Direction;

/// Moves slices of steps between GPU and network.
///
/// The transport stores its data for a slice in progress (requests, sizes) by connection and
/// [`ProxySlice::slot`]. The engine knows which slice may come next. The transport moves all subs of a
/// slice of `steps`, or none.
pub trait Transport {
    /// The reason why the transport can't continue.
    type Error: fmt::Display;

    /// Brings a slice past `stage`. Returns `false` if the slice is not ready yet; the engine then asks
    /// again.
    ///
    /// `steps` usually has one element. For a receive, up to [`OpStage::Flush`], it has as many as one
    /// request serves ([`RecvGroup`](super::RecvGroup)). The first element names the request.
    ///
    /// | stage | send | recv |
    /// |---|---|---|
    /// | `Post` | tell the GPU that the slot is free | give the slots to the network: `irecv` |
    /// | `Receive` | | `test` the request; if a flush is needed, start it: `iflush` |
    /// | `Flush` | | `test` the flush |
    /// | `Transmit` | if the GPU has filled the slot, `isend` | tell the GPU that the slot is filled |
    /// | `Complete` | `test` the request; the slot is free | check whether the GPU has used the slot |
    fn advance(&mut self, stage: OpStage, steps: &[ProxySlice]) -> Result<bool, Self::Error>;

    /// Releases all resources of a connection. No later operation names the connection.
    fn close(&mut self, _connection: ConnectionId) {}
}

/// A slice of steps of one sub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxySlice {
    /// The connection that the slice goes over.
    pub connection: ConnectionId,
    /// The direction of the slice.
    pub direction: Direction,
    /// The channel of the slice.
    pub channel: u16,
    /// The rank of the peer.
    pub peer: u32,
    /// The protocol that the data is in.
    pub protocol: Protocol,
    /// The operation count of the slice's operation.
    pub op_count: u64,
    /// The slice's first step, counted since the engine opened the connection.
    pub step: u64,
    /// The slice's slot in the connection's ring of [`STEPS`](crate::math::STEPS).
    pub slot: u8,
    /// The slice's slot in the buffer that connections share, which has [`SUBS_MAX`](super::SUBS_MAX)
    /// slots. If the connection shares no buffer, this equals `slot`.
    pub buffer_slot: u8,
    /// Number of steps of the slice.
    pub steps: u8,
    /// Most bytes of the slice.
    pub slice_bytes: u64,
}

/// An event of the progress thread, for profiling (`ncclProxyProfileState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyEvent {
    /// The thread goes to sleep.
    Sleep,
    /// Another thread has woken this one.
    Wakeup,
    /// The engine could not move any operation, for the first time since it could.
    Idle,
    /// The engine could move an operation again.
    Active,
    /// The thread begins to take new operations.
    Append,
    /// The thread has taken new operations.
    AppendEnd {
        /// Number of operations that the thread took.
        ops: u32,
    },
    /// A slice is past a stage.
    Step {
        /// The slice of an operation that has moved on.
        step: ProxySlice,
        /// The stage that the slice has passed.
        stage: OpStage,
    },
}

/// Records the events of a progress thread.
pub trait Probe {
    /// Records `event`, which happens now.
    fn record(&mut self, event: ProxyEvent);
}

/// A probe that records nothing.
impl Probe for () {
    fn record(&mut self, _: ProxyEvent) {}
}

/// The transport can't continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressError<E> {
    /// The stage that the transport could not bring the slice past.
    pub stage: OpStage,
    /// The slice that failed; the first slice, if one request serves several.
    pub step: ProxySlice,
    /// The transport's error.
    pub error: E,
}

impl<E: fmt::Display> fmt::Display for ProgressError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProxySlice { op_count, direction, peer, channel, connection, step, .. } = self.step;
        write!(
            f,
            "operation {op_count:#x}, {direction:?} with rank {peer} on channel {channel} over \
             connection {connection}, {:?} of step {step}: {}",
            self.stage, self.error
        )
    }
}

impl<E: fmt::Display + fmt::Debug> core::error::Error for ProgressError<E> {}
