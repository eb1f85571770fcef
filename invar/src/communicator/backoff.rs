//! How a rank waits for another: first it spins, then it lets others run, then it sleeps.

use std::thread;
use std::time::{Duration, Instant};

/// Looks in a row, where each rank of the host has a processor: less than a microsecond of them,
/// since the one that is waited for may be on this one all the same.
const SPINS: u32 = 20;
/// Where it has not: the one that is waited for may need this one.
const SPINS_CROWDED: u32 = 1;
/// After this a wait is a long one, and to wake up late does not matter.
const SLEEP_AFTER: Duration = Duration::from_millis(5);
const NAP: Duration = Duration::from_micros(100);

/// One wait. [`Backoff::renew`] begins the next.
#[derive(Debug)]
pub(super) struct Backoff {
    spins: u32,
    idle: u32,
    since: Option<Instant>,
    timeout: Duration,
}

impl Backoff {
    /// `crowded`: there are more ranks here than processors.
    pub(super) fn new(crowded: bool, timeout: Duration) -> Self {
        let spins = if crowded { SPINS_CROWDED } else { SPINS };
        Backoff { spins, idle: 0, since: None, timeout }
    }

    /// Something came.
    #[inline]
    pub(super) fn renew(&mut self) {
        (self.idle, self.since) = (0, None);
    }

    /// Nothing came. Says what to do about it.
    #[inline]
    pub(super) fn idle(&mut self) -> Idle {
        self.idle += 1;
        if self.idle < self.spins {
            std::hint::spin_loop();
            return Idle::Again;
        }
        self.wait()
    }

    #[cold]
    fn wait(&mut self) -> Idle {
        self.idle = self.spins;
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited >= self.timeout {
            return Idle::TooLong(waited);
        }
        if waited < SLEEP_AFTER {
            thread::yield_now();
        } else {
            thread::sleep(NAP);
        }
        Idle::Look
    }
}

/// What to do when nothing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// Look again.
    Again,
    /// Look again, and see whether the others are still there.
    Look,
    /// Give up, after so long.
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
            idle => Some(idle),
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
