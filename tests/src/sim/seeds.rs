//! Which histories a test lives through.

use std::ops::Range;
use std::{env, thread};

/// The share of test thread `number` of so many, of the first `seeds`: `INVAR_SIM_SEEDS` says how
/// many instead, `INVAR_SIM_SEED` which one alone.
///
/// # Panics
/// When one of these is not a number.
pub fn share(seeds: u64, (number, of): (u64, u64)) -> Range<u64> {
    match variable("INVAR_SIM_SEED") {
        Some(seed) if number == 0 => seed..seed + 1,
        Some(_) => 0..0,
        None => {
            let seeds = variable("INVAR_SIM_SEEDS").unwrap_or(seeds);
            seeds * number / of..seeds * (number + 1) / of
        }
    }
}

/// Tells the seed of a history that ends in a panic.
pub(super) struct Named {
    pub(super) seed: u64,
    /// Of `tests/tests`, which lives through it.
    pub(super) test: &'static str,
}

impl Drop for Named {
    fn drop(&mut self) {
        let Named { seed, test } = self;
        if thread::panicking() {
            eprintln!(
                "the simulated history of seed {seed} failed; to see it again: \
                 INVAR_SIM_SEED={seed} cargo test -p invar-testkit --test {test}"
            );
        }
    }
}

/// A number from the environment.
fn variable(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}
