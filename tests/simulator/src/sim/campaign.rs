//! Runs many histories of a simulation on many threads, and stops at the first that fails.

mod live_through;
mod panics;
mod report;

use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Outcome, Simulation};

pub use report::Progress;

/// After so many histories a pair of fault and state that can meet has met.
const HISTORIES_ENOUGH: u64 = 1_000_000;

/// The time between two reports of progress.
const SHOW_EVERY: Duration = Duration::from_millis(250);

/// The histories to run.
pub struct Campaign<'a> {
    /// The simulation.
    pub simulation: &'a Simulation,
    /// The seeds, one for each history.
    pub seeds: Range<u64>,
    /// The number of threads.
    pub jobs: usize,
    /// Seeds that are a multiple of this number, which is not 0, are lived through twice. Both
    /// histories must be equal.
    pub twice_every: u64,
    /// Set this flag to end the campaign early.
    pub stop: &'a AtomicBool,
}

/// The results of a campaign.
pub struct Summary {
    simulation: Simulation,
    time: Duration,
    seeds: Range<u64>,
    /// The number of seeds whose histories ended well.
    pub passed: u64,
    /// The number of those seeds that were lived through twice.
    pub twice: u64,
    /// The sum of their outcomes.
    pub total: Outcome,
    /// The history that failed. If several failed at about the same time, it has the lowest seed.
    pub failure: Option<Failure>,
}

/// A history that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed of the history.
    pub seed: u64,
    /// The text of the panic.
    pub text: String,
    /// The test in `tests/tests` that runs this history alone.
    pub test: &'static str,
}

impl Summary {
    /// Whether enough histories passed (a million), and a fault never met a state that it can meet.
    pub fn lacks_pairs(&self) -> bool {
        let Simulation { faults, apart, .. } = self.simulation;
        self.passed >= HISTORIES_ENOUGH && !self.total.coverage.never_met(faults, apart).is_empty()
    }
}

/// The results of one thread.
#[derive(Default)]
struct Share {
    passed: u64,
    twice: u64,
    total: Outcome,
    failure: Option<Failure>,
}

impl Campaign<'_> {
    /// Runs the histories. `show` gets the progress from time to time.
    pub fn run(&self, mut show: impl FnMut(&Progress)) -> Summary {
        let (begin, next, done) =
            (Instant::now(), AtomicU64::new(self.seeds.start), AtomicU64::new(0));
        let failed = AtomicBool::new(false);
        let (alive, ended) = mpsc::channel::<Infallible>();
        let shares = thread::scope(|scope| {
            let work = |alive: mpsc::Sender<Infallible>| {
                let share = self.work(&next, &done, &failed);
                drop(alive);
                share
            };
            let spawn = |_| {
                let (alive, thread) = (alive.clone(), super::roomy_thread());
                thread.spawn_scoped(scope, move || work(alive)).expect("a thread")
            };
            let threads: Vec<_> = (0..self.jobs.max(1)).map(spawn).collect();
            drop(alive);
            while ended.recv_timeout(SHOW_EVERY) == Err(RecvTimeoutError::Timeout) {
                let done = done.load(Ordering::Relaxed);
                let of = self.seeds.end - self.seeds.start;
                show(&Progress { done, of, time: begin.elapsed() });
            }
            let join = |thread: thread::ScopedJoinHandle<'_, Share>| thread.join();
            threads
                .into_iter()
                .map(join)
                .map(|share| share.expect("panics are caught"))
                .collect::<Vec<Share>>()
        });
        let mut summary = Summary {
            simulation: *self.simulation,
            time: begin.elapsed(),
            seeds: self.seeds.clone(),
            passed: 0,
            twice: 0,
            total: Outcome::default(),
            failure: None,
        };
        for Share { passed, twice, total, failure } in shares {
            summary.passed += passed;
            summary.twice += twice;
            summary.total.add(&total);
            let earlier = summary.failure.take().into_iter().chain(failure);
            summary.failure = earlier.min_by_key(|failure| failure.seed);
        }
        summary
    }

    /// Lives through histories, one after the other, until none is left or one fails.
    fn work(&self, next: &AtomicU64, done: &AtomicU64, failed: &AtomicBool) -> Share {
        let mut share = Share::default();
        while !failed.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.seeds.end {
                break;
            }
            let twice = seed.is_multiple_of(self.twice_every);
            match self.live(seed, twice) {
                Ok(outcome) => share.total.add(&outcome),
                Err(text) => {
                    failed.store(true, Ordering::Relaxed);
                    share.failure = Some(Failure { seed, text, test: self.simulation.test });
                    break;
                }
            }
            share.passed += 1;
            share.twice += u64::from(twice);
            done.fetch_add(1, Ordering::Relaxed);
        }
        share
    }

    /// Lives through one history, once or twice.
    fn live(&self, seed: u64, twice: bool) -> Result<Outcome, String> {
        let live = || panics::catch(|| (self.simulation.run)(seed));
        let first = live()?;
        if twice {
            let second = live()?;
            if first != second {
                return Err(format!(
                    "two histories of this seed differ: one has the trace {:#018x} and ends at {} ns, \
                     the other has the trace {:#018x} and ends at {} ns",
                    first.trace, first.end_ns, second.trace, second.end_ns
                ));
            }
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Apart, Fault, FaultRow, Machine};

    /// The history of this seed fails.
    const PLANTED: u64 = 70;

    fn planted(seed: u64) -> Outcome {
        assert!(seed != PLANTED, "message 3 is lost");
        Outcome { trace: seed, ..Outcome::default() }
    }

    fn simulation(run: fn(u64) -> Outcome) -> Simulation {
        let faults: &[FaultRow] = &[(Fault::Lost, &[Machine::Rail])];
        Simulation { name: "planted", test: "planted_test", run, faults, apart: &[], events: &[] }
    }

    fn run(run: fn(u64) -> Outcome, seeds: Range<u64>, jobs: usize, stop: bool) -> Summary {
        let (simulation, stop) = (simulation(run), AtomicBool::new(stop));
        Campaign { simulation: &simulation, seeds, jobs, twice_every: 8, stop: &stop }.run(|_| ())
    }

    #[test]
    fn each_seed_is_lived_through_once_and_some_twice() {
        let summary = run(planted, 0..PLANTED, 3, false);
        assert_eq!((summary.passed, summary.twice, summary.failure), (70, 9, None));
    }

    #[test]
    fn a_failing_seed_stops_the_campaign_with_the_command_that_repeats_it() {
        let summary = run(planted, 0..10_000, 1, false);
        assert_eq!(summary.passed, PLANTED);
        let failure = summary.failure.as_ref().expect("a failure");
        assert_eq!(failure.seed, PLANTED);
        assert!(failure.text.contains("message 3 is lost"), "{failure}");
        assert!(failure.text.contains("campaign.rs:"), "the place is missing: {failure}");
        let command = "INVAR_SIM_SEED=70 cargo test --release -p invar-testkit --test planted_test";
        assert!(summary.to_string().contains(command), "{summary}");
    }

    #[test]
    fn a_pair_that_never_met_in_a_million_histories_is_a_failure() {
        let mut summary = run(|_| Outcome::default(), 0..10, 1, false);
        assert!(!summary.lacks_pairs(), "ten histories prove nothing");
        summary.passed = HISTORIES_ENOUGH;
        assert!(summary.lacks_pairs() && summary.to_string().contains("should have met"));
        const APART: &[Apart] = &[(&[Fault::Lost], Machine::Rail.states())];
        summary.simulation.apart = APART;
        assert!(!summary.lacks_pairs(), "the pairs cannot meet");
    }

    #[test]
    fn a_seed_with_two_histories_is_a_failure() {
        static LIVES: AtomicU64 = AtomicU64::new(0);
        let differs = |seed| match seed {
            16 => Outcome { trace: LIVES.fetch_add(1, Ordering::Relaxed), ..Outcome::default() },
            _ => Outcome::default(),
        };
        let failure = run(differs, 0..1000, 3, false).failure.expect("a failure");
        assert_eq!(failure.seed, 16);
        assert!(failure.text.contains("two histories of this seed differ"), "{failure}");
    }

    #[test]
    fn a_campaign_that_is_stopped_reports_so_far() {
        let summary = run(planted, 0..u64::MAX, 3, true);
        assert_eq!((summary.passed, &summary.failure), (0, &None));
        assert!(summary.to_string().contains("stopped early"), "{summary}");
    }
}
