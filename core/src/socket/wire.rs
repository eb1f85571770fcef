//! Bytes of the socket transport: the hello that opens each socket, and the frames.

mod frame;
mod hello;
mod resume_frame;
mod view_frame;

pub use frame::{FRAME_BYTES, Frame, FrameKind, SocketFrameError};
pub use hello::{HELLO_BYTES, HelloError, SocketHello};
pub use resume_frame::{AckFrame, ResumeFrame};
pub use view_frame::{VIEW_FRAME_BYTES, ViewFrame};
