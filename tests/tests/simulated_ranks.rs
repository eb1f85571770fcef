//! Ranks run collectives over a simulated network that loses, delays and doubles packets, and one rank
//! may die at any time. Each result is right, or the failure names the rank to blame, in time.
//!
//! `INVAR_SIM_SEED` asks for one history, see [`sim::Simulation::live_through`]. `cargo xtask campaign
//! ranks` runs more histories.

use invar_testkit::sim;

/// The number of histories that CI has time for.
const HISTORIES: u64 = 20_000;

#[test]
fn ranks_agree_or_know_who_is_to_blame() {
    sim::RANKS.live_through(HISTORIES);
}
