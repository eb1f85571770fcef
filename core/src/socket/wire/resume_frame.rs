//! The frames of connections that outlive their sockets: acknowledges, and the first frame on a new socket.

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use super::{FRAME_BYTES, SocketFrameError};

/// Byte layout of both frames, little-endian.
///
/// ```text
/// byte 0       4        8      16
///      +-------+--------+-------+
///      | kind  | socket | count |
///      +-------+--------+-------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CountBytes {
    kind: [u8; 4],
    socket: U32,
    count: U64,
}

assert_eq_size!(CountBytes, [u8; FRAME_BYTES]);

const ACK: [u8; 4] = *b"ACK\0";
const RESUME: [u8; 4] = *b"RES\0";

/// Tells the sender how many bytes of a socket the receiver has read. The receiver sends it on control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckFrame {
    /// Number of the socket in its connection: 1 is main, then come the lanes.
    pub socket: u32,
    /// Number of bytes since the connection was made.
    pub count: u64,
}

/// The first bytes in each direction of a new socket: how far the end that sends this frame has come in the other
/// direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeFrame {
    /// On main and lanes, the number of bytes that this end has read. On control, the number of buffers of which this
    /// end knows, wrapping at 2³².
    pub count: u64,
}

impl AckFrame {
    /// Returns whether bytes begin with an acknowledge, of which at least the kind has arrived.
    pub fn is_begun(bytes: &[u8]) -> bool {
        bytes.starts_with(&ACK)
    }

    /// Encodes the frame.
    pub fn to_bytes(&self) -> [u8; FRAME_BYTES] {
        let AckFrame { socket, count } = *self;
        transmute!(CountBytes { kind: ACK, socket: socket.into(), count: count.into() })
    }

    /// Decodes a frame that has [begun](Self::is_begun).
    pub fn parse(bytes: &[u8; FRAME_BYTES]) -> Self {
        let b: CountBytes = transmute!(*bytes);
        AckFrame { socket: b.socket.get(), count: b.count.get() }
    }
}

impl ResumeFrame {
    /// Encodes the frame.
    pub fn to_bytes(&self) -> [u8; FRAME_BYTES] {
        transmute!(CountBytes { kind: RESUME, socket: 0.into(), count: self.count.into() })
    }

    /// Decodes and checks a frame.
    pub fn parse(bytes: &[u8; FRAME_BYTES]) -> Result<Self, SocketFrameError> {
        let b: CountBytes = transmute!(*bytes);
        if b.kind != RESUME {
            return Err(SocketFrameError::Kind { got: b.kind, seq: 0 });
        }
        Ok(ResumeFrame { count: b.count.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_survive_the_wire(socket: u32, count: u64) {
            let ack = AckFrame { socket, count };
            prop_assert!(AckFrame::is_begun(&ack.to_bytes()));
            prop_assert_eq!(AckFrame::parse(&ack.to_bytes()), ack);
            let resume = ResumeFrame { count };
            prop_assert_eq!(ResumeFrame::parse(&resume.to_bytes()), Ok(resume));
            prop_assert!(ResumeFrame::parse(&ack.to_bytes()).is_err());
        }
    }
}
