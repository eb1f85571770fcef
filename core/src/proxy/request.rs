//! How a rank has the proxy set connections up: requests and responses over a byte stream.
//!
//! A rank's [`Calls`] sends requests and matches responses by their number, in whatever order they
//! come. The proxy has a [`Session`] for each rank, over the [`Connections`] of all, and asks a
//! [`Setup`] to do the work: [`Kind::Setup`] and [`Kind::Connect`] may take long, and others go on
//! meanwhile. Neither end trusts the other.
//!
//! NCCL sends C structures and pointers piece by piece. Here a message is a header and a body, and
//! a connection is named by its number.

mod call;
mod connection;
mod session;
#[cfg(all(test, not(loom)))]
mod tests;
mod wire;

pub use crate::inbox::{BODY_BYTES_MAX, FrameError};
pub use call::{CallError, CallId, Calls, Expected, Outcome};
pub use connection::{Connections, Place, Setup, State};
pub use session::{Pending, Reply, Session, SessionEvent};
pub use wire::{Init, Kind, REQUEST_BYTES, RESPONSE_BYTES, VERSION};
