//! The proxy moves data between GPUs and the network for the ranks of one host (`proxy.cc`).
//!
//! The ranks post operations that say which data to move. A service sets up connections, and an engine
//! moves the data step by step. The modules follow the order in which an operation passes through them:
//! 0. [`Pattern`] says which peers a rank exchanges data with, and in which direction. [`CollTransfer`]
//!    cuts a collective into steps; [`P2pTransfer`](crate::math::P2pTransfer) cuts a send or a receive
//!    into steps.
//! 1. [`Op`] describes one direction of a transfer with one peer on one channel.
//! 2. [`OpPool`] is memory that the ranks of a host share with the proxy. A [`Poster`] puts operations
//!    in, and a [`Taker`] takes them out. Neither ever waits for a lock.
//! 3. [`Engine`] merges operations into [`Args`] with several [`Sub`]s and moves each through its
//!    [`OpStage`]s over a [`Transport`]. [`Pace`] says when the engine looks for new operations.
//! 4. [`Calls`] and [`ProxySession`] handle the requests by which a rank has connections set up.
//!
//! The host provides threads and shared memory, and it implements waiting and waking.

mod banks;
mod collective;
mod engine;
mod link;
mod list;
mod op;
mod pace;
mod pattern;
mod pool;
mod request;

pub use banks::{BANK_LEN, BankSlot, Banks, Pool};
pub use collective::{CollSteps, CollTransfer, Collective, ProxyAlgorithm};
pub use engine::{
    AppendError, Args, CloseError, Connection, ConnectionSpec, Engine, OpStage, OpenError, Probe,
    ProgressError, ProxyEvent, ProxySlice, RecvGroup, SUBS_MAX, Sharing, Sub, Transport,
};
pub use list::{Closed, Head};
pub use op::{Cell, ConnectionId, Op, OpError};
pub use pace::Pace;
pub use pattern::{Channel, LEGS_MAX, Leg, Pattern};
pub use pool::{
    Appended, LOCAL_RANKS_MAX, OPS_PER_RANK, OpPool, PostError, Poster, TakeError, Taken, Taker,
};
pub use request::{
    BODY_BYTES_MAX, CallError, CallId, Calls, ConnectionEntry, Connections, Expected, FrameError,
    Init, Kind, Outcome, Pending, ProxySession, REQUEST_BYTES, RESPONSE_BYTES, Reply, SessionEvent,
    Setup, State, VERSION,
};
