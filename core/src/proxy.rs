//! The proxy: moves data between GPUs and the network for the ranks of one host (`proxy.cc`).
//!
//! Ranks say what is to be moved; a service sets connections up; an engine moves the data, step by
//! step. It reads in the order in which an operation goes:
//!
//! 0. [`Pattern`] — which peers a rank exchanges data with, and in which direction;
//!    [`CollTransfer`] cuts a collective into steps, as [`P2pTransfer`](crate::math::P2pTransfer) does
//!    for a send or a receive.
//! 1. [`Op`] — one direction of that, with one peer, on one channel.
//! 2. [`OpPool`] — memory that the ranks of a host share with the proxy. A [`Poster`] puts
//!    operations in, a [`Taker`] takes them out, neither ever waits for a lock.
//! 3. [`Engine`] — merges operations into [`Args`] of several [`Sub`]s and moves each through its
//!    [`Stage`]s over a [`Transport`]; [`Pace`] says when to look for new ones.
//! 4. [`Calls`] and [`Session`] — the requests by which a rank has connections set up.
//!
//! Threads, shared memory, waiting and waking are the host's business.

mod banks;
mod collective;
mod engine;
mod list;
mod op;
mod pace;
mod pattern;
mod pool;
mod request;

pub use banks::{BANK_LEN, Banks, Pool, Slot};
pub use collective::{Algorithm, CollSteps, CollTransfer, Collective};
pub use engine::{
    AppendError, Args, CloseError, Connection, ConnectionSpec, Engine, Event, OpenError, Probe,
    ProgressError, RecvGroup, SUBS_MAX, Sharing, Stage, Step, Sub, Transport,
};
pub use list::{Closed, Head};
pub use op::{Cell, ConnectionId, Op, OpError};
pub use pace::Pace;
pub use pattern::{Channel, Direction, LEGS_MAX, Leg, Pattern, Ring, TREE_ARITY_MAX, Tree};
pub use pool::{
    Appended, LOCAL_RANKS_MAX, OPS_PER_RANK, OpPool, PostError, Poster, TakeError, Taken, Taker,
};
pub use request::{
    BODY_BYTES_MAX, CallError, CallId, Calls, Connections, Expected, FrameError, Init, Kind,
    Outcome, Pending, Place, REQUEST_BYTES, RESPONSE_BYTES, Reply, Session, SessionEvent, Setup,
    State, VERSION,
};
