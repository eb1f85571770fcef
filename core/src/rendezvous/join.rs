//! Joining: a rank says who it is, on a connection whose ends have proved themselves.
//!
//! ```text
//! rank                              hub
//!   Join { rank, nranks, member }  →
//!                                  ←  Welcome, or Refused { text }
//! ```

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::message::{RendezvousHeader, RendezvousKind, RendezvousMessage};
use super::roster::{JoinRefusal, Roster};

/// Identity of a process, unique among all processes.
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
    /// Identity of the host. Processes with equal values can share memory.
    pub host: [u8; 32],
    /// A number that no other process of the host has.
    pub number: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Join {
    rank: U32,
    nranks: U32,
    member: Member,
}

/// Why a rank did not join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The peer sent an answer that no hub of ours sends.
    #[error("the rendezvous answers what it was not asked")]
    NoHub,
    /// The hub refused the rank. The text is the hub's reason, cut to the capacity of the string.
    #[error("refused: {0}")]
    Refused(heapless::String<96>),
}

/// Builds a rank's first message, which says that it is `rank` of `nranks`. The hub is to give the rank's host up
/// if it is silent for `silence_ms`.
pub fn join(rank: u32, nranks: u32, member: Member, silence_ms: u32) -> RendezvousMessage {
    let join = Join { rank: U32::new(rank), nranks: U32::new(nranks), member };
    let mut message = RendezvousMessage::new(RendezvousKind::Join, join.as_bytes());
    message.header.tag = silence_ms;
    message
}

/// Handles the hub's answer to a [`join`] message.
///
/// # Errors
/// The rank did not join.
pub fn joined(header: RendezvousHeader, body: &[u8]) -> Result<(), JoinError> {
    match header.kind {
        RendezvousKind::Welcome => Ok(()),
        RendezvousKind::Refused => Err(JoinError::Refused(text(body))),
        _ => Err(JoinError::NoHub),
    }
}

/// A rank that has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The number of the rank that the hub has admitted.
    pub rank: u32,
    /// The rank's process.
    pub member: Member,
    /// Time after which the hub is to give up the rank's host if it is silent, in ms; 0 is the hub's own choice.
    pub silence_ms: u32,
}

/// Handles a rank's first message. The hub answers a success with [`RendezvousKind::Welcome`].
///
/// # Errors
/// The rank may not join.
pub fn admit(
    header: RendezvousHeader,
    body: &[u8],
    roster: &mut Roster,
) -> Result<Admitted, JoinRefusal> {
    let join = match header.kind {
        RendezvousKind::Join => Join::read_from_bytes(body).map_err(|_| JoinRefusal::NoJoin)?,
        _ => return Err(JoinRefusal::NoJoin),
    };
    let rank = join.rank.get();
    roster.join(rank, join.nranks.get())?;
    Ok(Admitted { rank, member: join.member, silence_ms: header.tag })
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
