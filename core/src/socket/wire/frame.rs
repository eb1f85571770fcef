//! Frames: the messages by which both ends announce payload and buffers on an open connection.

use core::fmt;

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use crate::socket::{AHEAD_BYTES, AHEAD_MESSAGES};

/// Length of a frame in bytes.
pub const FRAME_BYTES: usize = 16;

/// Byte layout of a frame, little-endian.
///
/// ```text
/// byte 0       4      8      12     16
///      +-------+------+------+------+
///      | kind  | seq  | len  | tag  |   a short message's payload follows
///      +-------+------+------+------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FrameBytes {
    kind: [u8; 4],
    seq: U32,
    len: U32,
    tag: U32,
}

assert_eq_size!(FrameBytes, [u8; FRAME_BYTES]);

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// The sender announces a message. Its buffer must have room for the whole message.
    Message,
    /// The sender announces a message. The receiver takes as much of it as fits into its buffer.
    MessageToFit,
    /// The receiver announces a posted buffer.
    Buffer,
}

/// Announces a message that follows, or a buffer that waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Number of the frame among those of its direction, from 0, wrapping.
    pub seq: u32,
    /// Length of the message, or room in the buffer, in bytes, at most 2³¹ − 1.
    pub len: u32,
    /// Tag of the message or buffer.
    pub tag: u32,
}

/// A frame that no working peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketFrameError {
    /// The frame is not of the kind that this socket carries.
    Kind {
        /// First bytes of the frame.
        got: [u8; 4],
        /// Sequence number that the frame should have had.
        seq: u32,
    },
    /// The frame is out of order.
    Seq {
        /// Sequence number of the frame.
        got: u32,
        /// Sequence number that the frame should have had.
        want: u32,
    },
    /// The length exceeds the maximum length of a message.
    Len(u32),
    /// The sender must not send this message before its buffer is posted.
    Ahead {
        /// Length of the message in bytes.
        len: u32,
        /// Number of bytes that wait for their buffers already.
        waiting: u32,
    },
    /// The peer posted more buffers than it may at a time.
    Buffers,
    /// The peer says that more has reached it than was sent, or less than it had said before.
    Count {
        /// Number that the peer said.
        got: u64,
        /// Smallest and largest number that can be.
        range: [u64; 2],
    },
}

impl FrameKind {
    const fn bytes(self) -> [u8; 4] {
        match self {
            FrameKind::Message => *b"MSG\0",
            FrameKind::MessageToFit => *b"FIT\0",
            FrameKind::Buffer => *b"BUF\0",
        }
    }
}

impl Frame {
    /// Encodes the frame.
    pub fn to_bytes(&self) -> [u8; FRAME_BYTES] {
        transmute!(FrameBytes {
            kind: self.kind.bytes(),
            seq: self.seq.into(),
            len: self.len.into(),
            tag: self.tag.into(),
        })
    }

    /// Decodes a frame that should have this kind and this sequence number.
    pub fn parse(
        bytes: &[u8; FRAME_BYTES],
        kind: FrameKind,
        seq: u32,
    ) -> Result<Self, SocketFrameError> {
        let b: FrameBytes = transmute!(*bytes);
        if b.kind != kind.bytes() {
            return Err(SocketFrameError::Kind { got: b.kind, seq });
        }
        if b.seq.get() != seq {
            return Err(SocketFrameError::Seq { got: b.seq.get(), want: seq });
        }
        if b.len.get() > i32::MAX as u32 {
            return Err(SocketFrameError::Len(b.len.get()));
        }
        Ok(Frame { kind, seq, len: b.len.get(), tag: b.tag.get() })
    }

    /// Decodes a message frame of either kind that should have this sequence number.
    pub fn parse_message(bytes: &[u8; FRAME_BYTES], seq: u32) -> Result<Self, SocketFrameError> {
        let to_fit = bytes.starts_with(&FrameKind::MessageToFit.bytes());
        let kind = if to_fit { FrameKind::MessageToFit } else { FrameKind::Message };
        Frame::parse(bytes, kind, seq)
    }
}

impl fmt::Display for SocketFrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketFrameError::Kind { got, seq } => {
                write!(f, "the peer's frame {seq} begins with {got:02x?}, which is none")
            }
            SocketFrameError::Seq { got, want } => {
                write!(f, "the peer's frame {want} says that it is number {got}")
            }
            SocketFrameError::Len(len) => write!(
                f,
                "the peer's frame speaks of {len} bytes, more than a message may have ({})",
                i32::MAX
            ),
            SocketFrameError::Ahead { len, waiting } => write!(
                f,
                "the peer sent {len} bytes without a buffer posted for them, where {waiting} wait \
                 for theirs already ({AHEAD_BYTES} in {AHEAD_MESSAGES} messages may)"
            ),
            SocketFrameError::Buffers => {
                f.write_str("the peer posted more buffers than it may at a time")
            }
            SocketFrameError::Count { got, range: [least, most] } => write!(
                f,
                "the peer says that {got} bytes or buffers have reached it, where only {least} to \
                 {most} can have"
            ),
        }
    }
}

impl core::error::Error for SocketFrameError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_is_four_words() {
        let frame = Frame { kind: FrameKind::Message, seq: 0x0102, len: 0x7fff_ffff, tag: 7 };
        assert_eq!(frame.to_bytes(), *b"MSG\0\x02\x01\0\0\xff\xff\xff\x7f\x07\0\0\0");
        let buffer = Frame { kind: FrameKind::Buffer, ..frame };
        assert_eq!(buffer.to_bytes()[..4], *b"BUF\0");
        let to_fit = Frame { kind: FrameKind::MessageToFit, ..frame };
        assert_eq!(to_fit.to_bytes()[..4], *b"FIT\0");
        for message in [frame, to_fit] {
            assert_eq!(Frame::parse_message(&message.to_bytes(), 0x0102), Ok(message));
        }
        assert!(Frame::parse_message(&buffer.to_bytes(), 0x0102).is_err());
    }

    proptest! {
        #[test]
        fn a_frame_survives_the_wire_and_is_refused_in_anothers_place(
            is_message: bool, seq: u32, len in 0..=i32::MAX as u32, tag: u32, other: u32,
        ) {
            let (kind, other_kind) = if is_message {
                (FrameKind::Message, FrameKind::Buffer)
            } else {
                (FrameKind::Buffer, FrameKind::Message)
            };
            let frame = Frame { kind, seq, len, tag };
            let bytes = frame.to_bytes();
            prop_assert_eq!(Frame::parse(&bytes, kind, seq), Ok(frame));
            let got = kind.bytes();
            prop_assert_eq!(
                Frame::parse(&bytes, other_kind, seq),
                Err(SocketFrameError::Kind { got, seq })
            );
            if other != seq {
                let error = SocketFrameError::Seq { got: seq, want: other };
                prop_assert_eq!(Frame::parse(&bytes, kind, other), Err(error));
            }
        }

        #[test]
        fn no_bytes_make_a_frame_that_is_too_long(mut bytes: [u8; FRAME_BYTES]) {
            bytes[..4].copy_from_slice(b"MSG\0");
            bytes[4..8].fill(0);
            let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
            match Frame::parse(&bytes, FrameKind::Message, 0) {
                Ok(frame) => prop_assert_eq!(frame.len, len),
                Err(error) => {
                    prop_assert!(len > i32::MAX as u32);
                    prop_assert_eq!(error, SocketFrameError::Len(len));
                }
            }
        }
    }
}
