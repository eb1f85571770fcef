//! The simulator catches planted bugs: histories that pass without a bug fail with it.
#![cfg(feature = "mutants")]

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::thread;

use invar_core::mutant::{Mutant, plant};
use invar_testkit::sim::{self, Campaign, Simulation};

/// The number of histories within which every bug must show.
const HISTORIES: u64 = 20_000;

/// The simulation that must catch a bug.
fn simulation_of(mutant: Mutant) -> &'static Simulation {
    if mutant.is_of_rails() { &sim::RAILS } else { &sim::COMMS }
}

/// Returns the seed of the first history. Few histories show some bugs; the search for these begins near one that
/// does, so that the test takes a minute less.
fn first_seed_of(mutant: Mutant) -> u64 {
    match mutant {
        Mutant::NoFence => 3_100,
        Mutant::ReportFromMemory => 13_100,
        Mutant::UseOldKeys => 1_800,
        _ => 0,
    }
}

/// Returns one of these seeds whose history fails.
fn bad_seed(simulation: &Simulation, seeds: Range<u64>) -> Option<u64> {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let stop = AtomicBool::new(false);
    let campaign = Campaign { simulation, seeds, jobs, twice_every: u64::MAX, stop: &stop };
    campaign.run(|_| ()).failure.map(|failure| failure.seed)
}

#[test]
fn every_planted_bug_is_caught() {
    let catch = |mutant: &Mutant| {
        plant(Some(*mutant));
        let first = first_seed_of(*mutant);
        let seed = bad_seed(simulation_of(*mutant), first..HISTORIES);
        eprintln!("{mutant:?}: seed {seed:?}");
        (*mutant, seed)
    };
    let caught: Vec<(Mutant, Option<u64>)> = Mutant::ALL.iter().map(catch).collect();
    plant(None);
    let fails_anyway = |(mutant, seed): &(Mutant, Option<u64>)| {
        seed.and_then(|seed| bad_seed(simulation_of(*mutant), seed..seed + 1))
    };
    let innocent: Vec<u64> = caught.iter().filter_map(fails_anyway).collect();
    assert!(innocent.is_empty(), "these seeds fail without a planted bug: {innocent:?}");
    let missed: Vec<_> = caught.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(missed.is_empty(), "not caught in {HISTORIES} histories: {missed:?}");
}
