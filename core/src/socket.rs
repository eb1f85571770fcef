//! The socket transport: messages over TCP, where there is no RDMA (`net_socket.cc`).
//!
//! A connection is a *control* socket, a *main* socket, and as many *lanes* as the user asks for.
//! On main the sender writes a [`Frame`] for each message, in order, and behind it the payload
//! of a short one; a long one goes over the lanes in [`Chunks`]. On control the receiver writes a
//! frame for each buffer that it posts. So main and lanes only ever carry bytes from the sender,
//! which may close them as soon as its sends are done: nothing unread makes the kernel reset them.
//!
//! Other than NCCL's, which takes sends in the order of receives, this matches by tag: the oldest
//! message with a tag meets the oldest buffer with it. Both ends see all messages and all buffers
//! in the same order, so both know the same pairs, whoever learns of one first, and both notice a
//! message that is too long for its buffer. A sender may run [`AHEAD_BYTES`] in [`AHEAD_MESSAGES`]
//! ahead of what it knows to be posted, so that short messages wait for no round trip. A receiver
//! takes what nobody asked for out of the way only where something behind it is waited for, and
//! keeps no more of it than that.
//!
//! Read in this order: [`Frame`] and [`Hello`] are the bytes; [`Connector`] and [`Lobby`] make a
//! connection's sockets known to both ends; [`Sender`] and [`Receiver`] say which bytes belong
//! where. None of them sees payload: they name ranges of the requests' buffers.

mod accept;
mod connect;
mod layout;
mod recv;
mod send;
mod tag_queue;
mod wire;

pub use accept::{Lobby, Refused};
pub use connect::{Connector, Links, Settings};
pub use layout::{CHUNK_BYTES_MIN, Chunk, Chunks, LANES_MAX, Layout};
pub use recv::{Posted, Receiver, Step, Target};
pub use send::{Outgoing, Sender};
pub use wire::{FRAME_BYTES, Frame, FrameError, FrameKind, HELLO_BYTES, Hello, HelloError};

use crate::fifo::{DEPTH_MAX, RECVS_MAX};

/// Bytes of messages that a sender may send before it knows of their buffers.
pub const AHEAD_BYTES: u32 = 4 << 20;

/// How many such messages there may be.
pub const AHEAD_MESSAGES: usize = 256;

/// Buffers that may be posted and not yet met.
const BUFFERS_MAX: usize = DEPTH_MAX * RECVS_MAX;
