//! How a rank waits for another rank: it spins, then yields, then sleeps. Who only asks does not pause.

use std::thread;
use std::time::{Duration, Instant};

/// Number of spins if each rank of the host has a processor. They take less than a microsecond, because
/// the awaited rank may still be on this processor.
const SPINS: u32 = 20;
/// Number of spins if the host has more ranks than processors: the awaited rank may need this
/// processor.
const SPINS_CROWDED: u32 = 1;
/// After this time the wait is long, so a late wakeup does no harm.
const SLEEP_AFTER: Duration = Duration::from_millis(5);
const NAP: Duration = Duration::from_micros(100);

/// One wait. [`Backoff::renew`] begins the next wait.
#[derive(Debug)]
pub(super) struct Backoff {
    spins: u32,
    idle: u32,
    since: Option<Instant>,
    /// The time from `since` to the last call of [`Backoff::idle`].
    waited: Duration,
    timeout: Duration,
}

impl Backoff {
    /// Creates a backoff. `crowded` says that this host has more ranks than processors.
    pub(super) fn new(crowded: bool, timeout: Duration) -> Self {
        let spins = if crowded { SPINS_CROWDED } else { SPINS };
        Backoff { spins, idle: 0, since: None, waited: Duration::ZERO, timeout }
    }

    /// Ends the wait, because data has come.
    #[inline]
    pub(super) fn renew(&mut self) {
        (self.idle, self.since) = (0, None);
    }

    /// Notes that no data has come. Returns what the caller must do next.
    #[inline]
    pub(super) fn idle(&mut self) -> Idle {
        self.idle += 1;
        if self.idle < self.spins { Idle::Again } else { self.long() }
    }

    #[cold]
    fn long(&mut self) -> Idle {
        self.idle = self.spins;
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        self.waited = waited;
        if waited >= self.timeout { Idle::TooLong(waited) } else { Idle::Look }
    }

    /// Spins, yields or sleeps, for a caller that has nothing else to do.
    #[inline]
    pub(super) fn pause(&self) {
        if self.idle < self.spins {
            std::hint::spin_loop();
        } else if self.waited < SLEEP_AFTER {
            thread::yield_now();
        } else {
            thread::sleep(NAP);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_spins_then_looks_around_and_ends() {
        let mut backoff = Backoff::new(false, Duration::from_millis(20));
        let looks = (0..).map_while(|_| match backoff.idle() {
            Idle::TooLong(_) => None,
            idle => {
                backoff.pause();
                Some(idle)
            }
        });
        let looks: Vec<Idle> = looks.collect();
        let spins = looks.iter().take_while(|idle| **idle == Idle::Again).count();
        assert_eq!(spins as u32, SPINS - 1);
        assert!(looks[spins..].iter().all(|idle| *idle == Idle::Look));
        assert!(matches!(backoff.idle(), Idle::TooLong(_)));
        backoff.renew();
        assert_eq!(backoff.idle(), Idle::Again);
    }
}
