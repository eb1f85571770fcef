//! How the ranks of a communicator find together (`bootstrap.cc`).
//!
//! There is a *hub*, which listens; a [`UniqueId`] is where, and a secret. Each rank connects to it
//! and shows that it knows the secret, without telling it; the hub shows the same. Once all are
//! there it passes on what ranks tell each other, a [`Kind::Blob`] at a time, and says who is gone.
//!
//! It reads in this order:
//!
//! 1. [`UniqueId`] — what every rank is given beforehand.
//! 2. [`Message`] — what goes over a connection: a header, and a body.
//! 3. [`Joining`] and [`Admission`] — the handshake, from a rank's side and from the hub's.
//! 4. [`Roster`] — which ranks are there; the hub has one.
//!
//! Only the handshake is protected: what is told afterwards is as safe as the network is.

mod join;
mod message;
mod roster;
mod unique_id;

pub use crate::inbox::FrameError;
pub use join::{Admission, JoinError, JoinStep, Joining, Member};
pub use message::{HEADER_BYTES, Header, Incoming, Kind, Message, NOBODY};
pub use roster::{RANKS_MAX, Refusal, Roster};
pub use unique_id::{NONCE_BYTES, SECRET_BYTES, UNIQUE_ID_BYTES, UniqueId, UniqueIdError};

#[cfg(all(test, not(loom)))]
mod tests;
