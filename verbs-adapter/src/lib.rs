//! libibverbs as a NIC of Invar's: real RDMA hardware, and the kernel's software RoCE.
//!
//! The library is opened at run time, so that one binary serves hosts with and without it.
//! [`list`] says what ports there are, and [`VerbsNic`] is one of them, opened.
//!
//! `sys` is the part of `infiniband/verbs.h` that is used, checked in and held against the
//! header by a test. `library` finds the functions, `context` opens devices, `events` watches
//! them, `gid` chooses addresses, and `nic` is what the protocol sees.

mod context;
mod discover;
mod errno;
mod events;
#[cfg(test)]
mod fake;
mod gid;
mod library;
mod memlock;
mod nic;
mod port;
#[doc(hidden)]
pub mod sys;
mod sysfs;

use std::io;

pub use discover::{Listing, Omission, PORTS_MAX, PortInfo, Rules, list};
pub use gid::{ChosenGid, GidEntry, GidError, GidRules};
pub use library::LibraryError;
pub use nic::{Cq, Mr, Pd, Qp, VerbsConfig, VerbsNic};
pub use port::PortError;

/// Whether PCIe relaxed ordering can be asked for: libibverbs has `ibv_reg_mr_iova2`.
pub fn has_relaxed_ordering() -> bool {
    library::Library::get().is_ok_and(|library| library.reg_mr_iova2.is_some())
}

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no libibverbs.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The kernel shows no devices.
    #[error("ibv_get_device_list: {0}")]
    List(io::Error),
    /// None has this name.
    #[error("no RDMA device is called {device}")]
    NoDevice {
        /// The name.
        device: String,
    },
    /// It is there, and does not open.
    #[error("ibv_open_device of {device}: {source}; may this process open /dev/infiniband?")]
    Open {
        /// Its name.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// It is open, and tells nothing.
    #[error("ibv_query_device of {device}: {source}")]
    Query {
        /// Its name.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// Its events cannot be watched.
    #[error("watching the events of {device}: {source}")]
    Events {
        /// Its name.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// The port cannot be used.
    #[error("{device}: {source}")]
    Port {
        /// Its name.
        device: String,
        /// Which port, and why.
        source: PortError,
    },
}
