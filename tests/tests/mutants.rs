//! The simulator catches planted bugs: histories that pass without a bug fail with it.
#![cfg(feature = "mutants")]

use std::panic::{self, AssertUnwindSafe};

use invar_core::mutant::{Mutant, plant};
use invar_testkit::sim;

/// The number of histories within which every bug must show.
const HISTORIES: u64 = 20_000;

/// Whether the history of a seed fails with a planted bug.
fn fails(seed: u64, mutant: Option<Mutant>) -> bool {
    plant(mutant);
    panic::catch_unwind(AssertUnwindSafe(|| (sim::COMMS.run)(seed))).is_err()
}

#[test]
fn every_planted_bug_is_caught() {
    // This test looks for panics of histories.
    panic::set_hook(Box::new(|_| {}));
    let caught: Vec<(Mutant, Option<u64>)> = Mutant::ALL
        .iter()
        .map(|mutant| (*mutant, (0..HISTORIES).find(|seed| fails(*seed, Some(*mutant)))))
        .collect();
    let innocent: Vec<u64> =
        caught.iter().filter_map(|(_, seed)| *seed).filter(|seed| fails(*seed, None)).collect();
    let _ = panic::take_hook();
    for (mutant, seed) in &caught {
        eprintln!("{mutant:?}: seed {seed:?}");
    }
    assert!(innocent.is_empty(), "these seeds fail without a planted bug: {innocent:?}");
    let missed: Vec<_> = caught.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(missed.is_empty(), "not caught in {HISTORIES} histories: {missed:?}");
}
