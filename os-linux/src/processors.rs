//! Processors, one by one.

use rustix::thread::{CpuSet, sched_getaffinity};

/// Those that this thread may run on, each by itself, in the order of their numbers; none where the
/// kernel does not say.
pub fn allowed() -> Vec<CpuSet> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let one = |cpu| {
        let mut one = CpuSet::new();
        one.set(cpu);
        one
    };
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).map(one).collect()
}

/// Bytes of [`allowed_bits`].
pub const BITS_BYTES: usize = CpuSet::MAX_CPU / 8;

/// Those that this thread may run on, a bit each, lowest first; all, where the kernel does not say.
pub fn allowed_bits() -> [u8; BITS_BYTES] {
    let Ok(allowed) = sched_getaffinity(None) else { return [0xff; _] };
    let bit = |cpu: usize| u8::from(allowed.is_set(cpu)) << (cpu % 8);
    std::array::from_fn(|byte| (0..8).map(|cpu| bit(8 * byte + cpu)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_they_are_all_that_are_allowed() {
        let mut together = CpuSet::new();
        for one in allowed() {
            assert_eq!(one.count(), 1);
            (0..CpuSet::MAX_CPU).filter(|cpu| one.is_set(*cpu)).for_each(|cpu| together.set(cpu));
        }
        assert_eq!(together, sched_getaffinity(None).unwrap());
    }

    #[test]
    fn each_has_its_bit() {
        let allowed = sched_getaffinity(None).unwrap();
        let bits = allowed_bits();
        assert_eq!(bits.iter().map(|byte| byte.count_ones()).sum::<u32>(), allowed.count());
        let last = (0..CpuSet::MAX_CPU).rfind(|cpu| allowed.is_set(*cpu)).unwrap();
        assert_eq!(bits[last / 8] >> (last % 8), 1, "the last");
    }
}
