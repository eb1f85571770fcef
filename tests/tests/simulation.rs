//! Runs thousands of histories of a whole network, each from a seed. No message is lost, doubled or
//! damaged, and no wait is endless.
//!
//! `INVAR_SIM_SEED` asks for one history, see [`sim::Simulation::live_through`]. `cargo xtask campaign
//! comms` runs more histories.

use invar_testkit::sim;

/// The number of histories that CI has time for.
const HISTORIES: u64 = 20_000;

#[test]
fn nothing_goes_wrong_in_thousands_of_histories() {
    sim::COMMS.live_through(HISTORIES);
}
