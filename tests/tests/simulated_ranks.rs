//! Collectives over a simulated network that loses, delays and doubles packets, among ranks of which
//! one may die at any time: each result is right, or the failure names who is to blame, in time.
//!
//! `INVAR_SIM_SEED=n` lives through one history, `INVAR_SIM_SEEDS=n` through as many as that.

use std::ops::Range;

use invar_testkit::sim::ranks::{self, Outcome};
use invar_testkit::sim::share;

/// What CI takes time for.
const SEEDS: u64 = 500;

/// Lives through them; everything must happen that can.
fn live_through(seeds: Range<u64>) {
    let many = seeds.end - seeds.start >= 200;
    let mut total = Outcome::default();
    for seed in seeds {
        total.add(&ranks::run(seed));
    }
    if many {
        let Outcome {
            parts, ranks_done, ranks_told, ranks_failed, killed, cut_off, broken, ..
        } = total;
        let of_ranks = [parts, ranks_done, ranks_told, ranks_failed, killed, cut_off, broken];
        let wire = total.wire;
        let of_wire = [wire.sent, wire.lost, wire.duplicated, wire.reordered, wire.corrupted];
        assert!(of_ranks.iter().chain(&of_wire).all(|count| *count > 0), "{total:?}");
    }
}

#[test]
fn ranks_agree_or_know_who_is_to_blame_in_the_first_half_of_the_seeds() {
    live_through(share(SEEDS, (0, 2)));
}

#[test]
fn ranks_agree_or_know_who_is_to_blame_in_the_second_half_of_the_seeds() {
    live_through(share(SEEDS, (1, 2)));
}

#[test]
fn one_seed_is_one_history() {
    let run = |seeds: Range<u64>| seeds.map(ranks::run).collect::<Vec<Outcome>>();
    let (first, again) = (run(0..20), run(0..20));
    assert_eq!(first, again);
    let others = run(20..40);
    assert!(first.iter().zip(&others).all(|(one, other)| one.trace != other.trace));
}
