//! The messages of the proof exchange: from each end a hello, then a proof.

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use super::{AuthError, NO_SERVICE, NONCE_BYTES, Nonce, Service};
use crate::conn::{Stream, StreamError};

/// Version of this exchange and of everything after it. Other versions are incompatible.
pub const VERSION: u16 = 4;
/// Bytes of a hello.
pub const HELLO_BYTES: usize = size_of::<HelloBytes>();
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// The first bytes of a hello. These bytes are no text and no QP info of NCCL, whose first word would
/// be a LID above 0xffff.
const MAGIC: [u8; 8] = *b"\x89INVAR\r\n";

/// A hello on the wire, little-endian.
///
/// ```text
/// byte 0      8        10        12     16      32
///      +------+--------+---------+------+-------+
///      |magic |version | service | zero | nonce |
///      +------+--------+---------+------+-------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HelloBytes {
    magic: [u8; 8],
    version: U16,
    service: U16,
    zero: U32,
    nonce: [u8; NONCE_BYTES],
}

assert_eq_size!(HelloBytes, [u8; 32]);

/// The first message of each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    version: u16,
    service: u16,
    nonce: Nonce,
}

impl Hello {
    /// Creates a hello of this version.
    pub const fn new(service: Service, nonce: Nonce) -> Self {
        Hello { version: VERSION, service: service as u16, nonce }
    }

    /// Creates the hello of a listener that does not know the session of its caller.
    pub(super) const fn of_unknown_session(nonce: Nonce) -> Self {
        Hello { version: VERSION, service: NO_SERVICE, nonce }
    }

    /// Whether the sender of this hello asks for a session by its name.
    pub(super) fn names_session(&self) -> bool {
        self.version == VERSION && self.service == Service::Resume as u16
    }

    /// Converts the hello to the bytes of the wire.
    pub fn to_bytes(&self) -> [u8; HELLO_BYTES] {
        transmute!(HelloBytes {
            magic: MAGIC,
            version: self.version.into(),
            service: self.service.into(),
            zero: U32::ZERO,
            nonce: self.nonce,
        })
    }

    /// Reads a peer's hello of any version and service.
    ///
    /// # Errors
    /// [`AuthError::Magic`] if the bytes do not begin with Invar's magic.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Result<Self, AuthError> {
        Self::check_head(bytes)?;
        let HelloBytes { version, service, nonce, .. } = transmute!(*bytes);
        Ok(Hello { version: version.get(), service: service.get(), nonce })
    }

    /// The version of a hello that begins with these bytes. `None` if they do not begin a hello, or if
    /// the version has not arrived yet.
    pub fn version_of(bytes: &[u8]) -> Option<u16> {
        let version = bytes.strip_prefix(&MAGIC)?.first_chunk()?;
        Some(u16::from_le_bytes(*version))
    }

    /// Checks the first bytes of a hello early, since a peer of another kind may never send a whole
    /// one.
    fn check_head(bytes: &[u8]) -> Result<(), AuthError> {
        let n = bytes.len().min(MAGIC.len());
        if bytes[..n] == MAGIC[..n] {
            return Ok(());
        }
        let mut head = [0; MAGIC.len()];
        head[..n].copy_from_slice(&bytes[..n]);
        Err(AuthError::Magic(head))
    }

    /// Checks that an end for the service `ours` can continue with the sender of this hello.
    pub(super) fn check(&self, ours: Service) -> Result<(), AuthError> {
        if self.version != VERSION {
            Err(AuthError::Version(self.version))
        } else if ours == Service::Resume && self.service == NO_SERVICE {
            Err(AuthError::UnknownSession)
        } else if self.service != ours as u16 {
            Err(AuthError::Service { ours, theirs: self.service })
        } else {
            Ok(())
        }
    }
}

/// A hello or a proof on its way in or out, resumable at any byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct AuthMessage {
    bytes: [u8; HELLO_BYTES],
    moved: u8,
}

assert_eq_size!([u8; HELLO_BYTES], [u8; PROOF_BYTES]);

impl AuthMessage {
    /// A message to receive.
    pub(super) const EMPTY: AuthMessage = AuthMessage::out([0; HELLO_BYTES]);

    /// Creates a message to send.
    pub(super) const fn out(bytes: [u8; HELLO_BYTES]) -> Self {
        AuthMessage { bytes, moved: 0 }
    }

    /// Sends the rest of the message; returns whether all of it is sent.
    pub(super) fn send(&mut self, stream: &mut impl Stream) -> Result<bool, StreamError> {
        while let left @ [_, ..] = &self.bytes[self.moved.into()..] {
            match stream.send(left)? {
                0 => return Ok(false),
                n => self.moved += n.min(left.len()) as u8,
            }
        }
        Ok(true)
    }

    /// The bytes of the message, once all of them have arrived.
    pub(super) fn recv(
        &mut self,
        stream: &mut impl Stream,
    ) -> Result<Option<[u8; HELLO_BYTES]>, StreamError> {
        while let left @ [_, ..] = &mut self.bytes[self.moved.into()..] {
            match stream.recv(left)? {
                0 => return Ok(None),
                n => self.moved += n.min(left.len()) as u8,
            }
        }
        Ok(Some(self.bytes))
    }

    /// The received hello, once all of it has arrived.
    pub(super) fn recv_hello(
        &mut self,
        stream: &mut impl Stream,
    ) -> Result<Option<Hello>, AuthError> {
        let received = self.recv(stream);
        Hello::check_head(&self.bytes[..self.moved.into()])?;
        received?.map(|bytes| Hello::parse(&bytes)).transpose()
    }
}
