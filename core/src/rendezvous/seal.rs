//! Seals: a tag at the end of each message that only the two ends of its connection can make.

use hmac_sha256::HMAC;

use super::message::{HEADER_BYTES, RendezvousHeader, TAG_BYTES};
use crate::auth::{Secret, Session};

/// The end of a connection that sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The sender is a rank.
    Rank,
    /// The sender is the hub.
    Hub,
}

/// Makes the tags of one end's messages, or checks these tags at the other end. Each tag covers the
/// number of its message. So nobody can drop a message, repeat it, or pass it off as the other end's.
#[derive(Clone, Debug)]
pub struct Seal {
    key: Secret,
    count: u64,
}

impl Seal {
    /// Creates the seal of a new connection for the messages of `speaker`.
    pub fn new(session: &Session, speaker: Speaker) -> Self {
        let label = match speaker {
            Speaker::Rank => b"messages of a rank".as_slice(),
            Speaker::Hub => b"messages of the hub",
        };
        // A rendezvous has a secret, so each of its sessions has keys.
        let key = session.key(label, &[]).unwrap_or(Secret::PUBLIC);
        Seal { key, count: 0 }
    }

    /// Returns the header and the tag of the next message, whose body has at most
    /// [`SEALED_BYTES_MAX`](super::SEALED_BYTES_MAX) bytes.
    pub fn seal(
        &mut self,
        header: RendezvousHeader,
        body: &[u8],
    ) -> ([u8; HEADER_BYTES], [u8; TAG_BYTES]) {
        let header = RendezvousHeader { len: (body.len() + TAG_BYTES) as u32, ..header }.to_bytes();
        let tag = self.tag(&header, body);
        (header, tag)
    }

    /// Checks the next message and returns its body without the tag. `None` means that the tag is
    /// wrong.
    pub fn open<'a>(&mut self, header: RendezvousHeader, body: &'a [u8]) -> Option<&'a [u8]> {
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
