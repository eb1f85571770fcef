//! Ranks that run collectives over a simulated network, all in one thread. The histories include the
//! death of a rank and the reaction of the others.
//!
//! A rank is the same code as in a communicator: the schedules of [`invar_core::coll`], which
//! [`Plan`](invar::communicator::Plan)s run over links on comms of the simulated NIC. Only the news
//! that ranks hear of each other (`news.rs`) is a model of the rendezvous.

mod history;
mod news;
mod rank;
mod work;

use super::{SimNic, WireCounters, World};
use crate::duo;

pub use history::run;

/// The outcome of a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The digest that [`World::trace`] returns.
    pub trace: u64,
    /// The parts of operations that ranks finished.
    pub parts: u64,
    /// The ranks that finished all of their parts.
    pub ranks_done: u64,
    /// The ranks that heard of a failure from others.
    pub ranks_told: u64,
    /// The ranks that noticed a failure on their own network.
    pub ranks_failed: u64,
    /// The ranks whose process was killed.
    pub killed: u64,
    /// The ranks whose host was cut off.
    pub cut_off: u64,
    /// The links that were broken while both of their ranks were well.
    pub broken: u64,
    /// The counters of the wires.
    pub wire: WireCounters,
    /// The duration in simulated time.
    pub end_ns: u64,
}

impl Outcome {
    /// Adds the outcome of another history.
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
