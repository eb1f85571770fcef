//! What a receiving comm says over the stream when it closes: how far it got.
//!
//! The NIC's acknowledge of the last message may be lost, and with the receiver's process nobody is
//! left to repeat it. Then the stream, which the kernel delivers still, tells the sender which
//! messages have arrived.

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::conn::{Stream, StreamError};
use crate::error::Error;

const MAGIC: [u8; 8] = *b"\x89CLOSE\r\n";

/// The close notice on the wire, little-endian.
///
/// ```text
/// byte 0       8           16
///      +-------+-----------+
///      | magic | rows done |
///      +-------+-----------+
/// ```
///
/// All receives before number `rows_done`, counted from 0, are complete.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CloseNotice {
    magic: [u8; 8],
    rows_done: U64,
}

const NOTICE_BYTES: usize = size_of::<CloseNotice>();

assert_eq_size!(CloseNotice, [u8; 16]);

/// Tells the peer that this end closes, and that receives before number `rows_done` are complete.
/// A stream that does not take it has no peer to tell.
pub(super) fn send(stream: &mut impl Stream, rows_done: u64) {
    let notice = CloseNotice { magic: MAGIC, rows_done: rows_done.into() };
    let mut bytes = notice.as_bytes();
    while let Ok(sent @ 1..) = stream.send(bytes) {
        bytes = bytes.get(sent..).unwrap_or_default();
    }
}

/// Reads what comes over the stream of a comm.
#[derive(Default)]
pub(super) struct NoticeReader {
    bytes: [u8; NOTICE_BYTES],
    got: usize,
}

impl NoticeReader {
    /// How many receives the peer has completed, if it has said that it closes.
    pub(super) fn rows_done(&self) -> Option<u64> {
        let notice = CloseNotice::ref_from_bytes(&self.bytes).ok()?;
        (self.got == NOTICE_BYTES).then(|| notice.rows_done.get())
    }

    /// Reads what has come.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] after a notice, or at the end of the stream; [`Error::Unexpected`] for
    /// anything else.
    pub(super) fn read(&mut self, stream: &mut impl Stream) -> Result<(), Error> {
        while self.got < NOTICE_BYTES {
            match stream.recv(&mut self.bytes[self.got..]) {
                Ok(0) => return Ok(()),
                Ok(n) => self.got = NOTICE_BYTES.min(self.got + n),
                Err(error) => return Err(Error::PeerClosed(error)),
            }
            let head = self.got.min(MAGIC.len());
            if self.bytes[..head] != MAGIC[..head] {
                return Err(Error::Unexpected);
            }
        }
        Err(Error::PeerClosed(StreamError::Closed))
    }
}
