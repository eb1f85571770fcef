//! The simulator catches planted bugs: histories that pass without a bug fail with it.
#![cfg(feature = "mutants")]

use std::panic::{self, AssertUnwindSafe};

use invar_core::mutant::{Mutant, plant};
use invar_testkit::sim::{self, Simulation};

/// The number of histories within which every bug must show.
const HISTORIES: u64 = 20_000;

/// The simulation that must catch a bug.
fn simulation_of(mutant: Mutant) -> Simulation {
    if mutant.is_of_rails() { sim::RAILS } else { sim::COMMS }
}

/// Whether the history of a seed fails.
fn is_bad(simulation: &Simulation, seed: u64) -> bool {
    panic::catch_unwind(AssertUnwindSafe(|| (simulation.run)(seed))).is_err()
}

/// The first seed whose history fails with a planted bug.
fn first_caught(mutant: Mutant) -> Option<u64> {
    plant(Some(mutant));
    let simulation = simulation_of(mutant);
    (0..HISTORIES).find(|seed| is_bad(&simulation, *seed))
}

#[test]
fn every_planted_bug_is_caught() {
    sim::roomy_thread().spawn(catch_all).expect("a thread").join().expect("each is caught");
}

fn catch_all() {
    // This test looks for panics of histories.
    panic::set_hook(Box::new(|_| {}));
    let caught: Vec<(Mutant, Option<u64>)> =
        Mutant::ALL.iter().map(|mutant| (*mutant, first_caught(*mutant))).collect();
    plant(None);
    let fails_anyway = |(mutant, seed): &(Mutant, Option<u64>)| {
        seed.filter(|seed| is_bad(&simulation_of(*mutant), *seed))
    };
    let innocent: Vec<u64> = caught.iter().filter_map(fails_anyway).collect();
    let _ = panic::take_hook();
    for (mutant, seed) in &caught {
        eprintln!("{mutant:?}: seed {seed:?}");
    }
    assert!(innocent.is_empty(), "these seeds fail without a planted bug: {innocent:?}");
    let missed: Vec<_> = caught.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(missed.is_empty(), "not caught in {HISTORIES} histories: {missed:?}");
}
