//! libibverbs as a NIC of Invar: real RDMA hardware, and the kernel's software RoCE.
//!
//! The adapter opens libibverbs at run time, so one binary serves hosts with and without the library.
//! [`list`] lists the ports, and [`VerbsNic`] is an open port.
//!
//! - `sys` declares the part of `infiniband/verbs.h` that the adapter uses. The file is checked in, and
//!   a test compares it with the header.
//! - `library` finds the functions of libibverbs.
//! - `context` opens devices, and `events` watches them.
//! - `gid` chooses addresses.
//! - `nic` implements the `Nic` trait for the protocol.

mod context;
mod device;
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

pub use discover::{Listing, Omission, PORTS_MAX, PortInfo, Rules, device_names, list};
pub use gid::{ChosenGid, GidEntry, GidError, GidRules};
pub use library::LibraryError;
pub use memlock::limit_bytes as memlock_limit_bytes;
pub use nic::{Cq, Mr, Pd, Qp, VerbsConfig, VerbsNic};
pub use port::PortError;

/// Whether Invar can request PCIe relaxed ordering: libibverbs has `ibv_reg_mr_iova2`.
pub fn has_relaxed_ordering() -> bool {
    library::Library::get().is_ok_and(|library| library.reg_mr_iova2.is_some())
}

/// The reason why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// This host has no usable libibverbs.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// libibverbs cannot list the devices of the kernel.
    #[error("ibv_get_device_list: {0}")]
    List(io::Error),
    /// No RDMA device has this name.
    #[error("no RDMA device is called {device}")]
    NoDevice {
        /// The requested name.
        device: String,
    },
    /// The device exists but cannot be opened.
    #[error("ibv_open_device of {device}: {source}; may this process open /dev/infiniband?")]
    Open {
        /// Name of the device.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// The device is open, but its attributes cannot be read.
    #[error("ibv_query_device of {device}: {source}")]
    Query {
        /// Name of the device.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// The events of the device cannot be watched.
    #[error("watching the events of {device}: {source}")]
    Events {
        /// Name of the device.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// The port of the device cannot be used.
    #[error("{device}: {source}")]
    Port {
        /// Name of the device.
        device: String,
        /// The port, and the reason.
        source: PortError,
    },
}
