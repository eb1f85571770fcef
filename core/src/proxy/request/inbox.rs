//! One message at a time, put together from however few bytes come at once.

use super::wire::{BODY_BYTES_MAX, REQUEST_BYTES};

/// The larger of the headers, and a body.
const BYTES_MAX: usize = REQUEST_BYTES + BODY_BYTES_MAX;

/// A byte stream that is no stream of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// There is no such request.
    #[error("a request of unknown kind {0}")]
    Kind(u32),
    /// Larger than any body.
    #[error("a body of {0} bytes, at most {BODY_BYTES_MAX} are allowed")]
    Length(u32),
}

/// What stands before a body.
pub(super) trait Header: Copy {
    const BYTES: usize;
    /// From [`Header::BYTES`] bytes.
    fn parse(bytes: &[u8]) -> Result<Self, FrameError>;
    /// Bytes of the body; and of another that must be possible too.
    fn body_lens(&self) -> [u32; 2];
}

/// The message that is under way.
///
/// It is read piece by piece: [`Inbox::space`] never reaches past the end of a message, so what
/// comes with it (a file descriptor) is known to be part of it, and what follows stays in the
/// stream until there is room.
#[derive(Debug)]
pub(super) struct Inbox<H> {
    header: Option<H>,
    bytes: [u8; BYTES_MAX],
    len: usize,
}

impl<H: Header> Inbox<H> {
    pub(super) const fn new() -> Self {
        Inbox { header: None, bytes: [0; BYTES_MAX], len: 0 }
    }

    fn end(&self) -> usize {
        H::BYTES + self.header.map_or(0, |header| header.body_lens()[0] as usize)
    }

    /// Where the next bytes belong; never empty.
    pub(super) fn space(&mut self) -> &mut [u8] {
        let end = self.end();
        &mut self.bytes[self.len..end]
    }

    /// `n` bytes have come into [`Inbox::space`]. Gives a message that is whole now, which makes
    /// room for the next.
    pub(super) fn filled(&mut self, n: usize) -> Result<Option<(H, &[u8])>, FrameError> {
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
