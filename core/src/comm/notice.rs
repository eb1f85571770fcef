//! The close notice: a closing receiver tells the sender over the stream how many receives are
//! complete.
//!
//! The NIC's acknowledge of the last message may be lost. Once the receiver's process has ended, nobody
//! repeats that acknowledge. The kernel still delivers the stream, so the stream tells the sender which
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

/// Tells the peer that this end closes, and that all receives before number `rows_done` are complete.
/// If the stream does not take the notice, no peer is left, and the rest is dropped.
pub(super) fn send(stream: &mut impl Stream, rows_done: u64) {
    let notice = CloseNotice { magic: MAGIC, rows_done: rows_done.into() };
    let mut bytes = notice.as_bytes();
    while let Ok(sent @ 1..) = stream.send(bytes) {
        bytes = bytes.get(sent..).unwrap_or_default();
    }
}

/// Reads a close notice from the stream of a comm.
#[derive(Default)]
pub(super) struct NoticeReader {
    bytes: [u8; NOTICE_BYTES],
    got: usize,
}

impl NoticeReader {
    /// The number of receives that the peer has completed, if the peer has sent its close notice.
    pub(super) fn rows_done(&self) -> Option<u64> {
        let notice = CloseNotice::ref_from_bytes(&self.bytes).ok()?;
        (self.got == NOTICE_BYTES).then(|| notice.rows_done.get())
    }

    /// Reads the bytes that have arrived.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] after a notice, or at the end of the stream; [`Error::Unexpected`] for any
    /// other bytes.
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
