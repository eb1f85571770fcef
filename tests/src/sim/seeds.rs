//! Chooses the histories that a test runs.

use std::ops::Range;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{env, io, io::Write, thread};

/// A test gives up after this number of failed histories.
const FAILURES_MAX: usize = 10;

/// Runs `count` histories with the seeds from 0 on, on all processors. Returns the number of histories
/// and the sum of their outcomes.
///
/// `INVAR_SIM_SEEDS` overrides the number of histories, and `INVAR_SIM_SEED` the first seed.
/// `INVAR_SIM_SEED` alone asks for that one history.
///
/// # Panics
/// Panics if a history fails, or if one of these variables is not a number.
pub fn live_through<T: Default + Send>(
    count: u64,
    run: fn(u64) -> T,
    add: fn(&mut T, &T),
) -> (u64, T) {
    let asked = asked();
    let seeds = asked.clone().unwrap_or(0..count);
    let (total, failed) = try_all(seeds.clone(), run, add);
    assert!(failed.is_empty(), "the histories of seeds {failed:?} failed");
    let count = seeds.end - seeds.start;
    if asked.is_some() {
        // The test harness hides what passing tests print with println.
        let _ = writeln!(io::stderr(), "{count} histories passed: seeds {seeds:?}");
    }
    (count, total)
}

/// The sum of the outcomes, and the seeds whose histories failed.
fn try_all<T: Default + Send>(
    seeds: Range<u64>,
    run: fn(u64) -> T,
    add: fn(&mut T, &T),
) -> (T, Vec<u64>) {
    let (next, sum) = (AtomicU64::new(seeds.start), Mutex::new((T::default(), Vec::new())));
    let live = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end {
            return;
        }
        let outcome = catch_unwind(|| run(seed));
        let (total, failed) = &mut *sum.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(outcome) => add(total, &outcome),
            Err(_) => failed.push(seed),
        }
        if failed.len() >= FAILURES_MAX {
            next.store(seeds.end, Ordering::Relaxed);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(live))));
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Prints the seed of a history that ends in a panic.
pub(super) struct Named {
    pub(super) seed: u64,
    /// The test in `tests/tests` that runs the history.
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

/// The seeds that the environment asks for.
fn asked() -> Option<Range<u64>> {
    let (first, count) = (variable("INVAR_SIM_SEED"), variable("INVAR_SIM_SEEDS"));
    let start = first.unwrap_or(0);
    Some(start..start.saturating_add(count.or(first.map(|_| 1))?))
}

/// A number from the environment.
fn variable(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64) -> u64 {
        assert!(seed % 100 != 7, "this seed fails");
        seed
    }

    #[test]
    fn each_seed_is_lived_through_once() {
        let add = |sum: &mut u64, seed: &u64| *sum += seed;
        assert_eq!(try_all(10..100, run, add), ((10..100).sum(), vec![]));
        let (sum, failed) = try_all(0..100, run, add);
        assert_eq!((sum, failed), ((0..100).sum::<u64>() - 7, vec![7]));
    }

    #[test]
    fn a_test_gives_up_after_some_failures() {
        let (_, failed) = try_all(0..2000, |seed| assert!(seed < 5), |(), ()| ());
        assert!((FAILURES_MAX..1000).contains(&failed.len()), "{failed:?}");
    }
}
