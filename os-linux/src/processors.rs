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
}
