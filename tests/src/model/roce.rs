//! A pair of [`Qp`](invar_core::roce::qp::Qp)s over a bad link, and what must come of it: the
//! operations carried out one after the other on plain memory.
//!
//! A [`Script`] says what is posted, how the link behaves and when; [`run`] carries it out and
//! judges it. Scripts come from a seed or, for fuzzing, from bytes.

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
pub use host::{Host, Memory};
pub use link::Faults;
pub use peer::{Attr, Peer};
pub use script::{Op, Script};
pub use world::{Outcome, run};
