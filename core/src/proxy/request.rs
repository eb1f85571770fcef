//! Requests and responses over a byte stream, by which a rank has the proxy set up connections.
//!
//! A rank's [`Calls`] sends requests and matches responses by their number, in whatever order they
//! arrive. The proxy has one [`ProxySession`] for each rank and one [`Connections`] for all ranks. A session
//! asks a [`Setup`] to do the work. [`Kind::Setup`] and [`Kind::Connect`] may take long, and the proxy
//! handles other requests meanwhile. Neither end trusts the other.
//!
//! NCCL sends C structures and pointers piece by piece. Here a message is a header and a body, and a
//! number names each connection.

mod call;
mod connection;
mod session;
#[cfg(all(test, not(loom)))]
mod tests;
mod wire;

pub use crate::inbox::{BODY_BYTES_MAX, FrameError};
pub use call::{CallError, CallId, Calls, Expected, Outcome};
pub use connection::{ConnectionEntry, Connections, Setup, State};
pub use session::{Pending, ProxySession, Reply, SessionEvent};
pub use wire::{Init, Kind, REQUEST_BYTES, RESPONSE_BYTES, VERSION};
