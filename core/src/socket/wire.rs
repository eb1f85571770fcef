//! Bytes of the socket transport: the hello that opens each socket, and the frames.

mod frame;
mod hello;
mod view_frame;

pub use frame::{FRAME_BYTES, Frame, FrameKind, SocketFrameError};
pub use hello::{HELLO_BYTES, HelloError, SocketHello};
pub use view_frame::{VIEW_FRAME_BYTES, ViewFrame};
