//! The proxy's threads, and what its processes share; `invar_core::proxy` is what they do.
//!
//! A host runs a [`Service`] and a [`Progress`] for each GPU. A rank asks the service for
//! connections with a [`ProxyClient`], and is given the [`SharedOps`] with the first; it posts
//! operations with [`RankOps`], and the progress thread moves them, or the rank itself while it waits,
//! by a [`Driver`], which also says what is active ([`DumpOnSignal`]). An [`Abort`] ends all of it.

mod abort;
mod banks;
mod client;
mod dump;
mod futex;
mod post;
mod progress;
mod service;
mod shared;
mod thread;
mod trace;

pub use abort::{Abort, WaitError};
pub use banks::HeapBanks;
pub use client::{ClientError, ClientErrorKind, ProxyClient};
pub use dump::DumpOnSignal;
pub use post::{RankOps, RankOpsError};
pub use progress::{Driver, Progress, ProgressConnections, ProgressFailure, ProgressSettings};
pub use service::{Service, ServiceSettings};
pub use shared::SharedOps;
pub use trace::{ChromeTrace, TracedStep};
