//! Proof of who calls: both ends of a TCP connection show that they know a secret, and neither
//! tells it.
//!
//! It comes before anything else on every connection between Invar's own ends. A caller that has
//! not proved itself costs its socket and an [`Answering`], and nothing is allocated, created or
//! read for it.
//!
//! ```text
//! caller                                      listener
//!   Hello { magic, version, service, nonce }  →
//!                                             ←  Hello { magic, version, service, nonce }
//!   Proof                                     →
//!                                             ←  Proof
//! ```
//!
//! A proof is HMAC-SHA-256 of who gives it and both hellos, with the secret as its key. The caller
//! gives the first one, so that a listener tells strangers nothing that depends on the secret. Both
//! nonces are random, so that no proof can be used twice. The same secret and hellos make the
//! [`Session`], from which both ends derive what else they need, without sending it.

mod answering;
mod calling;
mod wire;

use core::fmt;

use hmac_sha256::HMAC;

use crate::conn::StreamError;
use crate::conn::stage::Side;
use crate::roce::Psn;

pub use answering::Answering;
pub use calling::Calling;
pub use wire::{HELLO_BYTES, Hello, PROOF_BYTES, VERSION};

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 16;
/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;

/// Random bytes, new for each connection.
pub type Nonce = [u8; NONCE_BYTES];

/// What both ends know and nobody else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// The secret of a service that is open to everybody.
    pub const PUBLIC: Secret = Secret([0; SECRET_BYTES]);

    /// From its bytes.
    pub const fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Secret(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// Another secret, for a purpose of its own: who knows it does not know this one.
    #[must_use]
    pub fn derive(&self, label: &[u8], context: &[u8]) -> Secret {
        Secret(mac(&self.0, label, &[context]))
    }
}

impl fmt::Debug for Secret {
    /// Keeps it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a listener is for.
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
}

impl Service {
    fn name(code: u16) -> Option<&'static str> {
        Some(match code {
            1 => "connections over a NIC",
            2 => "connections over TCP",
            3 => "the rendezvous of a communicator",
            4 => "invar perf",
            _ => return None,
        })
    }
}

/// One connection whose ends know each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Session(Option<Secret>);

impl Session {
    /// On NCCL's wire, where nobody proves anything.
    pub const UNKNOWN_PEER: Session = Session(None);

    fn new(secret: &Secret, caller: &Hello, listener: &Hello) -> Self {
        Session(Some(Secret(transcript(secret, b"session", caller, listener))))
    }

    /// A key for a purpose of its own; `None` where the ends share no secret.
    pub fn key(&self, label: &[u8], context: &[u8]) -> Option<Secret> {
        Some(self.0?.derive(label, context))
    }

    /// The first packet sequence number that one end sends on its queue pair number `index`; 0
    /// where the ends share no secret.
    pub fn first_psn(&self, sender: Side, index: u32) -> u32 {
        let context = [sender as u8, index as u8, (index >> 8) as u8];
        let key = self.key(b"first PSN", &context);
        key.map_or(0, |Secret([a, b, c, ..])| u32::from_le_bytes([a, b, c, 0]) & Psn::MASK)
    }
}

impl fmt::Debug for Session {
    /// Keeps its key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Session(…)" } else { "Session::UNKNOWN_PEER" })
    }
}

/// Why an end does not take the other for who it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthError {
    /// The stream failed.
    Stream(StreamError),
    /// The first bytes are not ours.
    Magic([u8; 8]),
    /// The peer speaks another version of this exchange: theirs.
    Version(u16),
    /// The listener is for something else, or the caller wants something else.
    Service {
        /// What this end is for.
        ours: Service,
        /// The code of what the peer is for.
        theirs: u16,
    },
    /// The peer does not know the secret.
    Secret,
    /// The listener hung up when it saw our proof, or before.
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
            AuthError::HungUp => f.write_str(
                "the listener hung up before it had proved who it is: it knows another secret, \
                 since the handle, or the unique id, is of another listener; or it speaks NCCL's \
                 wire (INVAR_WIRE)",
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

/// HMAC-SHA-256 of a label, whose end cannot be mistaken, and what follows.
fn mac(key: &[u8], label: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = HMAC::new(key);
    mac.update([label.len() as u8]);
    mac.update(label);
    for part in parts {
        mac.update(part);
    }
    mac.finalize()
}

fn transcript(secret: &Secret, label: &[u8], caller: &Hello, listener: &Hello) -> [u8; 32] {
    mac(secret.as_bytes(), label, &[&caller.to_bytes(), &listener.to_bytes()])
}

/// Whether two proofs are the same, in a time that does not tell where they differ.
fn is_equal(a: &[u8; PROOF_BYTES], b: &[u8; PROOF_BYTES]) -> bool {
    core::hint::black_box(a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b))) == 0
}

#[cfg(all(test, not(loom)))]
mod tests;
