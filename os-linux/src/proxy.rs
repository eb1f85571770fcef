//! The proxy's threads and the memory that its processes share; `invar_core::proxy` has their logic.
//!
//! A host runs a [`Service`] and a [`Progress`] for each GPU. A rank asks the service for connections
//! with a [`ProxyClient`], and receives the [`SharedOps`] with the first connection. The rank posts
//! operations with [`RankOps`], and the progress thread moves them. While the rank waits, it can move
//! them itself with a [`Driver`], which also lists active operations ([`DumpOnSignal`]). An
//! [`Abort`](crate::abort::Abort) ends everything.

mod banks;
mod bound;
mod client;
mod dump;
mod futex;
mod post;
mod progress;
mod service;
mod shared;
mod thread;
mod trace;

pub use banks::HeapBanks;
pub use bound::WaitError;
pub use client::{ClientError, ClientErrorKind, ProxyClient};
pub use dump::DumpOnSignal;
pub use post::{RankOps, RankOpsError};
pub use progress::{Driver, Progress, ProgressConnections, ProgressFailure, ProgressSettings};
pub use service::{Service, ServiceSettings};
pub use shared::SharedOps;
pub use trace::{ChromeTrace, TracedStep};
