//! Authentication: both ends of a TCP connection prove that they know a secret, without revealing it.
//!
//! This exchange comes first on every connection between Invar's own ends. A caller that has not proved
//! itself costs a socket and an [`Answering`]. Nothing else is allocated, created or read for it.
//!
//! ```text
//! caller                                      listener
//!   Hello { magic, version, service, nonce }  →
//!                                             ←  Hello { magic, version, service, nonce }
//!   Proof                                     →
//!                                             ←  Proof
//! ```
//!
//! A caller that makes a connection anew ([`Service::Resume`]) sends the [`SessionId`] right after its hello.
//! The secret is then that of this session.
//!
//! A proof is an HMAC-SHA-256 with the secret as its key. The proof covers both hellos and the side
//! that gives the proof. The caller gives its proof first, so a listener tells strangers nothing that
//! depends on the secret. Both nonces are random, so no proof can be used twice. Secret and hellos also
//! determine the [`Session`]. Both ends derive further values from the session, and need not send these
//! values.

mod answering;
mod calling;
mod wire;

use core::fmt;

use crate::conn::StreamError;
use crate::conn::stage::Side;
use crate::roce::Psn;
use crate::secret::mac;

pub use crate::secret::{SECRET_BYTES, Secret};
pub use answering::Answering;
pub use calling::Calling;
pub use wire::{HELLO_BYTES, Hello, PROOF_BYTES, VERSION};

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 16;

/// Random bytes, new for each connection.
pub type Nonce = [u8; NONCE_BYTES];

/// The purpose of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Service {
    /// Connections over a NIC ([`crate::conn`]).
    Rdma = 1,
    /// Connections over TCP ([`crate::socket`]).
    Tcp = 2,
    /// The hub of a communicator ([`crate::rendezvous`]).
    Rendezvous = 3,
    /// A server of the command `invar perf`.
    Perf = 4,
    /// Connections that are made anew beside queue pairs that live ([`Resume`]).
    Resume = 5,
}

/// The service of a listener that does not know the session of its caller.
const NO_SERVICE: u16 = 0;

impl Service {
    fn name(code: u16) -> Option<&'static str> {
        Some(match code {
            1 => "connections over a NIC",
            2 => "connections over TCP",
            3 => "the rendezvous of a communicator",
            4 => "invar perf",
            5 => "connections that are made anew",
            _ => return None,
        })
    }
}

/// A connection whose two ends have proved themselves to each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Session(Option<Secret>);

impl Session {
    /// The session on NCCL's wire, where nobody proves anything.
    pub const UNKNOWN_PEER: Session = Session(None);

    fn new(secret: &Secret, caller: &Hello, listener: &Hello) -> Self {
        Session(Some(Secret::new(transcript(secret, b"session", caller, listener))))
    }

    /// Derives a key for one purpose; `None` if the ends share no secret.
    pub fn key(&self, label: &[u8], context: &[u8]) -> Option<Secret> {
        Some(self.0?.derive(label, context))
    }

    /// A number that tells the session from others, and is no secret; 0 if the ends share no secret.
    pub fn number(&self) -> u64 {
        let key = self.key(b"number", b"");
        key.and_then(|key| key.as_bytes().first_chunk().copied()).map_or(0, u64::from_le_bytes)
    }

    /// The secret and session from which both ends make the connection anew; `None` if they share no secret.
    pub fn resume(&self) -> Option<Resume> {
        let id = SessionId(*self.key(b"resume id", b"")?.as_bytes());
        Some(Resume { id, secret: self.key(b"resume", b"")? })
    }

    /// The session of the other direction of the connection, where each direction is made anew by itself.
    pub(crate) fn way_back(&self) -> Session {
        Session(self.key(b"way back", b""))
    }

    /// Derives a key for queue pairs that have been replaced `attempt` times.
    pub(crate) fn qp_key(&self, label: &[u8], context: &[u8], attempt: u32) -> Option<Secret> {
        let key = self.key(label, context)?;
        Some(if attempt == 0 { key } else { key.derive(b"attempt", &attempt.to_le_bytes()) })
    }

    /// The first packet sequence number that one end sends on its queue pair number `index`; 0 if the
    /// ends share no secret. `attempt` says how often the queue pairs have been replaced.
    pub fn first_psn(&self, sender: Side, index: u32, attempt: u32) -> u32 {
        let context = [sender as u8, index as u8, (index >> 8) as u8];
        let key = self.qp_key(b"first PSN", &context, attempt);
        let Some(key) = key else { return 0 };
        let [a, b, c, ..] = *key.as_bytes();
        u32::from_le_bytes([a, b, c, 0]) & Psn::MASK
    }
}

/// The name of a session, by which a caller asks for it. The name is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub(crate) [u8; SECRET_BYTES]);

/// The name of a session, and the secret with which its ends prove themselves when they make their
/// connection anew. Nobody else can derive them.
#[derive(Clone, Debug)]
pub struct Resume {
    /// The name of the session.
    pub id: SessionId,
    /// The secret of both ends.
    pub secret: Secret,
}

impl fmt::Debug for Session {
    /// Hides the session's key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Session(…)" } else { "Session::UNKNOWN_PEER" })
    }
}

/// The reason why an end does not accept the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthError {
    /// The stream failed.
    Stream(StreamError),
    /// The first bytes are not those of Invar's hello.
    Magic([u8; 8]),
    /// The peer speaks another version of this exchange: the peer's version.
    Version(u16),
    /// Listener and caller are for different services.
    Service {
        /// Service of this end.
        ours: Service,
        /// Code of the peer's service.
        theirs: u16,
    },
    /// The peer does not know the secret.
    Secret,
    /// The listener does not know the session that the caller wants to resume.
    UnknownSession,
    /// The listener closed the connection before it proved itself.
    HungUp,
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthError::Stream(error) => error.fmt(f),
            AuthError::Magic(got) => write!(
                f,
                "it begins with {got:02x?}, which is not Invar's hello; if it is NCCL 2.14, set \
                 INVAR_WIRE=nccl-2.14 on this side"
            ),
            AuthError::Version(theirs) => write!(
                f,
                "the peer speaks version {theirs} of Invar's wire, this side version {VERSION}; \
                 run the same Invar on both"
            ),
            AuthError::Service { ours, theirs } => {
                let ours = Service::name(*ours as u16).unwrap_or_default();
                match Service::name(*theirs) {
                    Some(theirs) => write!(f, "the peer is for {theirs}, this side for {ours}")?,
                    None => write!(f, "the peer is for service {theirs}, this side for {ours}")?,
                }
                f.write_str("; set INVAR_TRANSPORT alike on both")
            }
            AuthError::Secret => f.write_str(
                "the peer does not know the secret: it is not the end that the handle, or the \
                 unique id, was made for",
            ),
            AuthError::UnknownSession => f.write_str(
                "the listener does not know this connection: the peer's end is closed, or its \
                 process is another one by now",
            ),
            AuthError::HungUp => f.write_str(
                "the listener hung up before it had proved who it is: it knows another secret, \
                 since the handle, or the unique id, is of another listener; or it speaks NCCL's \
                 wire (INVAR_WIRE); or its process has no more open files (ulimit -n)",
            ),
        }
    }
}

impl core::error::Error for AuthError {}

impl From<StreamError> for AuthError {
    fn from(error: StreamError) -> Self {
        AuthError::Stream(error)
    }
}

fn transcript(secret: &Secret, label: &[u8], caller: &Hello, listener: &Hello) -> [u8; 32] {
    mac(secret.as_bytes(), label, &[&caller.to_bytes(), &listener.to_bytes()])
}

/// Compares two proofs in a time that does not depend on where they differ.
fn is_equal(a: &[u8; PROOF_BYTES], b: &[u8; PROOF_BYTES]) -> bool {
    core::hint::black_box(a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b))) == 0
}

#[cfg(all(test, not(loom)))]
mod tests;
