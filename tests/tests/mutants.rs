//! The simulator catches planted bugs: histories that pass without a bug fail with it.
#![cfg(feature = "mutants")]

use std::panic::{self, AssertUnwindSafe};

use invar_core::mutant::{Mutant, plant};
use invar_testkit::sim;

/// The number of histories within which every bug must show.
const HISTORIES: u64 = 20_000;

#[test]
fn every_planted_bug_is_caught() {
    // The panics of histories are what this test looks for.
    panic::set_hook(Box::new(|_| {}));
    let caught: Vec<(Mutant, Option<u64>)> = Mutant::ALL
        .iter()
        .map(|mutant| {
            plant(Some(*mutant));
            let fails = |seed: &u64| {
                panic::catch_unwind(AssertUnwindSafe(|| (sim::COMMS.run)(*seed))).is_err()
            };
            (*mutant, (0..HISTORIES).find(fails))
        })
        .collect();
    plant(None);
    let _ = panic::take_hook();
    for (mutant, seed) in &caught {
        eprintln!("{mutant:?}: seed {seed:?}");
    }
    let missed: Vec<_> = caught.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(missed.is_empty(), "not caught in {HISTORIES} histories: {missed:?}");
}
