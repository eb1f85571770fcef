//! Puts the clocks of several processes on one time line.
//!
//! Both ends of a connection know its number. The end that called has compared its clock with that of the other
//! end. If the hosts' own clocks agree within the error of this comparison, they need no correction.

use invar_core::recorder::Record;
use invar_linux::recorder::Recorded;

/// The correction of a process' clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Correction {
    /// Nanoseconds to add to the times of the process.
    pub(super) add_ns: i64,
    /// The true time lies within so many nanoseconds. `None` if no connection leads to the process.
    pub(super) uncertainty_ns: Option<u64>,
}

/// How far the clock of one process is ahead of that of another, according to a connection.
struct Link {
    /// Places of the processes in the list.
    from: usize,
    to: usize,
    ahead_ns: i64,
    uncertainty_ns: u64,
}

/// Returns the corrections by which all processes have the clock of the first one of those that connections
/// join. Of several ways to a process the one with the least uncertainty counts.
pub(super) fn corrections(all: &[Recorded]) -> Vec<Correction> {
    let links = links(all);
    let mut found: Vec<Option<Correction>> = vec![None; all.len()];
    for first in 0..all.len() {
        if found[first].is_none() {
            let is_joined = links.iter().any(|link| [link.from, link.to].contains(&first));
            let uncertainty_ns = is_joined.then_some(0);
            found[first] = Some(Correction { add_ns: 0, uncertainty_ns });
        }
        while let Some((place, next)) = nearest(&links, &found) {
            found[place] = Some(next);
        }
    }
    found.into_iter().flatten().collect()
}

/// Returns the process that can be corrected with the least uncertainty, among those that are not yet.
fn nearest(links: &[Link], found: &[Option<Correction>]) -> Option<(usize, Correction)> {
    let next = links.iter().flat_map(|link| {
        let Link { from, to, ahead_ns, uncertainty_ns } = *link;
        [(from, to, ahead_ns), (to, from, ahead_ns.saturating_neg())].map(
            |(known, place, ahead_ns)| {
                let Correction { add_ns, uncertainty_ns: before } = found[known]?;
                // Host clocks that agree as far as the connection can tell are better than it.
                let is_equal = ahead_ns.unsigned_abs() <= uncertainty_ns;
                let less_ns = if is_equal { 0 } else { ahead_ns };
                let uncertainty_ns = Some(before.unwrap_or(0).saturating_add(uncertainty_ns));
                let add_ns = add_ns.saturating_sub(less_ns);
                found[place].is_none().then_some((place, Correction { add_ns, uncertainty_ns }))
            },
        )
    });
    next.flatten().min_by_key(|(_, correction)| correction.uncertainty_ns)
}

/// Returns the place of the process that has the other end of a connection.
pub(super) fn other_process(all: &[Recorded], ours: &Recorded, record: &Record) -> Option<usize> {
    let is_other_end = |theirs: &Recorded| {
        theirs.header != ours.header
            && theirs.records.iter().any(|(_, other)| other.number == record.number)
    };
    // Connections without a number cannot be told apart.
    all.iter().position(|theirs| record.number != 0 && is_other_end(theirs))
}

/// Finds the connections that join two of the processes and tell a clock.
fn links(all: &[Recorded]) -> Vec<Link> {
    let mut links = Vec::new();
    for (from, ours) in all.iter().enumerate() {
        for (_, record) in &ours.records {
            let Some(clock) = record.peer_clock else { continue };
            let Some(to) = other_process(all, ours, record) else { continue };
            // Each header compares the clock of its events with the clock of its host.
            let hosts_ns =
                i128::from(all[to].header.unix_offset_ns) - i128::from(ours.header.unix_offset_ns);
            if let Ok(ahead_ns) = i64::try_from(hosts_ns + i128::from(clock.ahead_ns)) {
                links.push(Link { from, to, ahead_ns, uncertainty_ns: clock.uncertainty_ns });
            }
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use invar_core::metrics::MemoryNumbers;
    use invar_core::peer_clock::PeerClock;
    use invar_core::recorder::Header;
    use invar_core::stall::{EndView, Process, Role};

    use super::*;

    /// A process whose host's clock shows `unix_offset_ns` at zero of its events. Its connections have these
    /// numbers and clocks of the peer, each with its uncertainty.
    fn process(
        pid: u32,
        unix_offset_ns: i64,
        connections: &[(u64, Option<(i64, u64)>)],
    ) -> Recorded {
        let header = Header {
            process: Process::new(pid, "a"),
            unix_offset_ns,
            memory: MemoryNumbers::default(),
        };
        let record = |(number, clock): &(u64, Option<(i64, u64)>)| Record {
            number: *number,
            peer_clock: clock
                .map(|(ahead_ns, uncertainty_ns)| PeerClock { ahead_ns, uncertainty_ns }),
            ..Record::new(Role::Sender, 1, "ends", EndView::default(), 0)
        };
        let records = connections.iter().map(record).enumerate().collect();
        let (path, ranks) = (PathBuf::new(), Vec::new());
        Recorded { path, user: 0, header, is_alive: false, records, ranks, damaged: 0 }
    }

    fn add(all: &[Recorded]) -> Vec<(i64, Option<u64>)> {
        let all = corrections(all);
        all.iter().map(|of| (of.add_ns, of.uncertainty_ns)).collect()
    }

    #[test]
    fn a_peer_whose_clock_is_ahead_is_moved_back_whichever_end_called() {
        // The hosts' clocks differ by 5 ms, and the clocks of the events by 3 ms more.
        let caller = || process(1, 1_000_000, &[(9, Some((3_000_000, 100)))]);
        let callee = || process(2, 3_000_000, &[(9, None)]);
        assert_eq!(add(&[caller(), callee()]), [(0, Some(0)), (-5_000_000, Some(100))]);
        assert_eq!(add(&[callee(), caller()]), [(0, Some(0)), (5_000_000, Some(100))]);
    }

    #[test]
    fn host_clocks_that_may_be_equal_stay_and_so_do_strangers() {
        let all = [
            process(1, 0, &[(9, Some((80, 100))), (0, Some((5000, 1)))]),
            process(2, 0, &[(9, None), (0, None)]),
            process(3, 77, &[(10, Some((1_000_000, 1)))]),
        ];
        assert_eq!(add(&all), [(0, Some(0)), (0, Some(100)), (0, None)]);
    }

    #[test]
    fn a_way_over_others_counts_if_it_is_surer() {
        let all = [
            process(1, 0, &[(1, Some((9_000_000, 5_000))), (2, Some((2_000_000, 10)))]),
            process(2, 0, &[(1, None), (3, None)]),
            process(3, 0, &[(2, None), (3, Some((6_000_000, 20)))]),
        ];
        assert_eq!(add(&all), [(0, Some(0)), (-8_000_000, Some(30)), (-2_000_000, Some(10))]);
    }
}
