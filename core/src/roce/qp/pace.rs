//! Limits the rate at which packets leave.

use core::num::NonZeroU32;

use super::TRAIN_BYTES_MAX;

/// A token bucket that holds one train, so that packets leave in trains and not one by one.
#[derive(Clone, Default)]
pub(super) struct Pacer {
    ns_per_kib: u64,
    /// Time at which the packets sent so far would end at the maximum rate.
    busy_until: u64,
    /// Time until which no packet may leave.
    wait_until: Option<u64>,
}

impl Pacer {
    /// Creates a pacer with a maximum rate in Mbit/s. `None` means no limit.
    pub(super) fn new(rate_mbps_max: Option<NonZeroU32>) -> Self {
        let ns_per_kib = rate_mbps_max.map_or(0, |mbps| 1024 * 8000 / u64::from(mbps.get()));
        Pacer { ns_per_kib, ..Pacer::default() }
    }

    /// Returns whether there is a rate limit. If so, packets leave one by one and each is counted.
    pub(super) fn is_limited(&self) -> bool {
        self.ns_per_kib > 0
    }

    /// Returns whether a packet may leave.
    pub(super) fn allows(&self, now: u64) -> bool {
        self.wait_until.is_none_or(|until| until <= now)
    }

    /// Counts a packet of `bytes` that left.
    pub(super) fn on_transmit(&mut self, now: u64, bytes: u32) {
        if self.ns_per_kib == 0 {
            return;
        }
        let cost = |bytes: u32| u64::from(bytes) * self.ns_per_kib / 1024;
        self.busy_until = self.busy_until.max(now).saturating_add(cost(bytes));
        if self.busy_until - now >= cost(TRAIN_BYTES_MAX) {
            self.wait_until = Some(self.busy_until);
        }
    }

    /// Time at which packets may leave again, if none may leave now.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.wait_until
    }

    /// Forgets the pause, since nothing more leaves.
    pub(super) fn stop(&mut self) {
        self.wait_until = None;
    }

    pub(super) fn handle_timeout(&mut self, now: u64) {
        self.wait_until.take_if(|until| *until <= now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_in_trains_at_the_rate() {
        let mut pacer = Pacer::new(NonZeroU32::new(1000));
        let (mut now, mut sent, mut waits) = (5_000_000, 0u64, 0);
        while sent < 10_000_000 {
            if pacer.allows(now) {
                pacer.on_transmit(now, 4096);
                sent += 4096;
            } else {
                now = pacer.deadline_ns().unwrap();
                pacer.handle_timeout(now);
                assert_eq!(pacer.deadline_ns(), None);
                waits += 1;
            }
        }
        let expected_ns = sent * 8;
        assert!((now - 5_000_000).abs_diff(expected_ns) < 16 * u64::from(TRAIN_BYTES_MAX));
        assert_eq!(waits, sent / (16 * 4096));
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut pacer = Pacer::new(None);
        (0..1000).for_each(|_| pacer.on_transmit(7, 4096));
        assert!(pacer.allows(7) && pacer.deadline_ns().is_none());
    }
}
