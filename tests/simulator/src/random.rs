//! Random choices that a seed decides.

/// A stream of numbers (SplitMix64). Equal seeds give equal streams.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream for a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number, which may have any value.
    #[expect(clippy::should_implement_trait, reason = "never ends, and is no sequence of items")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The small bias does not matter here.
        self.next() % end.max(1)
    }

    /// Whether an event happens that has a probability of `ppm` in a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < ppm.into()
    }

    /// One of the given values.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
