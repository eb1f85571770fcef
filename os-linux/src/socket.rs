//! The socket transport: messages over TCP, where there is no RDMA (`net_socket.cc`).
//!
//! [`invar_core::socket`] is the protocol; this module connects it to sockets, memory and threads. One
//! system call gathers many frames and short messages. If the destination of received bytes is known,
//! the kernel writes them there directly; otherwise they pass through a small buffer. [`SendComm::test`]
//! and [`RecvComm::test`] of any request move bytes of all requests. Helper threads, if there are any,
//! move the bytes of lanes. Without a test, a connection does not move.

mod both_ways;
mod connect;
mod device;
mod lane;
mod pointer;
mod recv;
mod resume;
mod send;

pub use connect::{AcceptError, ConnectError, Connecting, Listener, SocketSettings};
pub use device::{SocketDevice, devices};
pub use recv::RecvComm;
pub use send::SendComm;
