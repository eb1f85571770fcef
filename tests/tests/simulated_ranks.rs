//! Ranks run collectives over a simulated network that loses, delays and doubles packets, and one rank
//! may die at any time. Each result is right, or the failure names the rank to blame, in time.
//!
//! `INVAR_SIM_SEED` and `INVAR_SIM_SEEDS` choose other seeds, see [`sim::live_through`].

use std::ops::Range;

use invar_testkit::sim;
use invar_testkit::sim::ranks::{self, Outcome};

/// The number of histories that CI has time for.
const HISTORIES: u64 = 500;

#[test]
fn ranks_agree_or_know_who_is_to_blame() {
    let (histories, total) = sim::live_through(HISTORIES, ranks::run, Outcome::add);
    if histories < 200 {
        return;
    }
    // Every kind of event happened at least once.
    let Outcome { parts, ranks_done, ranks_told, ranks_failed, killed, cut_off, broken, .. } =
        total;
    let of_ranks = [parts, ranks_done, ranks_told, ranks_failed, killed, cut_off, broken];
    let wire = total.wire;
    let of_wire = [wire.sent, wire.lost, wire.duplicated, wire.reordered, wire.corrupted];
    assert!(of_ranks.iter().chain(&of_wire).all(|count| *count > 0), "{total:?}");
}

#[test]
fn one_seed_is_one_history() {
    let run = |seeds: Range<u64>| seeds.map(ranks::run).collect::<Vec<Outcome>>();
    let (first, again) = (run(0..20), run(0..20));
    assert_eq!(first, again);
    let others = run(20..40);
    assert!(first.iter().zip(&others).all(|(one, other)| one.trace != other.trace));
}
