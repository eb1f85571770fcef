//! Runs thousands of histories of a whole network, each from a seed. No message is lost, doubled or
//! damaged, and no wait is endless.
//!
//! `INVAR_SIM_SEED` and `INVAR_SIM_SEEDS` choose other seeds, see [`sim::live_through`].

use std::ops::Range;

use invar_testkit::sim::{self, Outcome, WireCounters};

/// The number of histories that CI has time for.
const HISTORIES: u64 = 4000;

#[test]
fn nothing_goes_wrong_in_thousands_of_histories() {
    let (histories, total) = sim::live_through(HISTORIES, sim::run, Outcome::add);
    eprintln!("{total:?}");
    if histories < 500 {
        return;
    }
    // Every kind of event happened at least once.
    let WireCounters { sent, lost, duplicated, reordered, corrupted, cut, overflowed } = total.wire;
    let of_wire = [sent, lost, duplicated, reordered, corrupted, cut, overflowed];
    let Outcome { messages, comms_done, comms_failed, recoveries, .. } = total;
    let Outcome { icrc_bad, retransmitted, .. } = total;
    let of_hosts = [messages, comms_done, comms_failed, recoveries, icrc_bad, retransmitted];
    assert!(of_wire.iter().chain(&of_hosts).all(|count| *count > 0), "{total:?}");
}

#[test]
fn one_seed_is_one_history() {
    let run = |seeds: Range<u64>| seeds.map(sim::run).collect::<Vec<Outcome>>();
    let (first, again) = (run(0..20), run(0..20));
    assert_eq!(first, again);
    let others = run(20..40);
    assert!(first.iter().zip(&others).all(|(one, other)| one.trace != other.trace));
}
