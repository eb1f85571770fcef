//! Seals: each message ends with a tag that only the two ends of its connection can make.

use hmac_sha256::HMAC;

use super::message::{HEADER_BYTES, Header};
use crate::auth::{Secret, Session};
use crate::inbox::BODY_BYTES_MAX;

/// Bytes of a tag, which are the last of a body.
pub const TAG_BYTES: usize = 16;
/// Most bytes of a body before its tag.
pub const SEALED_BYTES_MAX: usize = BODY_BYTES_MAX - TAG_BYTES;

/// Which end of a connection says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// A rank.
    Rank,
    /// The hub.
    Hub,
}

/// Seals the messages of one end, or opens them at the other. Each has its number in its tag, so that
/// none can be left out, said twice, or said by the other end.
#[derive(Clone, Debug)]
pub struct Seal {
    key: Secret,
    count: u64,
}

impl Seal {
    /// Of a connection that is new.
    pub fn new(session: &Session, speaker: Speaker) -> Self {
        let label = match speaker {
            Speaker::Rank => b"messages of a rank".as_slice(),
            Speaker::Hub => b"messages of the hub",
        };
        // A rendezvous has a secret, so its sessions have keys.
        let key = session.key(label, &[]).unwrap_or(Secret::PUBLIC);
        Seal { key, count: 0 }
    }

    /// The header and the tag of the next message, of at most [`SEALED_BYTES_MAX`].
    pub fn seal(&mut self, header: Header, body: &[u8]) -> ([u8; HEADER_BYTES], [u8; TAG_BYTES]) {
        let header = Header { len: (body.len() + TAG_BYTES) as u32, ..header }.to_bytes();
        let tag = self.tag(&header, body);
        (header, tag)
    }

    /// The body of the next message without its tag; `None` where that is not right.
    pub fn open<'a>(&mut self, header: Header, body: &'a [u8]) -> Option<&'a [u8]> {
        let (body, tag) = body.split_last_chunk::<TAG_BYTES>()?;
        let expected = self.tag(&header.to_bytes(), body);
        let differ = expected.iter().zip(tag).fold(0, |differ, (a, b)| differ | (a ^ b));
        (core::hint::black_box(differ) == 0).then_some(body)
    }

    fn tag(&mut self, header: &[u8; HEADER_BYTES], body: &[u8]) -> [u8; TAG_BYTES] {
        let mut mac = HMAC::new(self.key.as_bytes());
        mac.update(self.count.to_le_bytes());
        mac.update(header);
        mac.update(body);
        self.count += 1;
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&mac.finalize()[..TAG_BYTES]);
        tag
    }
}
