//! A histogram of times whose buckets grow by half and by a third in turn.

/// Number of buckets. The last one takes all times that are longer than the bound of the one before.
pub const BUCKETS: usize = 49;

/// Counts of times, by buckets from a microsecond to 12 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Number of times in each bucket.
    pub counts: [u64; BUCKETS],
    /// Sum of all times.
    pub sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Histogram {
    /// The longest time of a bucket; `None` for the last bucket, which has no bound.
    pub const fn bound_ns(bucket: usize) -> Option<u64> {
        if bucket >= BUCKETS - 1 {
            return None;
        }
        let octave = 1000 << (bucket / 2);
        Some(if bucket.is_multiple_of(2) { octave } else { octave / 2 * 3 })
    }

    /// Counts a time.
    pub fn add(&mut self, ns: u64) {
        let is_longer = |bucket: &usize| Self::bound_ns(*bucket).is_some_and(|bound| ns > bound);
        let bucket = (0..BUCKETS).take_while(is_longer).count();
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// The times that were counted after `earlier`, an earlier state of this histogram.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let count = |at: usize| self.counts[at].saturating_sub(earlier.counts[at]);
        let sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
        Histogram { counts: core::array::from_fn(count), sum_ns }
    }

    /// Number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The bound of the bucket in which this part of all times ends; `None` if there are no times or if
    /// that bucket has no bound.
    pub fn quantile_ns(&self, per_mille: u64) -> Option<u64> {
        let total = u128::from(self.count());
        let rank = (total * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += u128::from(*count);
            below >= rank
        })?;
        Self::bound_ns(bucket)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_grow_by_half_and_by_a_third() {
        let bounds: std::vec::Vec<_> = (0..6).map(Histogram::bound_ns).collect();
        assert_eq!(bounds, [1000, 1500, 2000, 3000, 4000, 6000].map(Some));
        assert_eq!(Histogram::bound_ns(BUCKETS - 2), Some(12_582_912_000));
        assert_eq!(Histogram::bound_ns(BUCKETS - 1), None);
    }

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_ns(500), None);
        (0..99).for_each(|_| histogram.add(2_500));
        histogram.add(1_000_000);
        assert_eq!(histogram.quantile_ns(500), Some(3_000));
        assert_eq!(histogram.quantile_ns(999), Some(1_024_000));
        histogram.add(u64::MAX);
        assert_eq!(histogram.quantile_ns(1000), None);
    }

    proptest! {
        #[test]
        fn a_time_is_in_the_first_bucket_that_holds_it(ns in any::<u64>()) {
            let mut histogram = Histogram::default();
            histogram.add(ns);
            let bucket = histogram.counts.iter().position(|count| *count == 1).unwrap();
            prop_assert!(Histogram::bound_ns(bucket).is_none_or(|bound| ns <= bound));
            if let Some(before) = bucket.checked_sub(1) {
                prop_assert!(Histogram::bound_ns(before).unwrap() < ns);
            }
        }
    }
}
