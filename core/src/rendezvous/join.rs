//! Joining: a rank says who it is, on a connection whose ends have proved themselves.
//!
//! ```text
//! rank                              hub
//!   Join { rank, nranks, member }  →
//!                                  ←  Welcome, or Refused { text }
//! ```

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::message::{Header, Kind, Message};
use super::roster::{Refusal, Roster};

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
struct Join {
    rank: U32,
    nranks: U32,
    member: Member,
}

/// Why a rank is not in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The hub says what none of ours would.
    #[error("the rendezvous answers what it was not asked")]
    NoHub,
    /// The hub's word, as far as there is room for it.
    #[error("refused: {0}")]
    Refused(heapless::String<96>),
}

/// What a rank says first: that it is `rank` of `nranks`.
pub fn join(rank: u32, nranks: u32, member: Member) -> Message {
    let join = Join { rank: U32::new(rank), nranks: U32::new(nranks), member };
    Message::new(Kind::Join, join.as_bytes())
}

/// Takes the hub's answer to that.
///
/// # Errors
/// The rank is not in.
pub fn joined(header: Header, body: &[u8]) -> Result<(), JoinError> {
    match header.kind {
        Kind::Welcome => Ok(()),
        Kind::Refused => Err(JoinError::Refused(text(body))),
        _ => Err(JoinError::NoHub),
    }
}

/// Takes what a rank says first: the rank that it is from now on, and who that is. What to say to it is
/// [`Kind::Welcome`].
///
/// # Errors
/// There is no place for it.
pub fn admit(header: Header, body: &[u8], roster: &mut Roster) -> Result<(u32, Member), Refusal> {
    let join = match header.kind {
        Kind::Join => Join::read_from_bytes(body).map_err(|_| Refusal::NoJoin)?,
        _ => return Err(Refusal::NoJoin),
    };
    let rank = join.rank.get();
    roster.join(rank, join.nranks.get())?;
    Ok((rank, join.member))
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
