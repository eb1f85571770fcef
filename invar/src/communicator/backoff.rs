//! How a rank waits for another rank: it spins, and then sleeps. A caller that only tests an operation does
//! not pause.

use std::time::{Duration, Instant};

use crate::spin::Spin;

/// Number of rounds of a wait before it looks at the clock and at the other ranks. They take less than a
/// microsecond.
const ROUNDS: u32 = 20;

/// The waits of one rank, one after the other. [`Backoff::renew`] begins the next wait.
#[derive(Debug)]
pub(super) struct Backoff {
    spin: Spin,
    /// Whether the awaited rank may need this processor.
    yields: bool,
    timeout: Duration,
    idle: u32,
    since: Option<Instant>,
    /// The time from `since` to the last call of [`Backoff::idle`].
    waited: Duration,
    /// How long this wait spins.
    spins: Duration,
    /// Whether the rank is to be woken, and sleeps at the next pause.
    is_armed: bool,
    /// Whether this wait has outlasted the spin.
    is_long: bool,
}

impl Backoff {
    /// Creates the waits of a rank, each of `timeout` at most. `crowded` says that this host has more ranks
    /// than processors.
    pub(super) fn new(spin: Duration, crowded: bool, timeout: Duration) -> Self {
        Backoff {
            spin: Spin::new(spin),
            yields: crowded,
            timeout,
            idle: 0,
            since: None,
            waited: Duration::ZERO,
            spins: Duration::ZERO,
            is_armed: false,
            is_long: false,
        }
    }

    /// Ends the wait, because data has come. Returns whether the wait has outlasted the spin.
    #[inline]
    pub(super) fn renew(&mut self) -> bool {
        self.idle = 0;
        self.since.is_some() && self.end()
    }

    #[cold]
    fn end(&mut self) -> bool {
        self.since = None;
        self.is_armed = false;
        let is_long = std::mem::take(&mut self.is_long);
        if !is_long && !self.spins.is_zero() {
            self.spin.succeeded();
        }
        is_long
    }

    /// Whether the wait is so short that it has not looked at the clock.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.idle < ROUNDS
    }

    /// Notes that no data has come. Returns what the caller must do next.
    #[inline]
    pub(super) fn idle(&mut self) -> Idle {
        self.idle += 1;
        if self.idle < ROUNDS { Idle::Again } else { self.long() }
    }

    #[cold]
    fn long(&mut self) -> Idle {
        self.idle = ROUNDS;
        if self.since.is_none() {
            self.spins = self.spin.begin();
        }
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        self.waited = waited;
        if waited >= self.timeout { Idle::TooLong(waited) } else { Idle::Look }
    }

    /// Returns how to pause, for a caller that has nothing else to do.
    #[inline]
    pub(super) fn pause(&mut self) -> Pause {
        if self.idle < ROUNDS || self.waited < self.spins {
            return if self.yields { Pause::Yield } else { Pause::Spin };
        }
        if !self.is_long && !self.spins.is_zero() {
            self.spin.failed(self.waited);
        }
        self.is_long = true;
        self.is_armed = !self.is_armed;
        if self.is_armed { Pause::Arm } else { Pause::Sleep }
    }
}

/// The action that a caller takes next if no data has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// Poll again.
    Again,
    /// Poll again, and check whether the other ranks are still there.
    Look,
    /// Give up after waiting this long.
    TooLong(Duration),
}

/// How a caller pauses before it polls again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    Spin,
    /// Let another thread have the processor.
    Yield,
    /// Ask to be woken, and poll once more before the sleep.
    Arm,
    /// Sleep until somebody wakes the rank.
    Sleep,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_spins_then_looks_around_and_ends() {
        let mut backoff = Backoff::new(Duration::from_secs(60), false, Duration::from_millis(20));
        let looks = (0..).map_while(|_| match backoff.idle() {
            Idle::TooLong(_) => None,
            idle => {
                assert_eq!(backoff.pause(), Pause::Spin);
                assert_eq!(backoff.is_short(), idle == Idle::Again);
                Some(idle)
            }
        });
        let looks: Vec<Idle> = looks.collect();
        let rounds = looks.iter().take_while(|idle| **idle == Idle::Again).count();
        assert_eq!(rounds as u32, ROUNDS - 1);
        assert!(looks[rounds..].iter().all(|idle| *idle == Idle::Look));
        assert!(matches!(backoff.idle(), Idle::TooLong(_)));
        assert!(!backoff.renew());
        assert_eq!(backoff.idle(), Idle::Again);
    }

    #[test]
    fn before_each_sleep_the_rank_asks_to_be_woken_and_polls() {
        let mut backoff = Backoff::new(Duration::ZERO, false, Duration::from_secs(60));
        let mut pauses = Vec::new();
        while pauses.len() < 4 {
            let idle = backoff.idle();
            let pause = backoff.pause();
            if idle == Idle::Look {
                pauses.push(pause);
            }
        }
        assert_eq!(pauses, [Pause::Arm, Pause::Sleep, Pause::Arm, Pause::Sleep]);
        backoff.idle();
        assert_eq!(backoff.pause(), Pause::Arm);
        assert!(backoff.renew(), "nobody needs to wake the rank any more");
    }
}
