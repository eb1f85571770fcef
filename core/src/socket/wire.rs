//! Bytes of the socket transport: the hello that opens each socket, and the frames.

mod frame;
mod hello;

pub use frame::{FRAME_BYTES, Frame, FrameError, FrameKind};
pub use hello::{HELLO_BYTES, Hello, HelloError};
