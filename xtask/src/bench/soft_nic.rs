//! Measures the throughput of `invar perf` over loopback, with bare TCP and UDP between its runs. Then
//! it checks the software NIC's other bars: `namespaces`, `lossy`, `rails`, `round_trip`, `fabric`.

mod fabric;
mod lossy;
mod namespaces;
mod rails;
mod round_trip;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use invar_testkit::namespaces::Hosts;
use serde_json::Value;

use super::Args;
use super::plot::{self, Values};
use super::processors::Processors;
use super::tcp::{self, Wait};
use super::udp;
use crate::shell::Shell;
use crate::workspace::Workspace;

const MIB: usize = 1 << 20;
const SIZES: [usize; 2] = [MIB, 64 * MIB];

/// The bytes that one run moves: about a second's worth.
const RUN_BYTES: usize = 4 << 30;
const RUNS: usize = 5;

/// The number of messages in flight.
const WINDOW: usize = 8;

/// The throughput that `soft` must reach with messages of 1 MiB.
const SOFT_BAR_GBITS: f64 = 30.0;
/// The shares of other contenders' throughput that `soft` must reach with messages of any size.
const SOFT_BARS: [(&str, f64); 3] = [("tcp-blocking", 1.2), ("tcp-polled", 0.9), ("udp-gso", 0.5)];

struct Contender {
    name: &'static str,
    /// Measures the throughput in Gbit/s for messages of the given size.
    run: fn(&Shell, &Path, usize) -> Result<f64>,
}

/// The contender that the others are rivals of.
const SOFT: &str = "soft";

/// `soft` is `invar perf` on a host without RDMA hardware, over the software NIC. `soft-4096` sends
/// packets with path MTU 4096, as foreign peers get them. The packets of `soft-auth` carry tags.
const CONTENDERS: [Contender; 6] = [
    Contender { name: "tcp-blocking", run: |_, _, size| tcp(size, Wait::Block) },
    Contender { name: "tcp-polled", run: |_, _, size| tcp(size, Wait::Poll) },
    Contender { name: "udp-gso", run: |_, _, _| udp() },
    Contender {
        name: "soft-4096",
        run: |shell, dir, size| invar_perf(shell, dir, size, &[("INVAR_LONG_MTU", "0")]),
    },
    Contender {
        name: "soft-auth",
        run: |shell, dir, size| invar_perf(shell, dir, size, &[("INVAR_SOFT_AUTH", "1")]),
    },
    Contender { name: SOFT, run: |shell, dir, size| invar_perf(shell, dir, size, &[]) },
];

pub(super) fn cases() -> Vec<&'static str> {
    let rivals = CONTENDERS.iter().map(|contender| contender.name).filter(|name| *name != SOFT);
    rivals.chain(barred()).collect()
}

/// The cases that have a bar. The others are its rivals.
pub(super) fn barred() -> Vec<&'static str> {
    vec![
        SOFT,
        namespaces::CASE,
        lossy::CASE,
        rails::CASE,
        round_trip::CASE,
        fabric::CONNECTIONS,
        fabric::LOSS,
    ]
}

/// Prints the tables and returns the cases that miss their bar.
pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    let mut missed = throughput(shell, args)?;
    if args.wants(namespaces::CASE) {
        missed.extend(namespaces::run(shell)?);
    }
    if args.wants(lossy::CASE) {
        missed.extend(lossy::run(shell)?);
    }
    if args.wants(rails::CASE) {
        missed.extend(rails::run(shell)?);
    }
    if args.wants(round_trip::CASE) {
        missed.extend(round_trip::run(shell)?);
    }
    missed.extend(fabric::run(shell, args)?);
    Ok(missed)
}

fn throughput(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    let contenders: Vec<&Contender> =
        CONTENDERS.iter().filter(|contender| args.wants(contender.name)).collect();
    if contenders.is_empty() {
        return Ok(Vec::new());
    }
    let target_dir = built(shell, "invar-cli --bin invar")?;
    let mut missed = Vec::new();
    let names: Vec<&str> = contenders.iter().map(|contender| contender.name).collect();
    let mut values = Values::new(format!("medians of {RUNS} runs on this host"), &names);
    tcp::print_congestion_control();
    println!(
        "{:>8} {:14} {:>8} {:>8} {:>8} {:>8}   Gbit/s over loopback, {RUNS} runs",
        "size", "", "median", "least", "most", "ratio"
    );
    for size in SIZES {
        let mut rates = vec![Vec::new(); contenders.len()];
        // The contenders run in turns, so that other load on the host affects all of them.
        for _ in 0..RUNS {
            for (contender, rates) in contenders.iter().zip(&mut rates) {
                let rate = (contender.run)(shell, &target_dir, size);
                rates.push(rate.with_context(|| contender.name.to_owned())?);
            }
        }
        let medians: Vec<f64> = rates.iter_mut().map(|rates| median(rates)).collect();
        for ((contender, rates), median) in contenders.iter().zip(&rates).zip(&medians) {
            println!(
                "{:>4} MiB {:14} {median:8.1} {:8.1} {:8.1} {:8.2}",
                size / MIB,
                contender.name,
                rates[0],
                rates[RUNS - 1],
                median / medians[0]
            );
        }
        values.row(plot::bytes(size as u64), medians.iter().copied());
        missed.extend(misses(size, &names.iter().copied().zip(medians).collect()));
    }
    args.plot(&plot::SOFT_NIC, &values)?;
    Ok(missed)
}

/// The bars that the software NIC misses, given the medians of all contenders for messages of one size.
fn misses(size: usize, medians: &BTreeMap<&str, f64>) -> Vec<String> {
    let Some(&soft) = medians.get(SOFT) else { return Vec::new() };
    let absolute = (size == MIB).then(|| (SOFT_BAR_GBITS, "Gbit/s".to_owned()));
    let relative = SOFT_BARS.iter().filter_map(|(name, share)| {
        Some((share * medians.get(name)?, format!("Gbit/s, {share} of {name}")))
    });
    absolute
        .into_iter()
        .chain(relative)
        .filter(|(bar, _)| soft < *bar)
        .map(|(bar, what)| format!("soft at {} MiB ({soft:.1} of {bar:.1} {what})", size / MIB))
        .collect()
}

/// The hosts, unless this host cannot make them. Then it prints why, and adds the case to those that miss their bar.
fn or_skip(made: Result<Hosts, String>, case: &str, missed: &mut Vec<String>) -> Option<Hosts> {
    let skip = |error| {
        println!("skipped: no such network between namespaces here: {error}");
        missed.push(format!("{case} (not measured)"));
    };
    made.map_err(skip).ok()
}

/// The median of `rates`. This function sorts `rates`.
pub(super) fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn count(size: usize) -> usize {
    RUN_BYTES / size
}

fn tcp(size: usize, wait: Wait) -> Result<f64> {
    let stream = tcp::over_loopback()?;
    let seconds = tcp::seconds(stream, size, count(size), WINDOW, wait, Processors::ANY)?;
    Ok((count(size) * size) as f64 * 8e-9 / seconds)
}

fn udp() -> Result<f64> {
    Ok(RUN_BYTES as f64 * 8e-9 / udp::seconds(RUN_BYTES)?)
}

fn invar_perf(shell: &Shell, target_dir: &Path, size: usize, set: &[Variable]) -> Result<f64> {
    let window = WINDOW.to_string();
    let count = count(size).to_string();
    gbits(&report(shell, target_dir, size, &["--window", &window, "-n", &count], set)?)
}

/// Builds a program of a package and returns the target folder.
pub(super) fn built(shell: &Shell, what: &str) -> Result<PathBuf> {
    shell.run(shell.cargo(&format!("build --release --package {what}")))?;
    Ok(Workspace::load(shell)?.target_dir)
}

/// A variable of the environment and its value.
type Variable = (&'static str, &'static str);

/// The row that `invar perf` reports for messages of a size, with the variables `set` in its
/// environment.
fn report(
    shell: &Shell,
    target_dir: &Path,
    size: usize,
    flags: &[&str],
    set: &[Variable],
) -> Result<Value> {
    let json = target_dir.join("perf.json");
    let mut perf = shell.program(&target_dir.join("release/invar"));
    let size = size.to_string();
    perf.args(["perf", "-b", &size, "-e", &size]).args(flags).arg("--json").arg(&json);
    perf.envs(set.iter().copied());
    shell.capture(perf)?;
    row(&fs::read_to_string(&json)?).context("invar perf --json says something unexpected")
}

/// The first row of the report of `invar perf --json`. It is an error if bytes were wrong.
fn row(json: &str) -> Result<Value> {
    let mut report: Value = serde_json::from_str(json)?;
    let row = report["rows"].get_mut(0).context("no row")?.take();
    ensure!(row["wrong"] == 0, "wrong bytes: {}", row["wrong"]);
    Ok(row)
}

fn gbits(row: &Value) -> Result<f64> {
    Ok(8.0 * row["algbw_gbytes_per_s"].as_f64().context("no algbw_gbytes_per_s")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_invar_perf_is_read() {
        let text = r#"{"size": 1048576, "algbw_gbytes_per_s": 4.5, "wrong": 0}"#;
        let report = format!(r#"{{"nic": "soft0", "rows": [{text}]}}"#);
        assert_eq!(gbits(&row(&report).unwrap()).unwrap(), 36.0);
        let wrong = text.replace(r#""wrong": 0"#, r#""wrong": 2"#);
        assert!(row(&format!(r#"{{"rows": [{wrong}]}}"#)).is_err());
        assert!(row(r#"{"rows": []}"#).is_err());
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&mut [3.0, 9.0, 1.0, 2.0, 5.0]), 3.0);
    }

    #[test]
    fn the_software_nic_is_held_against_whatever_ran_beside_it() {
        let medians = BTreeMap::from([("tcp-blocking", 25.0), ("udp-gso", 40.0), ("soft", 29.0)]);
        let blocking = "(29.0 of 30.0 Gbit/s, 1.2 of tcp-blocking)";
        let mib =
            ["soft at 1 MiB (29.0 of 30.0 Gbit/s)".to_owned(), format!("soft at 1 MiB {blocking}")];
        assert_eq!(misses(MIB, &medians), mib);
        assert_eq!(misses(64 * MIB, &medians), [format!("soft at 64 MiB {blocking}")]);
        assert!(misses(MIB, &BTreeMap::from([("soft", 30.0)])).is_empty());
        assert!(misses(MIB, &BTreeMap::from([("tcp-blocking", 30.0)])).is_empty());
    }
}
