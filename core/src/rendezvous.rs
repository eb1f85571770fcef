//! The rendezvous: how the ranks of a communicator find each other (`bootstrap.cc`).
//!
//! One process runs a *hub*, which listens. A [`UniqueId`] holds the hub's address and a secret. Each
//! rank connects to the hub, and both prove that they know the secret ([`crate::auth`]). Once all
//! ranks have joined, the hub forwards their messages to each other, one [`RendezvousKind::Blob`] at a time. The
//! hub also tells them which ranks are gone.
//!
//! Read the types in this order:
//!
//! 1. [`UniqueId`] is given to every rank beforehand.
//! 2. [`RendezvousMessage`] goes over a connection: a header, and a body that ends with a tag.
//! 3. [`Seal`] makes and checks these tags.
//! 4. [`join`] and [`admit`] add a rank, at the rank's end and at the hub's end.
//! 5. [`Roster`] is the hub's list of joined ranks.
//!
//! Whoever can read the network can read the messages between ranks, but cannot change them.

mod join;
mod message;
mod rank_verdict;
mod rank_view;
mod roster;
mod seal;
mod unique_id;

pub use crate::inbox::FrameError;
pub use join::{Admitted, JoinError, Member, admit, join, joined};
pub use message::{
    HEADER_BYTES, Incoming, NOBODY, RendezvousHeader, RendezvousKind, RendezvousMessage,
    SEALED_BYTES_MAX, TAG_BYTES,
};
pub use rank_verdict::{RankCause, RankState, RankVerdict, judge_ranks};
pub use rank_view::{OPERATION_BYTES, OperationText, RANK_VIEW_BYTES, RankView};
pub use roster::{JoinRefusal, RANKS_MAX, Roster};
pub use seal::{Seal, Speaker};
pub use unique_id::{COMMUNICATOR_ID_BYTES, UNIQUE_ID_BYTES, UniqueId, UniqueIdError};

#[cfg(all(test, not(loom)))]
mod tests;
