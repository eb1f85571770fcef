//! One message at a time, put together from however few bytes come at once.

/// Most bytes of a body.
pub const BODY_BYTES_MAX: usize = 1024;
/// Most bytes of a header.
const HEADER_BYTES_MAX: usize = 24;

/// A byte stream that is no stream of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// There is no such message.
    #[error("a message of unknown kind {0}")]
    Kind(u32),
    /// Larger than any body.
    #[error("a body of {0} bytes, at most {BODY_BYTES_MAX} are allowed")]
    Length(u32),
}

/// The bytes before a body.
pub(crate) trait FrameHeader: Copy {
    const BYTES: usize;
    /// From [`FrameHeader::BYTES`] bytes.
    fn parse(bytes: &[u8]) -> Result<Self, FrameError>;
    /// Bytes of the body; and of another that must be possible too.
    fn body_lens(&self) -> [u32; 2];
}

/// The message that is under way.
///
/// The caller reads the message piece by piece. [`Inbox::space`] never reaches past the end of a message.
/// So a file descriptor that comes with the bytes belongs to this message, and later messages stay in the
/// stream until there is room.
#[derive(Debug)]
pub(crate) struct Inbox<H> {
    header: Option<H>,
    bytes: [u8; HEADER_BYTES_MAX + BODY_BYTES_MAX],
    len: usize,
}

impl<H: FrameHeader> Inbox<H> {
    pub(crate) const fn new() -> Self {
        const { assert!(H::BYTES <= HEADER_BYTES_MAX) };
        Inbox { header: None, bytes: [0; HEADER_BYTES_MAX + BODY_BYTES_MAX], len: 0 }
    }

    fn end(&self) -> usize {
        H::BYTES + self.header.map_or(0, |header| header.body_lens()[0] as usize)
    }

    /// Where the next bytes belong; never empty.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        let end = self.end();
        &mut self.bytes[self.len..end]
    }

    /// `n` bytes have come into [`Inbox::space`]. Gives a message that is whole now, which makes
    /// room for the next.
    pub(crate) fn filled(&mut self, n: usize) -> Result<Option<(H, &[u8])>, FrameError> {
        self.len = self.len.saturating_add(n).min(self.end());
        if self.header.is_none() && self.len == H::BYTES {
            let header = H::parse(&self.bytes[..H::BYTES])?;
            if let Some(len) = header.body_lens().into_iter().find(|n| *n > BODY_BYTES_MAX as u32) {
                return Err(FrameError::Length(len));
            }
            self.header = Some(header);
        }
        let end = self.end();
        match self.header {
            Some(header) if self.len == end => {
                (self.header, self.len) = (None, 0);
                Ok(Some((header, &self.bytes[H::BYTES..end])))
            }
            _ => Ok(None),
        }
    }
}
