//! The socket transport: messages over TCP for hosts without RDMA (`net_socket.cc`).
//!
//! A connection is a *control* socket, a *main* socket, and as many *lanes* as the user asks for. On
//! main, the sender writes a [`Frame`] for each message, in order. The payload of a short message
//! follows its frame. A long message goes over the lanes in [`Chunks`]. On control, the receiver
//! writes a frame for each buffer that it posts. So main and lanes carry bytes from the sender only.
//! The sender may close them as soon as its sends are done: no unread bytes make the kernel reset
//! them.
//!
//! NCCL's transport takes sends in the order of receives, but this one matches by tag. The oldest
//! message with a tag meets the oldest buffer with that tag. Both ends see all messages and all
//! buffers in the same order. So both ends compute the same pairs, whoever learns of a message or
//! buffer first. Both also notice a message that is too long for its buffer.
//!
//! A sender may send [`AHEAD_BYTES`] in [`AHEAD_MESSAGES`] before it knows of their buffers. So short
//! messages wait for no round trip. A receiver parks a message without a buffer only if another buffer
//! waits for something behind it. A receiver parks no more than that.
//!
//! If the connection stands still, both ends write a [`ViewFrame`] to control, between their frames. The
//! sender writes nothing else to control. Ends of older versions neither take nor send views: the hello says
//! so.
//!
//! A socket that is lost goes on over a new TCP connection ([`ResumableSocket`]). The receiver acknowledges what it has
//! read ([`AckFrame`] on control), and the sender keeps a message until then: short ones as copies, others in the
//! caller's buffer. On a new socket each end says how far it has come, and the other one goes on there. The byte stream
//! of each socket is then the same as if nothing had happened. On control, only the frames of buffers are
//! sent again.
//!
//! Read the types in this order. [`Frame`] and [`SocketHello`] are the bytes. [`SocketConnector`] and
//! [`PendingConnections`] gather the sockets of a connection at both ends. [`Sender`] and [`Receiver`]
//! say which bytes belong where. No type sees payload: all types name ranges of the requests' buffers.

mod accept;
mod connect;
mod layout;
mod recv;
mod resumable;
mod send;
mod tag_queue;
mod wire;

pub use accept::{PendingConnections, SocketRefused};
pub use connect::{HandshakeSettings, Links, SocketConnector};
pub use layout::{CHUNK_BYTES_MIN, Chunks, LANES_MAX, Layout, SocketChunk};
pub use recv::{Posted, Receiver, RecvStep, Target};
pub use resumable::{ResumableSocket, ResumeTimes, SocketNews};
pub use send::{Outgoing, Sender};
pub use wire::{
    AckFrame, FRAME_BYTES, Frame, FrameKind, HELLO_BYTES, HelloError, ResumeFrame,
    SocketFrameError, SocketHello, VIEW_FRAME_BYTES, ViewFrame,
};

use crate::fifo::{DEPTH_MAX, RECVS_MAX};

/// Maximum number of bytes that a sender may send before it knows of their buffers.
pub const AHEAD_BYTES: u32 = 4 << 20;

/// Maximum number of messages that a sender may send before it knows of their buffers.
pub const AHEAD_MESSAGES: usize = 256;

/// A message up to this length is copied where lost sockets are resumed, so that its send is done at once.
pub const KEPT_BYTES: u32 = 4 << 10;

/// A message up to this length is copied too, as long as all copies have at most [`COPIES_BYTES`]. The send of any other
/// message is done when the receiver has read it. A copy takes less time than that.
pub const COPIED_BYTES: u32 = 64 << 10;

/// Number of bytes of the copies that a sender makes when sends start.
pub const COPIES_BYTES: u32 = 1 << 20;

/// Maximum number of posted buffers that no message has met.
const BUFFERS_MAX: usize = DEPTH_MAX * RECVS_MAX;
