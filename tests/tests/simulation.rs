//! Thousands of histories of a whole network, each from a seed, in which nothing is lost, doubled,
//! damaged or waited for without end.
//!
//! `INVAR_SIM_SEED=n` lives through one history, `INVAR_SIM_SEEDS=n` through as many as that.

use std::ops::Range;

use invar_testkit::sim::{self, Outcome, WireCounters, share};

/// What CI takes time for.
const SEEDS: u64 = 4000;

/// Lives through them; everything must happen that can.
fn live_through(seeds: Range<u64>) {
    let many = seeds.end - seeds.start >= 500;
    let mut total = Outcome::default();
    let mut wire = WireCounters::default();
    for seed in seeds {
        let outcome = sim::run(seed);
        wire.add(&outcome.wire);
        total.messages += outcome.messages;
        total.comms_done += outcome.comms_done;
        total.comms_failed += outcome.comms_failed;
        total.icrc_bad += outcome.icrc_bad;
        total.retransmitted += outcome.retransmitted;
    }
    if many {
        let WireCounters { sent, lost, duplicated, reordered, corrupted, cut, overflowed } = wire;
        let all = [
            sent,
            lost,
            duplicated,
            reordered,
            corrupted,
            cut,
            overflowed,
            total.messages,
            total.comms_done,
            total.comms_failed,
            total.icrc_bad,
            total.retransmitted,
        ];
        assert!(all.iter().all(|&count| count > 0), "{total:?} {wire:?}");
    }
}

#[test]
fn nothing_goes_wrong_in_the_first_half_of_the_seeds() {
    live_through(share(SEEDS, (0, 2)));
}

#[test]
fn nothing_goes_wrong_in_the_second_half_of_the_seeds() {
    live_through(share(SEEDS, (1, 2)));
}

#[test]
fn one_seed_is_one_history() {
    let run = |seeds: Range<u64>| seeds.map(sim::run).collect::<Vec<Outcome>>();
    let (first, again) = (run(0..20), run(0..20));
    assert_eq!(first, again);
    let others = run(20..40);
    assert!(first.iter().zip(&others).all(|(one, other)| one.trace != other.trace));
}
