//! The ranks of communicators in `invar top`.

use std::collections::HashMap;
use std::fmt::Write;

use invar_core::metrics::RankNumbers;
use invar_core::recorder::RankRecord;
use serde::Serialize;

use super::Key;

/// Records of ranks, each with its process.
pub(super) type Ranks = HashMap<Key, (u32, RankRecord)>;

/// A rank as it is shown.
#[derive(Serialize)]
pub(super) struct RankRow {
    pid: u32,
    communicator: String,
    rank: u32,
    nranks: u32,
    operations: u64,
    bytes: u64,
    operations_per_second: f64,
    bytes_per_second: f64,
    /// The part of the time in which the rank waited for other ranks.
    wait: f64,
    stalls: u64,
    /// The operation that runs, if it is timed; else nothing.
    runs: String,
}

/// The ranks, by communicator. `seconds` lie between `before` and `now`.
pub(super) fn rows(before: &Ranks, now: &Ranks, seconds: f64) -> Vec<RankRow> {
    let row = |(key, (pid, record)): (&Key, &(u32, RankRecord))| {
        row(*pid, before.get(key).map(|(_, record)| record), record, seconds)
    };
    let mut rows: Vec<_> = now.iter().map(row).collect();
    rows.sort_by(|a, b| (&a.communicator, a.rank).cmp(&(&b.communicator, b.rank)));
    rows
}

fn row(pid: u32, before: Option<&RankRecord>, now: &RankRecord, seconds: f64) -> RankRow {
    // Another rank may have taken the place.
    let is_of_rank =
        |before: &&RankRecord| (before.communicator, before.rank) == (now.communicator, now.rank);
    let before = before.filter(is_of_rank);
    let rate = |of: fn(&RankNumbers) -> u64| {
        let grown = before.map(|before| of(&now.numbers).saturating_sub(of(&before.numbers)));
        grown.map_or(0.0, |grown| grown as f64 / seconds)
    };
    let runs = now.operations.last().filter(|operation| operation.took_ns.is_none());
    let RankNumbers { operations, bytes, stalls, .. } = now.numbers;
    RankRow {
        pid,
        communicator: format!("{:016x}", now.communicator),
        rank: now.rank,
        nranks: now.nranks,
        operations,
        bytes,
        operations_per_second: rate(|of| of.operations),
        bytes_per_second: rate(|of| of.bytes),
        wait: rate(|of| of.waited_ns) / 1e9,
        stalls,
        runs: runs.map_or_else(String::new, |operation| operation.text.as_str().to_owned()),
    }
}

pub(super) fn table(rows: &[RankRow]) -> String {
    let mut text = format!(
        "{:>8} {:<16} {:>5} {:>5} {:>8} {:>9} {:>6} {:>6}  {}\n",
        "PID", "COMMUNICATOR", "RANK", "RANKS", "GB/s", "op/s", "WAIT %", "STALLS", "RUNS"
    );
    for row in rows {
        let RankRow { pid, communicator, rank, nranks, stalls, runs, .. } = row;
        let (gb, operations) = (row.bytes_per_second / 1e9, row.operations_per_second);
        let (wait, runs) = (row.wait * 100.0, if runs.is_empty() { "-" } else { runs });
        let _ = writeln!(
            text,
            "{pid:>8} {communicator:<16} {rank:>5} {nranks:>5} {gb:>8.3} {operations:>9.0} {wait:>6.1} \
             {stalls:>6}  {runs}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_has_the_rates_of_the_interval_and_another_in_its_place_has_none() {
        let at = |communicator, operations, waited_ns| {
            let numbers = RankNumbers { operations, bytes: operations * 100, waited_ns, stalls: 0 };
            let record = RankRecord { communicator, numbers, ..RankRecord::default() };
            Ranks::from([(("a".into(), 0), (7, record))])
        };
        let rates = |before: &Ranks, now: &Ranks| {
            let row = &rows(before, now, 2.0)[0];
            (row.operations_per_second, row.bytes_per_second, row.wait)
        };
        let before = at(1, 10, 1_000_000_000);
        assert_eq!(rates(&before, &at(1, 14, 2_000_000_000)), (2.0, 200.0, 0.5));
        assert_eq!(rates(&before, &before), (0.0, 0.0, 0.0));
        assert_eq!(rates(&before, &at(2, 14, 2_000_000_000)), (0.0, 0.0, 0.0));
    }
}
