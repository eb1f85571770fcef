//! How busy the host is with other work before a run.

use std::time::Duration;
use std::{fs, thread};

use invar_linux::processors::allowed_bits;
use serde::Serialize;

/// The kernel counts in steps of 10 ms at least.
const LOOK: Duration = Duration::from_millis(100);
/// Less than this is no other work: the kernel's count is as coarse.
const BUSY_PERCENT_MIN: u64 = 20;

/// Cores that other work keeps busy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Load {
    /// Their numbers, as `0-1,4`.
    cores: String,
    /// How much of these cores' time other work takes, on average.
    percent: u64,
}

impl Load {
    /// Looks for a tenth of a second. `None` where no core that this process may run on is busy, or
    /// the kernel does not tell.
    pub(super) fn measure() -> Option<Load> {
        let read = || fs::read_to_string("/proc/stat").ok();
        let before = read()?;
        thread::sleep(LOOK);
        let allowed = allowed_bits();
        let is_ours =
            |core: usize| allowed.get(core / 8).is_some_and(|byte| byte >> (core % 8) & 1 == 1);
        Load::between(&before, &read()?, is_ours)
    }

    /// From two looks at `/proc/stat`.
    fn between(before: &str, after: &str, is_ours: impl Fn(usize) -> bool) -> Option<Load> {
        let after: Vec<Core> = after.lines().filter_map(Core::parse).collect();
        let busy: Vec<(usize, u64)> = before
            .lines()
            .filter_map(Core::parse)
            .filter(|core| is_ours(core.number))
            .filter_map(|before| {
                let after = after.iter().find(|after| after.number == before.number)?;
                let total = after.total.checked_sub(before.total).filter(|total| *total > 0)?;
                let idle = after.idle.saturating_sub(before.idle).min(total);
                Some((before.number, 100 * (total - idle) / total))
            })
            .filter(|(_, percent)| *percent >= BUSY_PERCENT_MIN)
            .collect();
        let sum: u64 = busy.iter().map(|(_, percent)| percent).sum();
        let numbers: Vec<usize> = busy.iter().map(|(number, _)| *number).collect();
        let percent = sum.checked_div(busy.len() as u64)?;
        Some(Load { cores: ranges(&numbers), percent })
    }

    /// Lines for the head of a table.
    pub(super) fn lines(&self) -> String {
        let Load { cores, percent } = self;
        let word = if cores.parse::<usize>().is_ok() { "core" } else { "cores" };
        format!(
            "# {word} {cores}: {percent} % busy with other work\n\
             # figures may be much worse than on an idle host\n"
        )
    }
}

/// Time of one core, in ticks.
struct Core {
    number: usize,
    idle: u64,
    total: u64,
}

impl Core {
    /// From a line of `/proc/stat` (`proc_stat(5)`): `cpu0 user nice system idle iowait irq softirq
    /// steal guest guest_nice`. User time has guest time in it already.
    fn parse(line: &str) -> Option<Core> {
        let (number, ticks) = line.strip_prefix("cpu")?.split_once(' ')?;
        let ticks: Option<Vec<u64>> =
            ticks.split_ascii_whitespace().take(8).map(|tick| tick.parse().ok()).collect();
        let (number, ticks) = (number.parse().ok()?, ticks?);
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Core { number, idle, total: ticks.iter().sum() })
    }
}

/// Ascending numbers, with runs of them as `0-3`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        [only] => only.to_string(),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "cpu  9 9 9 9 9 9 9 9 9 9\n\
                          cpu0 100 0 50 1000 10 0 0 0 0 0\n\
                          cpu1 100 0 50 1000 10 0 0 0 0 0\n\
                          cpu2 100 0 50 1000 10 0 0 0 0 0\n\
                          intr 5\n";

    #[test]
    fn busy_cores_are_named_with_their_average() {
        let after = "cpu0 103 0 51 1005 11 0 0 0 0 0\n\
                     cpu1 101 0 50 1009 10 0 0 0 0 0\n\
                     cpu2 104 0 51 1004 10 0 0 1 0 0\n";
        let load = |is_ours: fn(usize) -> bool| Load::between(BEFORE, after, is_ours);
        let busy = Load { cores: "0,2".to_owned(), percent: 50 };
        assert!(busy.lines().starts_with("# cores 0,2: 50 % busy with other work\n"));
        assert_eq!(load(|_| true), Some(busy));
        let one = load(|core| core == 2).unwrap().lines();
        assert!(one.starts_with("# core 2: 60 % busy"), "{one}");
        assert_eq!(load(|core| core == 1), None);
        assert_eq!(Load::between(BEFORE, BEFORE, |_| true), None);
    }

    #[test]
    fn runs_of_numbers_are_shortened() {
        assert_eq!(ranges(&[0, 1, 2, 4, 6, 7]), "0-2,4,6-7");
    }

    #[test]
    fn the_kernel_s_own_lines_are_read() {
        let stat = fs::read_to_string("/proc/stat").unwrap();
        let cores = stat.lines().filter_map(Core::parse).count();
        assert!(
            cores > 0 && stat.lines().filter(|line| line.starts_with("cpu")).count() == cores + 1
        );
    }
}
