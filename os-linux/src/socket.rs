//! The socket transport: messages over TCP, where there is no RDMA (`net_socket.cc`).
//!
//! The protocol is [`invar_core::socket`]; this wires it to sockets, memory and threads. Frames
//! and short messages are gathered, many to a system call; what comes is read right to where it
//! belongs where that is known, and by the way of a small buffer where it is not. Bytes move in
//! [`SendComm::test`] and [`RecvComm::test`], of any request, and over lanes in helper threads if
//! there are such. A connection on which nothing is tested does not move.

mod connect;
mod device;
mod lane;
mod recv;
mod send;

pub use connect::{AcceptError, ConnectError, Connecting, Listener, Settings};
pub use device::{SocketDevice, devices};
pub use recv::RecvComm;
pub use send::SendComm;
