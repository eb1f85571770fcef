//! How the ranks of a communicator find together (`bootstrap.cc`).
//!
//! There is a *hub*, which listens; a [`UniqueId`] is where, and a secret. Each rank connects to it,
//! and both prove that they know the secret ([`crate::auth`]). Once all ranks are there the hub passes
//! on what they tell each other, a [`Kind::Blob`] at a time, and says who is gone.
//!
//! It reads in this order:
//!
//! 1. [`UniqueId`] — what every rank is given beforehand.
//! 2. [`Message`] — what goes over a connection: a header, and a body, which ends with a tag.
//! 3. [`Seal`] — makes and checks these tags.
//! 4. [`join`] and [`admit`] — how a rank gets in, from its side and from the hub's.
//! 5. [`Roster`] — which ranks are there; the hub has one.
//!
//! Who reads the network reads what ranks tell each other, and can change nothing of it.

mod join;
mod message;
mod roster;
mod seal;
mod unique_id;

pub use crate::inbox::FrameError;
pub use join::{JoinError, Member, admit, join, joined};
pub use message::{HEADER_BYTES, Header, Incoming, Kind, Message, NOBODY};
pub use roster::{RANKS_MAX, Refusal, Roster};
pub use seal::{SEALED_BYTES_MAX, Seal, Speaker, TAG_BYTES};
pub use unique_id::{COMMUNICATOR_ID_BYTES, UNIQUE_ID_BYTES, UniqueId, UniqueIdError};

#[cfg(all(test, not(loom)))]
mod tests;
