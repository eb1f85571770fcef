//! A RoCEv2 NIC in software over UDP: RDMA without RDMA hardware.
//!
//! ```text
//! SoftNic        the verbs, for any thread      nic.rs
//!   Port         lock, progress, thread         port.rs
//!     Device     queue pairs, keys, timers      device.rs   sans-IO
//!       Qp       reliable connection            invar_core::roce::qp
//!     RxSocket, Sockets                         udp.rs, sockets.rs
//! ```
//!
//! Cost per byte: the sender computes the ICRC of one packet at a time in the nearest cache. The kernel
//! then copies the payload from registered memory into its packets. On the other end the kernel copies
//! the payload out, and the receiver verifies the ICRC and copies the payload to its destination. Each
//! system call carries a train of packets.

mod capture;
pub mod device;
mod discover;
mod impair;
mod nic;
mod port;
pub mod shared_ports;
mod sockets;

pub use device::{
    AckDelay, Awaited, Datagram, Device, DeviceConfig, DeviceCounters, MrChange, QpConfig,
    QpnRange, Receiver, Route, Train, TransmitSink,
};
pub use discover::{HostDevice, UnknownDevice, choose, devices};
pub use impair::{ImpairmentConfig, REORDER_PACKETS_MAX};
pub use nic::{Cq, Mr, Pd, Qp, QpInit, SoftConfig, SoftCounters, SoftNic, Srq, Window};
