//! What goes over a connection with the hub, little-endian.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::seal::SEALED_BYTES_MAX;
use crate::inbox::{self, BODY_BYTES_MAX, FrameError, Inbox};

/// Bytes of a message before its body.
pub const HEADER_BYTES: usize = size_of::<HeaderBytes>();
/// In place of a rank: none, or all.
pub const NOBODY: u32 = u32::MAX;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// Rank to hub, first of all: who it is.
    Join = 2,
    /// Hub to rank: it is in.
    Welcome = 3,
    /// Hub to rank: it is not; why, in words.
    Refused = 4,
    /// Hub to rank: all are there; `tag` is the rank in whose process the hub is, or [`NOBODY`], and the
    /// body is the communicator's random id.
    Started = 5,
    /// From one rank to another, or to all others; passed on by the hub.
    Blob = 6,
    /// Rank `from` can't go on, or is gone: why, in words.
    Failed = 7,
    /// Rank `from` is done.
    Left = 8,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Join,
        Kind::Welcome,
        Kind::Refused,
        Kind::Started,
        Kind::Blob,
        Kind::Failed,
        Kind::Left,
    ];
}

/// What stands before a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is about.
    pub kind: Kind,
    /// The rank that it is from or about; [`NOBODY`] is the hub.
    pub from: u32,
    /// The rank that it is for; [`NOBODY`] is all others.
    pub to: u32,
    /// Tells a rank's blobs apart.
    pub tag: u32,
    /// Bytes of the body and its tag, at most 1024.
    pub len: u32,
}

/// ```text
/// 0      4      8    12    16    20
/// | kind | from | to | tag | len | body …
/// ```
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderBytes {
    kind: U32,
    from: U32,
    to: U32,
    tag: U32,
    len: U32,
}
static_assertions::const_assert_eq!(HEADER_BYTES, 20);

impl Header {
    /// Of a message from the hub, or to it, with a body of `len` bytes.
    pub const fn new(kind: Kind, len: usize) -> Self {
        Header { kind, from: NOBODY, to: NOBODY, tag: 0, len: len as u32 }
    }

    /// As they go over the wire.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        zerocopy::transmute!(HeaderBytes {
            kind: U32::new(self.kind as u32),
            from: U32::new(self.from),
            to: U32::new(self.to),
            tag: U32::new(self.tag),
            len: U32::new(self.len),
        })
    }
}

impl inbox::Header for Header {
    const BYTES: usize = HEADER_BYTES;

    fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let Ok(raw) = HeaderBytes::read_from_bytes(bytes) else {
            return Err(FrameError::Kind(0));
        };
        let code = raw.kind.get();
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u32 == code);
        Ok(Header {
            kind: kind.ok_or(FrameError::Kind(code))?,
            from: raw.from.get(),
            to: raw.to.get(),
            tag: raw.tag.get(),
            len: raw.len.get(),
        })
    }

    fn body_lens(&self) -> [u32; 2] {
        [self.len; 2]
    }
}

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What stands before the body.
    pub header: Header,
    /// The rest.
    pub body: heapless::Vec<u8, BODY_BYTES_MAX>,
}

impl Message {
    /// From the hub, or to it, about nobody. What is longer than a body before its tag is cut off.
    pub fn new(kind: Kind, body: &[u8]) -> Self {
        let body = &body[..body.len().min(SEALED_BYTES_MAX)];
        // It fits.
        let body = heapless::Vec::from_slice(body).unwrap_or_default();
        Message { header: Header::new(kind, body.len()), body }
    }
}

/// Messages out of a byte stream.
#[derive(Debug)]
pub struct Incoming(Inbox<Header>);

impl Default for Incoming {
    fn default() -> Self {
        Incoming(Inbox::new())
    }
}

impl Incoming {
    /// Where the next bytes of the stream belong; never empty, and never past the end of a message.
    pub fn space(&mut self) -> &mut [u8] {
        self.0.space()
    }

    /// `n` bytes have come into [`space`](Self::space). Gives a message that is whole now.
    pub fn filled(&mut self, n: usize) -> Result<Option<(Header, &[u8])>, FrameError> {
        self.0.filled(n)
    }
}
