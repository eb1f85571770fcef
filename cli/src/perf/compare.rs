//! `invar perf --compare`: two JSON files side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::operation::Op;
use crate::failure::{Failure, line};
use crate::output::print;

/// A JSON file.
#[derive(Deserialize)]
struct Results {
    #[serde(default)]
    op: Op,
    rows: Vec<Row>,
    /// The other values that all rows share, by name.
    #[serde(flatten)]
    head: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Row {
    size: u32,
    time_us: f64,
    latency_us: Latency,
}

#[derive(Deserialize)]
struct Latency {
    p50: f64,
    p99: f64,
}

/// Prints the sizes that both files have.
pub(super) fn run(files: &[impl AsRef<Path>]) -> Result<(), Failure> {
    let [before, after] = files else {
        return Err(Failure::usage("--compare takes two files"));
    };
    let (before, after) = (before.as_ref(), after.as_ref());
    let text = table(
        &format!("# before: {}\n# after: {}", before.display(), after.display()),
        &read(before)?,
        &read(after)?,
    )?;
    print(io::stdout(), "the comparison", &text)
}

fn read(path: &Path) -> Result<Results, Failure> {
    let failed = |error: &io::Error| Failure::io(format_args!("reading {}", path.display()), error);
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format_args!("{}: no results of invar perf --json: {error}", path.display()))
    })
}

fn table(head: &str, before: &Results, after: &Results) -> Result<String, Failure> {
    let of: BTreeMap<u32, &Row> = after.rows.iter().map(|row| (row.size, row)).collect();
    let mut lines: Vec<String> = head.lines().map(|text| line(&text)).collect();
    if before.op != after.op {
        lines.push(format!("# op {} before, {} after", before.op.name(), after.op.name()));
    }
    let names: BTreeSet<&String> = before.head.keys().chain(after.head.keys()).collect();
    for name in names {
        let [before, after] = [before, after].map(|results| shown(results.head.get(name)));
        if before != after {
            lines.push(line(&format_args!("# {name} {before} before, {after} after")));
        }
    }
    let latency = before.op.latency_is_of();
    lines
        .push(format!("# time: average of a message; p50, p99: {latency}; change: after / before"));
    lines.push(format!(
        "#{:>9} {:>10} {:>10} {:>7} {:>9} {:>9} {:>7} {:>7}",
        "size", "time", "", "change", "p50", "", "change", "p99"
    ));
    lines.push(format!(
        "#{:>9} {:>10} {:>10} {:>7} {:>9} {:>9} {:>7} {:>7}",
        "(B)", "(us)", "(us)", "", "(us)", "(us)", "", "change"
    ));
    let start = lines.len();
    for Row { size, time_us, latency_us } in &before.rows {
        let Some(after) = of.get(size) else { continue };
        lines.push(format!(
            " {size:>9} {time_us:>10.2} {:>10.2} {:>7} {:>9.2} {:>9.2} {:>7} {:>7}",
            after.time_us,
            change(*time_us, after.time_us),
            latency_us.p50,
            after.latency_us.p50,
            change(latency_us.p50, after.latency_us.p50),
            change(latency_us.p99, after.latency_us.p99),
        ));
    }
    if lines.len() == start {
        return Err(Failure::usage("--compare: the two files have no size in common"));
    }
    Ok(lines.join("\n"))
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn change(before: f64, after: f64) -> String {
    if before > 0.0 { format!("{:.3}", after / before) } else { "N/A".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(rows: &[(u32, f64, f64, f64)]) -> Results {
        let row = |&(size, time_us, p50, p99): &(u32, f64, f64, f64)| Row {
            size,
            time_us,
            latency_us: Latency { p50, p99 },
        };
        Results { op: Op::Message, rows: rows.iter().map(row).collect(), head: BTreeMap::new() }
    }

    #[test]
    fn sizes_that_both_have_are_compared() {
        let before = results(&[(8, 2.0, 4.0, 8.0), (16, 1.0, 1.0, 1.0), (32, 1.0, 0.0, 1.0)]);
        let after = results(&[(32, 3.0, 1.0, 1.5), (8, 1.0, 6.0, 8.0), (64, 1.0, 1.0, 1.0)]);
        let text = table("# a", &before, &after).unwrap();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows[0], ["8", "2.00", "1.00", "0.500", "4.00", "6.00", "1.500", "1.000"]);
        assert_eq!(rows[1], ["32", "1.00", "3.00", "3.000", "0.00", "1.00", "N/A", "1.500"]);
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn values_of_the_heads_that_differ_are_named() {
        let read = |head: &str| -> Results {
            let row = r#"{"size": 8, "time_us": 2.0, "latency_us": {"p50": 4.0, "p99": 8.0}}"#;
            serde_json::from_str(&format!(r#"{{{head}, "rows": [{row}]}}"#)).unwrap()
        };
        let before = read(
            r#""version": "0.1.0", "transport": "soft", "path_mtu": 4096, "window": 32, "nic": "a\nb""#,
        );
        let after = read(
            r#""version": "0.1.0", "transport": "socket", "path_mtu": null, "window": 8, "op": "send",
               "bidirectional": true"#,
        );
        let text = table("# a", &before, &after).unwrap();
        let said: Vec<&str> = text.lines().filter(|line| line.contains(" before, ")).collect();
        assert_eq!(
            said,
            [
                "# op message before, send after",
                "# bidirectional none before, true after",
                "# nic a b before, none after",
                "# path_mtu 4096 before, none after",
                "# transport soft before, socket after",
                "# window 32 before, 8 after",
            ]
        );
        assert!(!table("# a", &before, &before).unwrap().contains(" before, "));
    }

    #[test]
    fn files_without_a_common_size_are_refused() {
        let failure = table("", &results(&[(8, 1.0, 1.0, 1.0)]), &results(&[])).unwrap_err();
        assert!(failure.is_usage(), "{failure}");
    }
}
