//! Runs a pair of [`Qp`](invar_core::roce::qp::Qp)s over a bad link. The expected result is that of the
//! operations, carried out one after the other on plain memory.
//!
//! A [`Script`] says what the ends post and how the link behaves. [`run`] carries the script out and
//! judges the result. Scripts come from a seed or, for fuzzing, from bytes.

mod abuse;
mod choices;
mod expected;
mod host;
mod link;
mod peer;
mod script;
mod world;

pub use abuse::abuse;
pub use choices::Choices;
pub use host::{ADDR, Host, KEY, Memory};
pub use link::Faults;
pub use peer::{ACK, Attr, MISSING, Peer};
pub use script::{Op, Script};
pub use world::{Outcome, run};
