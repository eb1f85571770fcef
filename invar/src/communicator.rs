//! Ranks that work together: collectives, and messages between any two.

mod link;
pub mod net;
mod reduce;
