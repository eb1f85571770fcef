//! Messages between a rank and the hub, little-endian on the wire.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::inbox::{self, BODY_BYTES_MAX, FrameError, Inbox};

/// Length of the header before a message's body, in bytes.
pub const HEADER_BYTES: usize = size_of::<HeaderBytes>();
/// Length of a tag in bytes. The tag is the last part of a body.
pub const TAG_BYTES: usize = 16;
/// Maximum length of a body without its tag, in bytes.
pub const SEALED_BYTES_MAX: usize = BODY_BYTES_MAX - TAG_BYTES;
/// Stands in place of a rank: no rank, or all ranks.
pub const NOBODY: u32 = u32::MAX;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum RendezvousKind {
    /// Rank to hub, the first message: the rank says who it is. `tag` is the time in ms after which the hub is to
    /// give up the rank's host if it is silent.
    Join = 2,
    /// Hub to rank: the rank has joined.
    Welcome = 3,
    /// Hub to rank: the rank has not joined. The body says why, in words.
    Refused = 4,
    /// Hub to rank: all ranks have joined. `tag` is the rank in whose process the hub runs, or
    /// [`NOBODY`]. The body is the communicator's random id.
    Started = 5,
    /// From one rank to another, or to all others. The hub forwards the message.
    Blob = 6,
    /// Rank `from` cannot go on, or is gone. `tag` is one more than the rank at fault, or 0 if that is `from`.
    /// The body says why, in words.
    Failed = 7,
    /// Rank `from` is done.
    Left = 8,
    /// Rank to hub: what the rank does. The body is a [`RankView`](super::RankView).
    View = 9,
    /// Hub to rank: the rank is to send its view.
    Ask = 10,
    /// Hub to rank: why the ranks do not go on. The body is the milliseconds of the longest wait, the rank at
    /// fault or [`NOBODY`], and a sentence. The tag is 1 if ranks run different operations.
    Verdict = 11,
}

impl RendezvousKind {
    const ALL: [RendezvousKind; 10] = [
        RendezvousKind::Join,
        RendezvousKind::Welcome,
        RendezvousKind::Refused,
        RendezvousKind::Started,
        RendezvousKind::Blob,
        RendezvousKind::Failed,
        RendezvousKind::Left,
        RendezvousKind::View,
        RendezvousKind::Ask,
        RendezvousKind::Verdict,
    ];
}

/// Header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousHeader {
    /// Kind of the message.
    pub kind: RendezvousKind,
    /// Rank that the message is from or about. [`NOBODY`] is the hub.
    pub from: u32,
    /// Rank that the message is for. [`NOBODY`] is all other ranks.
    pub to: u32,
    /// Tells the blobs of one rank apart.
    pub tag: u32,
    /// Length of the body and its tag in bytes, at most 1024.
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

impl RendezvousHeader {
    /// Builds the header of a message from the hub or to the hub, with a body of `len` bytes.
    pub const fn new(kind: RendezvousKind, len: usize) -> Self {
        RendezvousHeader { kind, from: NOBODY, to: NOBODY, tag: 0, len: len as u32 }
    }

    /// Encodes the header.
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

impl inbox::FrameHeader for RendezvousHeader {
    const BYTES: usize = HEADER_BYTES;

    fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let Ok(raw) = HeaderBytes::read_from_bytes(bytes) else {
            return Err(FrameError::Kind(0));
        };
        let code = raw.kind.get();
        let kind = RendezvousKind::ALL.into_iter().find(|kind| *kind as u32 == code);
        Ok(RendezvousHeader {
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

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousMessage {
    /// Header of the message.
    pub header: RendezvousHeader,
    /// Body of the message.
    pub body: heapless::Vec<u8, BODY_BYTES_MAX>,
}

impl RendezvousMessage {
    /// Builds a message from the hub or to the hub, about no rank. A body that exceeds
    /// [`SEALED_BYTES_MAX`] is cut.
    pub fn new(kind: RendezvousKind, body: &[u8]) -> Self {
        let body = &body[..body.len().min(SEALED_BYTES_MAX)];
        // The body fits, because it was cut.
        let body = heapless::Vec::from_slice(body).unwrap_or_default();
        RendezvousMessage { header: RendezvousHeader::new(kind, body.len()), body }
    }
}

/// Splits a byte stream into messages.
#[derive(Debug)]
pub struct Incoming(Inbox<RendezvousHeader>);

impl Default for Incoming {
    fn default() -> Self {
        Incoming(Inbox::new())
    }
}

impl Incoming {
    /// Space for the next bytes of the stream. The space is never empty and never goes past the end of
    /// a message.
    pub fn space(&mut self) -> &mut [u8] {
        self.0.space()
    }

    /// Notes that `n` bytes have arrived in [`space`](Self::space), and returns the message if it is
    /// complete now.
    ///
    /// # Errors
    /// The header is not valid.
    pub fn filled(&mut self, n: usize) -> Result<Option<(RendezvousHeader, &[u8])>, FrameError> {
        self.0.filled(n)
    }
}
