//! The time that a stretch of work takes, by the clock and of the processor.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A stretch of work under way.
pub(super) struct Stretch {
    start: Instant,
    processor: Duration,
}

/// The time and processor use of a stretch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    pub(super) elapsed: Duration,
    /// Processor time of all threads of this process.
    pub(super) processor: Duration,
}

impl Stretch {
    pub(super) fn begin() -> Self {
        let processor = processor_time();
        Stretch { start: Instant::now(), processor }
    }

    /// The time since the beginning.
    #[inline]
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn end(&self) -> Used {
        let elapsed = self.start.elapsed();
        Used { elapsed, processor: processor_time().saturating_sub(self.processor) }
    }
}

impl Used {
    /// Processor time in percent of the time by the clock: 200 is two busy cores.
    pub(super) fn percent(&self) -> f64 {
        100.0 * self.processor.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_busy_cores_are_200_percent() {
        let used =
            Used { elapsed: Duration::from_millis(50), processor: Duration::from_millis(100) };
        assert!((used.percent() - 200.0).abs() < 1e-9);
    }

    #[test]
    fn work_takes_processor_time() {
        let stretch = Stretch::begin();
        let mut sum = 0_u64;
        while processor_time() < stretch.processor + Duration::from_millis(2) {
            sum = std::hint::black_box(sum.wrapping_mul(3) + 1);
        }
        assert!(stretch.end().processor >= Duration::from_millis(2), "{sum}");
    }
}
