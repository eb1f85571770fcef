//! How long the NIC's thread leaves packets to the application.

use std::time::Duration;

/// The application counts as polling for this long after its last poll. A peer may have to wait this
/// long until the thread notices that polling has stopped. At this interval the thread interrupts the
/// application's core.
pub(super) const LONG_NS: u64 = 4_000_000;
/// The application counts as polling for only this long if it recently left packets to the thread.
const SHORT_NS: u64 = 10_000;
/// Number of times in a row that the thread must be useless before it stands by for [`LONG_NS`] again.
const CHECKS: u32 = 64;

/// The thread is starved if it wakes this much later than it asked for.
const STARVED: Duration = Duration::from_micros(300);

/// Decides when the thread takes over from an application that polls.
///
/// Some programs poll the NIC for a while, and then spin on memory until a peer writes there. Each packet
/// that such a program leaves to the thread, be it an acknowledge to send, lets the thread stand by only
/// shortly for some time. If such programs leave no processor to the thread, the thread is starved for as long.
pub(super) struct StandBy {
    /// Whether the application is such a program.
    spins_on_memory: bool,
    /// Number of checks until the thread stands by for long again.
    checks_left: u32,
    /// Whether the thread woke too late since it began to stand by shortly.
    is_starved: bool,
}

impl StandBy {
    /// Creates the decisions of one NIC. `spins_on_memory` says whether its application may spin on memory.
    pub(super) fn new(spins_on_memory: bool) -> Self {
        StandBy { spins_on_memory, checks_left: 0, is_starved: false }
    }

    /// Returns how long the thread must still stand by if the last poll was `quiet_ns` ago. `None` means
    /// that the thread takes over.
    pub(super) fn wait(&mut self, quiet_ns: u64) -> Option<Duration> {
        let stand_by_ns = if self.checks_left > 0 { SHORT_NS } else { LONG_NS };
        let left_ns = stand_by_ns.checked_sub(quiet_ns).filter(|left_ns| *left_ns > 0)?;
        self.checks_left = self.checks_left.saturating_sub(1);
        Some(Duration::from_nanos(left_ns))
    }

    /// Notes that the thread stood by for `late` longer than [`StandBy::wait`] said.
    pub(super) fn overslept(&mut self, late: Duration) {
        self.is_starved |= self.checks_left > 0 && late >= STARVED;
    }

    /// Returns whether the program spins on memory, and leaves no processor to the thread.
    pub(super) fn is_starved(&self) -> bool {
        self.is_starved && self.checks_left > 0
    }

    /// Notes that the thread took over `quiet_ns` after the last poll, and whether packets had arrived or
    /// were left to send.
    pub(super) fn took_over(&mut self, quiet_ns: u64, found_work: bool) {
        let left_to_the_thread = found_work && quiet_ns >= SHORT_NS;
        if !self.spins_on_memory || !left_to_the_thread {
            self.checks_left = self.checks_left.saturating_sub(1);
            return;
        }
        self.is_starved &= self.checks_left > 0;
        self.checks_left = CHECKS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_stands_by_shortly_while_the_application_leaves_packets_to_it() {
        let mut stand_by = StandBy::new(true);
        assert_eq!(stand_by.wait(0), Some(Duration::from_nanos(LONG_NS)));
        assert_eq!(stand_by.wait(LONG_NS), None);
        stand_by.took_over(LONG_NS, true);
        // A program that polls, and then spins on memory.
        for _ in 0..1000 {
            assert_eq!(stand_by.wait(1), Some(Duration::from_nanos(SHORT_NS - 1)));
            assert_eq!(stand_by.wait(SHORT_NS), None);
            stand_by.took_over(SHORT_NS, true);
        }
    }

    #[test]
    fn the_thread_stands_by_for_long_again_once_the_application_polls_for_some_time() {
        let mut stand_by = StandBy::new(true);
        stand_by.took_over(LONG_NS, true);
        let short = (0..1000).filter(|_| stand_by.wait(0) < Some(Duration::from_nanos(LONG_NS)));
        assert_eq!(short.count(), CHECKS as usize);
        // The application takes each packet before the thread wakes for that packet.
        stand_by.took_over(LONG_NS, true);
        for _ in 0..CHECKS {
            assert_eq!(stand_by.wait(SHORT_NS), None);
            stand_by.took_over(SHORT_NS, false);
        }
        assert!(stand_by.wait(SHORT_NS).is_some());
    }

    #[test]
    fn for_an_application_that_never_spins_on_memory_the_thread_stands_by_for_long() {
        let mut stand_by = StandBy::new(false);
        for _ in 0..100 {
            assert_eq!(stand_by.wait(SHORT_NS), Some(Duration::from_nanos(LONG_NS - SHORT_NS)));
            stand_by.took_over(LONG_NS, true);
        }
    }

    #[test]
    fn the_thread_is_starved_from_a_late_wake_until_the_application_polls_for_some_time() {
        let mut stand_by = StandBy::new(true);
        // The application polls: a late thread harms nobody.
        stand_by.overslept(STARVED);
        assert!(!stand_by.is_starved());
        stand_by.took_over(LONG_NS, true);
        stand_by.overslept(STARVED - Duration::from_nanos(1));
        assert!(!stand_by.is_starved());
        stand_by.overslept(STARVED);
        for _ in 0..CHECKS {
            assert!(stand_by.is_starved());
            stand_by.took_over(SHORT_NS, false);
        }
        assert!(!stand_by.is_starved());
        stand_by.took_over(SHORT_NS, true);
        assert!(!stand_by.is_starved());
    }

    #[test]
    fn packets_that_the_application_would_have_taken_soon_do_not_count() {
        let mut stand_by = StandBy::new(true);
        stand_by.took_over(SHORT_NS - 1, true);
        assert!(stand_by.wait(SHORT_NS).is_some());
    }
}
