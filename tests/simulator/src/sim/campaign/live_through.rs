//! A campaign as a test of `cargo test`.

use std::io::{self, Write};
use std::sync::atomic::AtomicBool;
use std::{env, thread};

use super::Campaign;
use crate::sim::{Simulation, TWICE_EVERY};

/// The variable that asks a test for one history. Its value is the seed.
const SEED: &str = "INVAR_SIM_SEED";
impl Simulation {
    /// Runs the histories of the seeds below `count` on all processors, for a test. If the environment
    /// has `INVAR_SIM_SEED`, runs the history of that seed alone.
    ///
    /// # Panics
    /// Panics if a history fails. Panics if a fault or an event of the simulation never happened in
    /// `count` histories. Panics if the variable is not a number.
    pub fn live_through(&self, count: u64) {
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        let stop = AtomicBool::new(false);
        let seed = asked();
        let (seeds, twice_every) = match seed {
            Some(seed) => (seed..seed.saturating_add(1), 1),
            None => (0..count, TWICE_EVERY),
        };
        let summary =
            Campaign { simulation: self, seeds, jobs, twice_every, stop: &stop }.run(|_| ());
        if let Some(failure) = summary.failure {
            panic!("{failure}");
        }
        if let Some(seed) = seed {
            // The test harness hides what passing tests print with println.
            let _ = writeln!(io::stderr(), "the history of seed {seed} passed, twice");
            return;
        }
        for (fault, _) in self.faults {
            assert!(summary.total.coverage.injected(*fault) > 0, "no fault {}", fault.name());
        }
        for event in self.events {
            assert!(summary.total.counted(*event) > 0, "no {}", event.name());
        }
    }
}

/// The seed that the environment asks for.
fn asked() -> Option<u64> {
    let value = env::var(SEED).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{SEED}={value} is not a number")))
}
