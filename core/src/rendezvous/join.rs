//! The handshake: both sides show that they know the secret, and neither tells it.
//!
//! ```text
//! hub                                        rank
//!      Challenge { magic, version, nonce }  →
//!    ← Join { nonce, rank, nranks, member, mac }
//!      Welcome { mac }                      →      or Refused { text }
//! ```
//!
//! A mac is HMAC-SHA-256, with the secret as its key, of who says it, both nonces and what is said.

use hmac_sha256::HMAC;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::message::{Header, Kind, Message};
use super::roster::{Refusal, Roster};
use super::unique_id::{NONCE_BYTES, SECRET_BYTES};

const MAGIC: [u8; 4] = *b"INVR";
const VERSION: u32 = 1;
const MAC_BYTES: usize = 32;

/// A process, told apart from all others.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Member {
    /// Processes with the same can share memory.
    pub host: [u8; 32],
    /// Its number there.
    pub pid: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Challenge {
    magic: [u8; 4],
    version: U32,
    nonce: [u8; NONCE_BYTES],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Join {
    claim: Claim,
    mac: [u8; MAC_BYTES],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Claim {
    nonce: [u8; NONCE_BYTES],
    rank: U32,
    nranks: U32,
    member: Member,
}

/// Why a rank is not in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The hub is something else.
    #[error("there is no rendezvous of Invar at that address")]
    NoHub,
    /// The hub is of another version: theirs.
    #[error("the rendezvous is of version {0}, this is version {VERSION}: use the same Invar")]
    Version(u32),
    /// The hub does not know the secret.
    #[error("the rendezvous does not know the secret of this communicator")]
    Secret,
    /// The hub's word, as far as there is room for it.
    #[error("refused: {0}")]
    Refused(heapless::String<96>),
}

/// A rank that joins.
#[derive(Debug)]
pub struct Joining {
    secret: [u8; SECRET_BYTES],
    nonce: [u8; NONCE_BYTES],
    rank: u32,
    nranks: u32,
    member: Member,
    /// The hub's nonce, once it has come.
    challenge: Option<[u8; NONCE_BYTES]>,
}

impl Joining {
    /// As `rank` of `nranks`. The nonce must be random.
    pub fn new(
        secret: [u8; SECRET_BYTES],
        nonce: [u8; NONCE_BYTES],
        (rank, nranks): (u32, u32),
        member: Member,
    ) -> Self {
        Joining { secret, nonce, rank, nranks, member, challenge: None }
    }

    /// Takes a message of the hub's, and gives what is to be said to it; or that it is over.
    pub fn handle(&mut self, header: Header, body: &[u8]) -> Result<JoinStep, JoinError> {
        match (header.kind, self.challenge) {
            (Kind::Challenge, None) => {
                let challenge = Challenge::read_from_bytes(body).map_err(|_| JoinError::NoHub)?;
                if challenge.magic != MAGIC {
                    return Err(JoinError::NoHub);
                }
                if challenge.version.get() != VERSION {
                    return Err(JoinError::Version(challenge.version.get()));
                }
                self.challenge = Some(challenge.nonce);
                let claim = Claim {
                    nonce: self.nonce,
                    rank: U32::new(self.rank),
                    nranks: U32::new(self.nranks),
                    member: self.member,
                };
                let mac = mac(&self.secret, b"rank", &challenge.nonce, claim.as_bytes());
                let join = Join { claim, mac };
                Ok(JoinStep::Say(Message::new(Kind::Join, join.as_bytes())))
            }
            (Kind::Welcome, Some(_)) => {
                let theirs = body.try_into().map_err(|_| JoinError::NoHub)?;
                let ours = mac(&self.secret, b"hub ", &self.nonce, &[]);
                if equal(&ours, theirs) { Ok(JoinStep::Joined) } else { Err(JoinError::Secret) }
            }
            (Kind::Refused, _) => Err(JoinError::Refused(text(body))),
            _ => Err(JoinError::NoHub),
        }
    }
}

/// What comes of a message of the hub's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum JoinStep {
    /// Say this.
    Say(Message),
    /// The rank is in.
    Joined,
}

/// The hub's side of one connection.
#[derive(Debug)]
pub struct Admission {
    nonce: [u8; NONCE_BYTES],
}

impl Admission {
    /// The nonce must be random. Gives what to say first.
    pub fn new(nonce: [u8; NONCE_BYTES]) -> (Self, Message) {
        let challenge = Challenge { magic: MAGIC, version: U32::new(VERSION), nonce };
        (Admission { nonce }, Message::new(Kind::Challenge, challenge.as_bytes()))
    }

    /// Takes what the other side says first: the rank that it is from now on, who that is, and what
    /// to say to it.
    pub fn handle(
        self,
        header: Header,
        body: &[u8],
        secret: &[u8; SECRET_BYTES],
        roster: &mut Roster,
    ) -> Result<(u32, Member, Message), Refusal> {
        let join = match header.kind {
            Kind::Join => Join::read_from_bytes(body).map_err(|_| Refusal::Secret)?,
            _ => return Err(Refusal::Secret),
        };
        let ours = mac(secret, b"rank", &self.nonce, join.claim.as_bytes());
        if !equal(&ours, &join.mac) {
            return Err(Refusal::Secret);
        }
        let Claim { nonce, rank, nranks, member } = join.claim;
        roster.join(rank.get(), nranks.get())?;
        let welcome = Message::new(Kind::Welcome, &mac(secret, b"hub ", &nonce, &[]));
        Ok((rank.get(), member, welcome))
    }
}

/// Who says it, the other side's nonce, and what is said, which has the nonce of who says it.
fn mac(
    secret: &[u8; SECRET_BYTES],
    who: &[u8; 4],
    nonce: &[u8; NONCE_BYTES],
    said: &[u8],
) -> [u8; MAC_BYTES] {
    let mut mac = HMAC::new(secret);
    mac.update(who);
    mac.update(nonce);
    mac.update(said);
    mac.finalize()
}

/// In a time that does not tell where they differ.
fn equal(a: &[u8; MAC_BYTES], b: &[u8; MAC_BYTES]) -> bool {
    core::hint::black_box(a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b))) == 0
}

fn text(bytes: &[u8]) -> heapless::String<96> {
    let mut text = heapless::String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars().filter(|c| !c.is_control()) {
            if text.push(c).is_err() {
                return text;
            }
        }
    }
    text
}
