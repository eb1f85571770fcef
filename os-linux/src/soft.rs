//! A RoCEv2 NIC in software, over UDP: RDMA without RDMA hardware.
//!
//! ```text
//! SoftNic        the verbs, for any thread      nic.rs
//!   Port         lock, progress, thread         port.rs
//!     Device     queue pairs, keys, timers      device.rs   sans-IO
//!       Qp       reliable connection            invar_core::roce::qp
//!     RxSocket, Sockets                         udp.rs, sockets.rs
//! ```
//!
//! What is done for each byte: the sender computes the ICRC, a packet at a time in the nearest
//! cache, and the kernel copies the payload from where it lies into its packets; at the other end
//! the kernel copies it out, the receiver verifies the ICRC and copies the payload to its place.
//! System calls carry trains of packets, not packets.

mod capture;
pub mod device;
mod discover;
mod impair;
mod nic;
mod port;
mod sockets;

pub use device::{
    Datagram, Device, DeviceConfig, DeviceCounters, Patience, Route, Train, TransmitSink,
};
pub use discover::devices;
pub use impair::{ImpairmentConfig, REORDER_PACKETS_MAX};
pub use nic::{Cq, Mr, Pd, Qp, SoftConfig, SoftCounters, SoftNic};
