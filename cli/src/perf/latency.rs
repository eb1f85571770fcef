//! The distribution of half round trips, or of whole READs.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::operation::Op;

/// Values of a histogram differ by at least a thousandth.
const DIGITS: u8 = 3;
/// Longer half round trips count as this one.
const LONGEST: Duration = Duration::from_secs(60);
/// The columns of the widest bar.
const BAR: u64 = 40;

/// Half round trips of one size while they are measured.
pub(super) struct Recorder(Histogram<u64>);

/// Percentiles of half round trips in microseconds, by the nearest rank, and how many there were of each
/// length.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Latency {
    #[serde(skip)]
    pub(super) min: f64,
    pub(super) p50: f64,
    p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    p9999: f64,
    pub(super) max: f64,
    /// Upper bounds in microseconds, each twice the one before, and how many values are up to there.
    histogram: Vec<(f64, u64)>,
}

impl Recorder {
    /// Takes all its memory at once, so that a timed pass allocates nothing.
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, DIGITS);
        Recorder(histogram.expect("bounds in order, and a number of digits from 0 to 5"))
    }

    #[inline]
    pub(super) fn record(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos().try_into().unwrap_or(u64::MAX));
    }

    pub(super) fn latency(&self) -> Latency {
        let us = |ns: u64| ns as f64 / 1000.0;
        let percentile = |percent: f64| us(self.0.value_at_percentile(percent));
        let first = self.0.min().max(1).next_power_of_two();
        let bins = self.0.iter_log(first, 2.0);
        Latency {
            min: us(self.0.min()),
            p50: percentile(50.0),
            p90: percentile(90.0),
            p99: percentile(99.0),
            p999: percentile(99.9),
            p9999: percentile(99.99),
            max: us(self.0.max()),
            histogram: bins
                .map(|bin| (us(bin.value_iterated_to() + 1), bin.count_since_last_iteration()))
                .collect(),
        }
    }
}

impl Latency {
    /// Lines for the percentiles and a bar for each length.
    pub(super) fn lines(&self, size: &str, op: Op) -> String {
        let what = if op == Op::Read { "whole READs" } else { "half round trips" };
        let Latency { min, p50, p90, p99, p999, p9999, max, histogram } = self;
        let mut lines = vec![format!(
            "# {size}, {what} in us: min {min:.2}, p50 {p50:.2}, p90 {p90:.2}, p99 {p99:.2}, \
             p99.9 {p999:.2}, p99.99 {p9999:.2}, max {max:.2}"
        )];
        let most = histogram.iter().map(|(_, count)| *count).max().unwrap_or(0).max(1);
        for (to, count) in histogram {
            let bar = "#".repeat((count * BAR).div_ceil(most) as usize);
            lines.push(format!("# <= {to:>11.2} {count:>9} {bar}").trim_end().to_owned());
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(micros: impl IntoIterator<Item = u64>) -> Latency {
        let mut recorder = Recorder::new();
        micros.into_iter().for_each(|us| recorder.record(Duration::from_micros(us)));
        recorder.latency()
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= b / 1000.0
    }

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let latency = of((1..=10_000).rev());
        let Latency { min, p50, p90, p99, p999, p9999, max, .. } = latency;
        for (got, want) in [
            (min, 1.0),
            (p50, 5000.0),
            (p90, 9000.0),
            (p99, 9900.0),
            (p999, 9990.0),
            (p9999, 9999.0),
            (max, 10_000.0),
        ] {
            assert!(near(got, want), "{got} for {want}");
        }
        let one = of([7]);
        assert!(near(one.p50, 7.0) && near(one.p9999, 7.0));
    }

    #[test]
    fn each_value_is_in_one_bin_of_the_histogram() {
        let latency = of([1, 3, 3, 100]);
        let count: u64 = latency.histogram.iter().map(|(_, count)| count).sum();
        assert_eq!(count, 4);
        let up_to = |us: f64| {
            let bins = latency.histogram.iter().filter(|(to, _)| *to <= us);
            bins.map(|(_, count)| count).sum::<u64>()
        };
        assert_eq!([up_to(2.5), up_to(5.0), up_to(60.0), up_to(200.0)], [1, 3, 3, 4]);
        assert!(latency.lines("8 B", Op::Write).lines().all(|line| line.starts_with("# ")));
    }

    #[test]
    fn a_value_that_is_too_long_counts_as_the_longest() {
        assert!(near(of([3_600_000_000]).max, 60e6));
    }

    #[test]
    fn nothing_measured_is_no_panic() {
        assert_eq!(Recorder::new().latency().p50, 0.0);
    }
}
