//! Stalls: what a connection waits for, and whose fault that is.
//!
//! Two watches look at an end, and ask the peer if nothing moves. They share their words: an end looks, asks,
//! owes the peer an answer, and hears the answer of the peer.
//!
//! | watch | asks | is for | judges |
//! |---|---|---|---|
//! | [`Watch`] | for the peer's view | people | a [`Verdict`]: the end at fault |
//! | `PathWatch` | for the rows that the peer has | the recovery | whether to replace the queue pairs |
//!
//! Each end of a connection has a [`Watch`], which somebody feeds from time to time with the end's
//! [`Counts`] and with the calls of its program. If the end waits too long, its watch asks the peer for an
//! [`EndView`] over the connection's stream. [`judge`] makes a [`Verdict`] from both views. It is a function
//! of the views alone, so both ends come to the same verdict.
//!
//! A watch needs no counter on the data path. It compares numbers that a comm has anyway, and the host notes
//! a call of the program only now and then.

mod flight_recorder;
mod judge;
mod other_wait;
mod path;
mod verdict;
mod view;
mod watch;

pub use flight_recorder::FlightRecorder;
pub use judge::{Contact, judge};
pub use other_wait::{OtherPeer, ProcessWait};
pub(crate) use path::{PathRows, PathVerdict, PathWatch, suspect_after_ns};
pub use verdict::{Cause, Verdict};
pub use view::{EndView, HOST_BYTES, OwnNetwork, Process, Role, VIEW_BYTES, ViewBytes, Wait};
pub use watch::{Counts, StallSettings, Watch};
