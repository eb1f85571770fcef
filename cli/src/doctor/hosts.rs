//! A comparison of many hosts, as this host reaches them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use invar::Settings;
use invar_linux::interface::check_host_port;
use serde::Serialize;

use super::host::Host;
use super::peer::{self, Choice, Outcome, Pair, Tries};
use super::report::{Finding, Report, Severity};
use crate::failure::{Failure, line};
use crate::perf::SERVER_PORT;

/// No file of hosts has more bytes.
const FILE_MAX: u64 = 1 << 20;
/// A host is slower than the others if its bandwidth is below this part of the median.
const SLOWER: f64 = 0.5;
/// The fewest hosts whose median says something.
const MEDIAN_OF: usize = 3;

/// The result of trying to reach a host from a device of this host. The worst result comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// The host does not answer.
    Silent,
    /// The device reaches none of the host's devices.
    Unreachable,
    WrongBytes,
    /// No pair of devices was tried.
    Untried,
    Slower,
    Ok,
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Verdict::Silent => "silent",
            Verdict::Unreachable => "unreachable",
            Verdict::WrongBytes => "wrong bytes",
            Verdict::Untried => "not tried",
            Verdict::Slower => "slower",
            Verdict::Ok => "ok",
        }
    }
}

/// A line of the table.
#[derive(Debug, Serialize)]
struct Row {
    host: String,
    verdict: Verdict,
    /// This host's device.
    device: Option<String>,
    /// The device of the other host.
    peer_device: Option<String>,
    path_mtu: Option<usize>,
    half_round_trip_us: Option<f64>,
    gbytes_per_s: Option<f64>,
}

/// Tries the hosts of a file, and shows them side by side.
pub(super) fn check(
    path: &Path,
    settings: &Settings,
    host: &Host,
    report: &mut Report,
) -> Result<(), Failure> {
    let addrs = read(path)?;
    let tries = peer::check(&addrs, Choice::UntilReached, settings, host, report)?;
    let mut rows: Vec<Row> = tries.iter().flat_map(rows).collect();
    tell_slower(&mut rows, report);
    rows.sort_by_key(|row| row.verdict);
    report.compare(table(&rows), serde_json::to_value(&rows).map_err(Failure::new)?);
    Ok(())
}

/// The hosts of a file, with `FILE:LINE` before what is wrong with it.
fn read(path: &Path) -> Result<Vec<String>, Failure> {
    let name = path.display();
    let unread = |error| Failure::usage(format!("--hosts {name}: {error}"));
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text))
        .map_err(unread)?;
    if text.len() as u64 > FILE_MAX {
        return Err(Failure::usage(format!("--hosts {name}: it is longer than {FILE_MAX} bytes")));
    }
    hosts(&text).map_err(|(number, why)| Failure::usage(format!("--hosts {name}:{number}: {why}")))
}

/// The hosts of a text: one in each line, then words as `slots=8` that launchers read. A `#` begins a
/// comment. An error has the number of its line.
fn hosts(text: &str) -> Result<Vec<String>, (usize, String)> {
    let mut known = BTreeSet::new();
    let mut in_order = Vec::new();
    for (number, text) in (1..).zip(text.lines()) {
        let mut words = text.split('#').next().unwrap_or_default().split_whitespace();
        let Some(host) = words.next() else { continue };
        if let Some(word) = words.find(|word| !word.contains('=')) {
            return Err((number, format!("'{}' after the host; a line has one host", line(&word))));
        }
        // A host that is not found is a finding.
        if let Err(error) = check_host_port(host, Some(SERVER_PORT))
            && error.kind() == ErrorKind::InvalidInput
        {
            return Err((number, line(&error)));
        }
        // In some hostfiles a host has a line for each of its slots.
        if known.insert(host) {
            in_order.push(host.to_owned());
        }
    }
    match in_order.is_empty() {
        true => Err((text.lines().count().max(1), "the file names no host".to_owned())),
        false => Ok(in_order),
    }
}

/// A line for each of this host's devices, or one for the host.
fn rows(tries: &Tries) -> Vec<Row> {
    let Tries { addr, outcome } = tries;
    let whole = |verdict| Row {
        host: addr.clone(),
        verdict,
        device: None,
        peer_device: None,
        path_mtu: None,
        half_round_trip_us: None,
        gbytes_per_s: None,
    };
    let pairs = match outcome {
        Outcome::Silent => return vec![whole(Verdict::Silent)],
        Outcome::Pairs(pairs) => pairs,
    };
    // The last try of a device is the one that reached something.
    let last: BTreeMap<&str, &Pair> = pairs.iter().map(|pair| (pair.ours.as_str(), pair)).collect();
    let mut rows: Vec<Row> = last
        .into_values()
        .filter(|pair| pair.was_tried())
        .map(|pair| {
            let row = Row { device: Some(pair.ours.clone()), ..whole(Verdict::Unreachable) };
            let Ok(tried) = &pair.outcome else { return row };
            Row {
                verdict: if tried.wrong > 0 { Verdict::WrongBytes } else { Verdict::Ok },
                peer_device: Some(pair.theirs.clone()),
                path_mtu: tried.path_mtu,
                half_round_trip_us: Some(tried.half_round_trip_us),
                gbytes_per_s: Some(tried.gbytes_per_s),
                ..row
            }
        })
        .collect();
    if rows.is_empty() {
        rows.push(whole(Verdict::Untried));
    }
    rows
}

/// Finds hosts that a device reaches with far less bandwidth than the others.
fn tell_slower(rows: &mut [Row], report: &mut Report) {
    let mut of_device: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in rows.iter() {
        if let (Some(device), Some(bandwidth)) = (&row.device, row.gbytes_per_s) {
            of_device.entry(device.clone()).or_default().push(bandwidth);
        }
    }
    of_device.retain(|_, all| all.len() >= MEDIAN_OF);
    of_device.values_mut().for_each(|all| all.sort_by(f64::total_cmp));
    for row in rows.iter_mut().filter(|row| row.verdict == Verdict::Ok) {
        let (Some(device), Some(bandwidth)) = (&row.device, row.gbytes_per_s) else { continue };
        let Some(all) = of_device.get(device) else { continue };
        let median = all[all.len() / 2];
        if bandwidth >= SLOWER * median {
            continue;
        }
        row.verdict = Verdict::Slower;
        report.find(Finding {
            severity: Severity::Warn,
            id: "host-slower",
            subject: format!("{device} to {}", row.host),
            what: format!(
                "{bandwidth:.2} GB/s; this device reaches half of the hosts with {median:.2} or more"
            ),
            costs: "a job of all hosts runs at the speed of this one".to_owned(),
            mend: format!(
                "invar doctor   # on {}; then here: invar perf --nic {device} --connect {0}",
                row.host
            ),
        });
    }
}

fn table(rows: &[Row]) -> String {
    let head = ["host", "result", "device", "peer's", "MTU", "us", "GB/s"].map(str::to_owned);
    let cells = |row: &Row| {
        let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        [
            row.host.clone(),
            row.verdict.as_str().to_owned(),
            or_dash(row.device.clone()),
            or_dash(row.peer_device.clone()),
            or_dash(row.path_mtu.map(|mtu| mtu.to_string())),
            or_dash(row.half_round_trip_us.map(|us| format!("{us:.1}"))),
            or_dash(row.gbytes_per_s.map(|rate| format!("{rate:.2}"))),
        ]
    };
    let lines: Vec<[String; 7]> = [head].into_iter().chain(rows.iter().map(cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let words =
            line.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
                0..=3 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
        text.push_str(&words.collect::<Vec<_>>().join("  "));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::probe::Tried;

    #[test]
    fn a_file_has_a_host_in_each_line_as_those_of_mpi_have() {
        let text =
            "# the first rack\nnode1 slots=8\n\n  node2:14792   max_slots=8 # slow?\n10.0.0.3\n";
        assert_eq!(hosts(text).unwrap(), ["node1", "node2:14792", "10.0.0.3"]);
    }

    #[test]
    fn a_host_that_has_a_line_for_each_of_its_slots_is_tried_once() {
        assert_eq!(
            hosts("node2\nnode1 slots=1\n\nnode2\n"),
            Ok(["node2", "node1"].map(String::from).to_vec())
        );
    }

    #[test]
    fn a_line_that_cannot_be_is_refused_with_its_number() {
        for (text, number, words) in [
            ("node1\nnode2 node3\n", 2, "'node3' after the host"),
            ("node1:port\n", 1, "'node1:port' is no HOST and no HOST:PORT"),
            ("# nothing\n\n", 2, "the file names no host"),
            ("", 1, "the file names no host"),
        ] {
            let (at, why) = hosts(text).unwrap_err();
            assert_eq!(at, number, "{text:?}: {why}");
            assert!(why.contains(words), "{text:?}: {why}");
        }
    }

    fn reached(addr: &str, gbytes_per_s: f64) -> Tries {
        let tried = Tried {
            path_mtu: Some(4096),
            half_round_trip_us: 2.25,
            fastest_us: 1.5,
            gbytes_per_s,
            wrong: 0,
        };
        let pair = |ours: &str, theirs: &str, outcome| Pair {
            ours: ours.to_owned(),
            theirs: theirs.to_owned(),
            outcome,
        };
        let pairs = vec![
            pair("mlx5_0", "mlx5_0", Ok(tried)),
            pair("mlx5_1", "mlx5_0", Err(Failure::new("RETRY_EXC_ERR").into())),
            pair("soft0", "soft0", Err(Failure::usage("no IPv4 address").into())),
        ];
        Tries { addr: addr.to_owned(), outcome: Outcome::Pairs(pairs) }
    }

    #[test]
    fn the_worst_host_comes_first_and_one_that_is_slower_than_the_others_is_found() {
        let tries = [
            reached("node1", 20.0),
            reached("node2", 9.0),
            reached("node3", 23.5),
            Tries { addr: "node4".to_owned(), outcome: Outcome::Silent },
        ];
        let mut rows: Vec<Row> = tries.iter().flat_map(rows).collect();
        let mut report = Report::default();
        tell_slower(&mut rows, &mut report);
        rows.sort_by_key(|row| row.verdict);
        assert_eq!(report.short(), ["warn host-slower mlx5_0 to node2"]);
        assert_eq!(
            table(&rows),
            "host   result       device  peer's   MTU   us   GB/s\n\
             node4  silent       -       -          -    -      -\n\
             node1  unreachable  mlx5_1  -          -    -      -\n\
             node2  unreachable  mlx5_1  -          -    -      -\n\
             node3  unreachable  mlx5_1  -          -    -      -\n\
             node2  slower       mlx5_0  mlx5_0  4096  2.2   9.00\n\
             node1  ok           mlx5_0  mlx5_0  4096  2.2  20.00\n\
             node3  ok           mlx5_0  mlx5_0  4096  2.2  23.50\n"
        );
    }
}
