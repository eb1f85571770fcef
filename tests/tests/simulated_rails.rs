//! Runs thousands of histories of connections over one to three rails, each from a seed. No message is lost,
//! doubled or damaged, no wait is endless, and a connection lives as long as one pair of its rails does.

use invar_testkit::sim;

/// The number of histories that CI has time for.
const HISTORIES: u64 = 20_000;

#[test]
fn connections_survive_the_loss_of_rails_in_thousands_of_histories() {
    sim::RAILS.live_through(HISTORIES);
}
