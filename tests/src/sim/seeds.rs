//! Which histories a test lives through.

use std::env;
use std::ops::Range;

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

/// A number from the environment.
fn variable(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}
