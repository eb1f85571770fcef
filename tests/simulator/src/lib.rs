//! Simulated hosts and networks, null NICs and reference models. `invar-testkit` offers them to tests.
//!
//! This crate is optimized in debug builds too, because its code takes most of the time of tests. The tests
//! themselves are not optimized, so that they compile fast.

pub mod duo;
pub mod end;
pub mod model;
pub mod null;
pub mod pattern;
pub mod pipe;
pub mod random;
pub mod sim;
