//! How long a wait spins before it sleeps.
//!
//! To sleep and to be woken costs some microseconds, so a short wait spins. A spin that ends in sleep has
//! cost processor time for nothing: the awaited process is slow, or has no processor. Then the next waits
//! sleep at once: twice as many after each failure, and half as many after each spin that succeeds.

use std::time::Duration;

/// Most waits that sleep at once, before one spins again.
const SLEEPS_MAX: u32 = 1024;

/// Decides how long each wait of one waiter spins.
#[derive(Clone, Debug)]
pub(crate) struct Spin {
    time: Duration,
    /// Number of waits that sleep at once after the last failure.
    sleeps: u32,
    /// The waits among these that are still to come.
    sleeps_left: u32,
}

impl Spin {
    /// Creates a waiter whose waits spin for at most `time` (`INVAR_SPIN_US`).
    pub(crate) fn new(time: Duration) -> Self {
        Spin { time, sleeps: 0, sleeps_left: 0 }
    }

    /// Begins a wait. Returns how long it spins.
    pub(crate) fn begin(&mut self) -> Duration {
        if self.sleeps_left == 0 {
            return self.time;
        }
        self.sleeps_left -= 1;
        Duration::ZERO
    }

    /// Notes that a wait ended while it spun.
    pub(crate) fn succeeded(&mut self) {
        self.sleeps /= 2;
        self.sleeps_left = self.sleeps;
    }

    /// Notes that a wait has spun in vain. Other processes may have had the processor meanwhile, so the spin
    /// may have taken longer than asked.
    pub(crate) fn failed(&mut self, took: Duration) {
        let lost = took.as_micros() / self.time.as_micros().max(1);
        let lost = u32::try_from(lost).unwrap_or(SLEEPS_MAX);
        self.sleeps = (self.sleeps * 2).max(lost).clamp(1, SLEEPS_MAX);
        self.sleeps_left = self.sleeps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_micros(50);

    /// Returns how many of `count` waits spin, if each spin takes this long and ends the wait or not.
    fn spins(spin: &mut Spin, count: u32, took: Duration, is_enough: bool) -> usize {
        let spins = (0..count).filter(|_| {
            let spins = !spin.begin().is_zero();
            match is_enough {
                true if spins => spin.succeeded(),
                false if spins => spin.failed(took),
                _ => {}
            }
            spins
        });
        spins.count()
    }

    #[test]
    fn waits_that_outlast_the_spin_soon_sleep_at_once() {
        let mut spin = Spin::new(TIME);
        assert!((11..=25).contains(&spins(&mut spin, 10_000, TIME, false)));
    }

    #[test]
    fn a_spin_that_lost_the_processor_for_long_is_not_soon_repeated() {
        let mut spin = Spin::new(TIME);
        assert_eq!(spins(&mut spin, 60, 60 * TIME, false), 1);
    }

    #[test]
    fn waits_that_are_short_again_spin_again() {
        let mut spin = Spin::new(TIME);
        spins(&mut spin, 10_000, TIME, false);
        spins(&mut spin, 3000, TIME, true);
        assert_eq!(spins(&mut spin, 100, TIME, true), 100);
    }

    #[test]
    fn without_time_to_spin_every_wait_sleeps() {
        assert_eq!(spins(&mut Spin::new(Duration::ZERO), 10, TIME, false), 0);
    }
}
