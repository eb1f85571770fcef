//! Measures calls that block: round trips of 8 bytes beside TCP's, and all-reduces of 8 bytes beside Open MPI's, on
//! idle and on busy processors. Also measures the processor time of connections whose tasks wait.

use anyhow::{Context, Result};
use invar_testkit::load::{BUSY_THREADS, CONNECTIONS, beside_busy_threads};

use super::Args;
use super::coll::{self, Sizes};
use super::soft_nic::{built, median};
use crate::shell::Shell;

/// An odd number, so that one run is the median.
const RUNS: usize = 3;
/// The most multiples of the other's time, on idle and on busy processors.
const IDLE_MAX: f64 = 1.5;
const BUSY_MAX: f64 = 3.0;
/// The most processor time of 256 idle connections, in percent of a processor.
const PERCENT_MAX: f64 = 1.0;

const TRANSPORTS: [&str; 2] = ["socket", "soft"];
const COLL: &str = "coll";

const EIGHT_BYTES: Sizes = Sizes::one(8, 200, 2000);

pub(super) fn cases() -> Vec<&'static str> {
    TRANSPORTS.into_iter().chain([COLL]).collect()
}

/// Prints the tables and returns the measurements that miss their bar.
pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    let mut missed = Vec::new();
    if TRANSPORTS.iter().any(|transport| args.wants(transport)) {
        missed.extend(connections(shell, args)?);
    }
    if args.wants(COLL) {
        missed.extend(collectives(shell)?);
    }
    Ok(missed)
}

/// Measures round trips and idle connections.
fn connections(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    let target_dir = built(shell, "invar-testkit --bin bench_waiting")?;
    let mut outputs = Vec::new();
    for _ in 0..RUNS {
        outputs.push(shell.capture(shell.program(&target_dir.join("release/bench_waiting")))?);
    }
    let value = |name: &str| -> Result<f64> {
        let of_run = |output: &String| -> Option<f64> {
            let line =
                |line: &str| line.split_once(' ').filter(|(of, _)| *of == name)?.1.parse().ok();
            output.lines().find_map(line)
        };
        let values: Option<Vec<f64>> = outputs.iter().map(of_run).collect();
        Ok(median(&mut values.with_context(|| format!("no {name} in {outputs:?}"))?))
    };
    let mut missed = Vec::new();
    println!("round trips of 8 bytes in µs, {RUNS} runs");
    println!("{:14} {:>10} {:>10} {:>6}", "", "Invar", "TCP", "ratio");
    let wanted = || TRANSPORTS.into_iter().filter(|transport| args.wants(transport));
    for (suffix, at_most) in [("", IDLE_MAX), ("-busy", BUSY_MAX)] {
        for transport in wanted() {
            let name = format!("{transport}{suffix}");
            missed.extend(row(&name, value(&name)?, value(&format!("tcp{suffix}"))?, at_most));
        }
    }
    for transport in wanted() {
        let percent = value(&format!("{transport}-idle"))?;
        println!(
            "{transport}: {CONNECTIONS} idle connections take {percent:.2} % of a processor, both ends"
        );
        if percent > PERCENT_MAX {
            missed.push(format!("{transport}-idle ({percent:.2} %)"));
        }
    }
    Ok(missed)
}

/// Measures all-reduces of two ranks in shared memory.
fn collectives(shell: &Shell) -> Result<Vec<String>> {
    let target_dir = built(shell, "invar-cli --bin invar")?;
    let mpi = coll::build_mpi(shell, &target_dir)?;
    let measure = || -> Result<[f64; 2]> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            ours.extend(coll::invar(shell, &target_dir, 2, &[], &EIGHT_BYTES)?);
            theirs.extend(coll::open_mpi(shell, &mpi, 2, "", &EIGHT_BYTES)?);
        }
        Ok([median(&mut ours), median(&mut theirs)])
    };
    println!("all-reduces of 8 bytes by two ranks in shared memory in µs, {RUNS} runs");
    println!("{:14} {:>10} {:>10} {:>6}", "", "Invar", "Open MPI", "ratio");
    let [ours, theirs] = measure()?;
    let idle = row(COLL, ours, theirs, IDLE_MAX);
    let [ours, theirs] = beside_busy_threads(BUSY_THREADS, measure)?;
    Ok(idle.into_iter().chain(row("coll-busy", ours, theirs, BUSY_MAX)).collect())
}

/// Prints a row. Returns its name and ratio if it misses its bar.
fn row(name: &str, ours: f64, theirs: f64, at_most: f64) -> Option<String> {
    let ratio = ours / theirs;
    println!("{name:14} {ours:>10.2} {theirs:>10.2} {ratio:>6.2}");
    (ratio > at_most).then(|| format!("{name} ({ratio:.2})"))
}
