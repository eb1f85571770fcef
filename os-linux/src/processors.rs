//! The processors that threads may run on.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

/// Returns the processors that this thread may run on, one set each, in ascending order. Returns none if
/// the kernel does not say.
pub fn allowed() -> Vec<CpuSet> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let one = |cpu| {
        let mut one = CpuSet::new();
        one.set(cpu);
        one
    };
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).map(one).collect()
}

/// Length of [`allowed_bits`] in bytes.
pub const BITS_BYTES: usize = CpuSet::MAX_CPU / 8;

/// Returns the processors that this thread may run on, one bit each, lowest first; all bits if the
/// kernel does not say.
pub fn allowed_bits() -> [u8; BITS_BYTES] {
    let Ok(allowed) = sched_getaffinity(None) else { return [0xff; _] };
    let bit = |cpu: usize| u8::from(allowed.is_set(cpu)) << (cpu % 8);
    std::array::from_fn(|byte| (0..8).map(|cpu| bit(8 * byte + cpu)).sum())
}

/// Returns the processors that this thread may run on and that are near one of the devices. `pci_paths`
/// are the sysfs directories of the PCI devices. Returns `None` if there are no such processors, or the
/// kernel does not say.
pub fn near<P: AsRef<Path>>(pci_paths: impl IntoIterator<Item = P>) -> Option<CpuSet> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut near = CpuSet::new();
    for path in pci_paths {
        let list = fs::read_to_string(path.as_ref().join("local_cpulist")).unwrap_or_default();
        let cpus = list.trim().split(',').filter_map(range).flatten();
        // The kernel may list processors beyond the size of a set.
        cpus.take_while(|cpu| *cpu < CpuSet::MAX_CPU)
            .filter(|cpu| allowed.is_set(*cpu))
            .for_each(|cpu| near.set(cpu));
    }
    (near.count() > 0).then_some(near)
}

/// Parses `3` or `0-3`.
fn range(text: &str) -> Option<RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_a_device_are_those_that_the_kernel_lists_and_this_thread_may_use() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().to_owned();
        let near_to = |list: &str| {
            fs::write(device.join("local_cpulist"), list).unwrap();
            near([&device])
        };
        let all = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        assert_eq!(near_to(&format!("{first}\n")), Some(allowed()[0]));
        assert_eq!(near_to("0-100000\n"), Some(all));
        assert_eq!(near_to(&format!("0-{first},900-1000,7000-7001\n")), Some(allowed()[0]));
        for none in ["", "\n", "x-3", "3-x", "70000"] {
            assert_eq!(near_to(none), None, "{none:?}");
        }
        fs::remove_dir_all(&device).unwrap();
        assert_eq!(near([&device]), None);
    }

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
