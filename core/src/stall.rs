//! Stalls: what a connection waits for, and whose fault that is.
//!
//! Each end of a connection has a [`Watch`], which somebody feeds from time to time with the end's
//! [`Counts`] and with the calls of its program. If the end waits too long, its watch asks the peer for an
//! [`EndView`] over the connection's stream. [`judge`] makes a [`Verdict`] from both views. It is a function
//! of the views alone, so both ends come to the same verdict.
//!
//! A watch needs no counter on the data path. It compares numbers that a comm has anyway, and the host notes
//! a call of the program only now and then.

mod judge;
mod verdict;
mod view;
mod watch;

pub use judge::{Contact, judge};
pub use verdict::{Cause, Verdict};
pub use view::{EndView, HOST_BYTES, Process, Role, VIEW_BYTES, ViewBytes, Wait};
pub use watch::{Counts, StallSettings, Watch};
