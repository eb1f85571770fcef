//! Chunks as messages.
//!
//! If a receive has room for exactly a chunk and a trailer, other receives of its transfer are posted
//! behind it. The received message ends with the trailer. Before the trailer comes a whole chunk, the
//! last bytes of the sender's transfer, or nothing.
//!
//! ```text
//! byte 0         len     len + 9          len + 17
//!      +---------+-------+----------------+
//!      | chunk   | magic | transfer bytes |   little-endian
//!      +---------+-------+----------------+
//! ```

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use super::{Chunk, Done};

/// Bytes of a trailer. The number is odd so that the room that asks for a trailer is odd as well.
/// Hardly any other receive has such a length.
pub const TRAILER_BYTES: usize = 17;

const MAGIC: [u8; 9] = *b"Invar:of\0";

/// The end of a message that is not the last of its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Bytes of the sender's transfer.
    pub of: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TrailerBytes {
    magic: [u8; 9],
    of: U64,
}

/// Bytes that do not begin with a trailer's magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the trailer of a staged chunk")]
pub struct NoTrailer;

assert_eq_size!(TrailerBytes, [u8; TRAILER_BYTES]);

impl Trailer {
    /// Converts the trailer to the bytes of the wire.
    pub fn to_bytes(self) -> [u8; TRAILER_BYTES] {
        transmute!(TrailerBytes { magic: MAGIC, of: self.of.into() })
    }

    /// Reads a trailer from the bytes of the wire.
    pub fn from_bytes(bytes: [u8; TRAILER_BYTES]) -> Result<Self, NoTrailer> {
        let TrailerBytes { magic, of } = transmute!(bytes);
        if magic == MAGIC { Ok(Trailer { of: of.get() }) } else { Err(NoTrailer) }
    }

    /// Length of a receive that asks for a trailer: the receive of a chunk that is not the last.
    pub const fn room(chunk_bytes: u32) -> u32 {
        chunk_bytes + TRAILER_BYTES as u32
    }
}

impl<T> Chunk<'_, T> {
    /// The result of a stage that involves no peer: all bytes of the chunk have moved.
    pub fn own(&self) -> Done {
        Done { bytes: self.len, of: Some(self.of) }
    }

    /// Bytes of the receive to post for this chunk.
    pub fn room(&self) -> u32 {
        if self.is_last { self.len } else { Trailer::room(self.chunk_bytes) }
    }

    /// The result of receiving a message of `came` bytes. `read` returns the [`TRAILER_BYTES`] bytes at
    /// an offset of the message.
    pub fn received(
        &self,
        came: u32,
        read: impl FnOnce(usize) -> Option<[u8; TRAILER_BYTES]>,
    ) -> Done {
        let bytes = came.checked_sub(TRAILER_BYTES as u32).filter(|_| !self.is_last);
        let trailer = bytes.and_then(|bytes| {
            let Trailer { of } = Trailer::from_bytes(read(bytes as usize)?).ok()?;
            Some(Done { bytes, of: Some(of) })
        });
        trailer.unwrap_or(Done { bytes: came, of: None })
    }

    /// Whether the message of a chunk has a trailer when it is sent into a receive of `room` bytes.
    /// `None` if the chunk does not fit this receive.
    pub fn trailer_into(&self, room: u32) -> Option<bool> {
        if room == Trailer::room(self.chunk_bytes) {
            Some(true)
        } else {
            (self.is_last && self.len <= room).then_some(false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_trailer_survives_the_wire_and_nothing_else_is_one(of: u64, at in 0..9_usize, bit in 0..8) {
            let mut bytes = Trailer { of }.to_bytes();
            prop_assert_eq!(Trailer::from_bytes(bytes), Ok(Trailer { of }));
            bytes[at] ^= 1_u8 << bit;
            prop_assert_eq!(Trailer::from_bytes(bytes), Err(NoTrailer));
        }
    }

    #[test]
    fn a_trailer_is_a_word_of_its_own_and_a_length() {
        assert_eq!(Trailer { of: 0x0102 }.to_bytes(), *b"Invar:of\0\x02\x01\0\0\0\0\0\0");
    }

    #[test]
    fn a_chunk_goes_where_another_is_awaited_or_where_it_fits_as_the_last() {
        let chunk = |len, is_last| Chunk {
            data: &(),
            slot: 0,
            offset: 0,
            len,
            is_last,
            of: 300,
            chunk_bytes: 100,
        };
        let rooms = |chunk: Chunk<'_, ()>| [99, 100, 116, 117, 118].map(|r| chunk.trailer_into(r));
        let all = [None, None, None, Some(true), None];
        assert_eq!(rooms(chunk(100, false)), all);
        let ordinary = Some(false);
        assert_eq!(rooms(chunk(100, true)), [None, ordinary, ordinary, Some(true), ordinary]);
        assert_eq!(rooms(chunk(0, true))[0], ordinary);
        assert_eq!((chunk(100, false).room(), chunk(100, true).room()), (117, 100));
    }
}
