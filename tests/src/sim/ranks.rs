//! Ranks that do collectives over a simulated network, all in one thread, and what they do when one
//! of them dies.
//!
//! A rank is what it is in a communicator: the schedules of [`invar_core::coll`], done by
//! [`Plan`](invar::communicator::Plan)s over its links, on comms of the simulated NIC. Only what ranks hear of each other (`news.rs`) is a model of the rendezvous.

mod history;
mod news;
mod rank;
mod work;

use super::{Random, SimNic, WireCounters, World};
use crate::duo;

pub use history::run;

/// How a history ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// See [`World::trace`].
    pub trace: u64,
    /// What ranks did to the end, each a part of an operation.
    pub parts: u64,
    /// Ranks that did all of theirs.
    pub ranks_done: u64,
    /// Ranks that heard of a failure from others.
    pub ranks_told: u64,
    /// Ranks that found one out by their own network.
    pub ranks_failed: u64,
    /// Ranks whose process was killed.
    pub killed: u64,
    /// Ranks whose host was cut off.
    pub cut_off: u64,
    /// Links that were broken while both their ranks were well.
    pub broken: u64,
    /// What the wires did.
    pub wire: WireCounters,
    /// How long it took, in the time of its clock.
    pub end_ns: u64,
}

impl Outcome {
    /// Adds what happened in another history.
    pub fn add(&mut self, other: &Outcome) {
        self.parts += other.parts;
        self.ranks_done += other.ranks_done;
        self.ranks_told += other.ranks_told;
        self.ranks_failed += other.ranks_failed;
        self.killed += other.killed;
        self.cut_off += other.cut_off;
        self.broken += other.broken;
        self.wire.add(&other.wire);
    }
}
