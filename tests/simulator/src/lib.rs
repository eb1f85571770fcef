//! Simulated hosts and networks, null NICs and reference models. `invar-testkit` offers them to tests.
//!
//! They are a crate of their own, because they compute: they are optimized in debug builds too. The tests
//! themselves are not, so they compile five times as fast.

pub mod duo;
pub mod end;
pub mod model;
pub mod null;
pub mod pattern;
pub mod pipe;
pub mod random;
pub mod sim;
pub mod wait;
