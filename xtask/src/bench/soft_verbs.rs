//! Measures perftest on the libibverbs of `invar run` beside `invar perf`, over loopback, and beside Linux's rdma_rxe in
//! a guest. The two run in turns, and the bars are ratios.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Args;
use super::soft_nic::{built, median};
use crate::shell::Shell;
use crate::{rxe, vm};

const RUNS: usize = 5;

/// perftest's bandwidth must be at least this share of `invar perf`'s.
const OF_PERF_BANDWIDTH: f64 = 0.9;
/// perftest's latency may be at most this multiple of `invar perf`'s.
const OF_PERF_LATENCY: f64 = 1.1;

/// In the guest, bandwidth of WRITEs must be at least this multiple of rdma_rxe's.
const OF_RXE_BANDWIDTH: f64 = 3.0;
/// In the guest, the latency may be at most rdma_rxe's.
const OF_RXE_LATENCY: f64 = 1.0;

/// A program of perftest and the operation of `invar perf` that does the same.
struct Measure {
    program: &'static str,
    op: &'static str,
    /// Bandwidth in MB/s with 64 KiB a message, or latency in microseconds with 8 bytes a message.
    is_latency: bool,
}

const MEASURES: [Measure; 6] = [
    Measure { program: "ib_write_bw", op: "write", is_latency: false },
    Measure { program: "ib_read_bw", op: "read", is_latency: false },
    Measure { program: "ib_send_bw", op: "send", is_latency: false },
    Measure { program: "ib_write_lat", op: "write", is_latency: true },
    Measure { program: "ib_read_lat", op: "read", is_latency: true },
    Measure { program: "ib_send_lat", op: "send", is_latency: true },
];

/// Shell functions. `measure` runs the program of perftest `$4` at two ends, on the devices `$2` and `$3`, and prints
/// the column `$5` of the client's result. The words of `$1` precede the program, and its arguments follow. The client
/// comes again until the server listens; the guest resolves no names. `soft` prints the software NIC of loopback; the
/// words of `$1` precede a program there.
const FUNCTIONS: &str = r#"
measure() {
    local run=$1 server=$2 client=$3 program=$4 column=$5 text try
    shift 5
    timeout 60 $run $program "$@" -d $server >/dev/null 2>&1 &
    for try in $(seq 50); do
        text=$(timeout 60 $run $program "$@" -d $client 127.0.0.1 2>/dev/null) && break
        sleep 0.1
    done
    wait $! && awk "/#bytes/ { row = NR + 1 } row && NR == row { print \$$column }" <<<"$text"
}
soft() {
    INVAR_SOFT_DEVICES=lo $1 ibv_devices | awk '/soft/ { print $1 }'
}
"#;

/// The measures that run in the guest. Its processors are emulated, so runs and messages are fewer than on the host:
/// all runs together must end within the guest's limit.
const IN_GUEST: &str = "rxe";
const GUEST_RUNS: usize = 3;
const GUEST_MESSAGES: u32 = 300;
const GUEST_PROGRAMS: [&str; 3] = ["ib_write_bw", "ib_write_lat", "ib_send_lat"];

pub(super) fn cases() -> Vec<&'static str> {
    MEASURES.iter().map(|measure| measure.program).chain([IN_GUEST]).collect()
}

/// Prints the table and returns the measures that miss their bar.
pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    // The command finds the library in its own folder.
    built(shell, "invar-soft-verbs")?;
    let invar = built(shell, "invar-cli --bin invar")?.join("release/invar");
    println!(
        "{:14} {:>10} {:>10} {:>6}   MB/s at 64 KiB, µs at 8 bytes, {RUNS} runs",
        "", "perftest", "invar perf", "ratio"
    );
    let mut missed = Vec::new();
    for measure in MEASURES.iter().filter(|measure| args.wants(measure.program)) {
        let program = measure.program;
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            theirs.push(measure.perftest(shell, &invar)?);
            ours.push(measure.invar_perf(shell, &invar)?);
        }
        let (theirs, ours) = (median(&mut theirs), median(&mut ours));
        let ratio = theirs / ours;
        println!("{program:14} {theirs:>10.1} {ours:>10.1} {ratio:>6.2}");
        let passes = match measure.is_latency {
            true => ratio <= OF_PERF_LATENCY,
            false => ratio >= OF_PERF_BANDWIDTH,
        };
        if !passes {
            missed.push(format!("{program} ({ratio:.2})"));
        }
    }
    if args.wants(IN_GUEST) {
        missed.extend(beside_rxe(shell, &invar)?);
    }
    Ok(missed)
}

/// Measures the library beside rdma_rxe in one guest, and returns the programs that miss their bar. The library's ends
/// are on loopback, those of rdma_rxe on a cable of the guest's.
fn beside_rxe(shell: &Shell, invar: &Path) -> Result<Vec<String>> {
    if let Err(why) = vm::require(shell) {
        println!("no comparison with rdma_rxe: {why:#}");
        return Ok(vec![format!("{IN_GUEST} (not measured)")]);
    }
    let measures = || MEASURES.iter().filter(|measure| GUEST_PROGRAMS.contains(&measure.program));
    let mut script =
        format!("{FUNCTIONS}library='{} run --' device=$(soft \"$library\")\n", invar.display());
    for measure in (0..GUEST_RUNS).flat_map(|_| measures()) {
        let Measure { program, .. } = measure;
        let of_program = format!("{program} {} -F -n {GUEST_MESSAGES} -x", measure.args());
        writeln!(
            script,
            "echo {program} $(measure \"$library\" $device $device {of_program} 0)\\"
        )?;
        writeln!(script, "    $(measure '' rxe_a rxe_b {of_program} 1)")?;
    }
    let output = rxe::guest(shell, None, &script)?;
    println!(
        "{:14} {:>10} {:>10} {:>6}   MB/s at 64 KiB, µs at 8 bytes, {GUEST_RUNS} runs in a guest",
        "", "library", "rdma_rxe", "ratio"
    );
    let mut missed = Vec::new();
    for Measure { program, is_latency, .. } in measures() {
        let (mut ours, mut theirs) = of_guest(&output, program)?;
        let (ours, theirs) = (median(&mut ours), median(&mut theirs));
        let ratio = ours / theirs;
        println!("{program:14} {ours:>10.1} {theirs:>10.1} {ratio:>6.2}");
        let passes = match is_latency {
            true => ratio <= OF_RXE_LATENCY,
            false => ratio >= OF_RXE_BANDWIDTH,
        };
        if !passes {
            missed.push(format!("{program} beside rdma_rxe ({ratio:.2})"));
        }
    }
    Ok(missed)
}

/// Returns what the guest has measured of a program: the results of the library, and those of rdma_rxe.
fn of_guest(output: &str, program: &str) -> Result<(Vec<f64>, Vec<f64>)> {
    let of_program = output.lines().filter_map(|line| line.strip_prefix(program));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for line in of_program {
        let numbers: Vec<f64> =
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [library, rxe] = numbers[..] else { bail!("{program} printed `{line}` in the guest") };
        ours.push(library);
        theirs.push(rxe);
    }
    ensure!(ours.len() == GUEST_RUNS, "{} runs of {program} in the guest:\n{output}", ours.len());
    Ok((ours, theirs))
}

impl Measure {
    /// Returns the column of the result, the average bandwidth or the typical latency, and the program's arguments
    /// without the number of messages.
    fn args(&self) -> &'static str {
        if self.is_latency { "5 -s 8" } else { "4 -s 65536 -t 32" }
    }

    fn perftest(&self, shell: &Shell, invar: &Path) -> Result<f64> {
        let (program, args) = (self.program, self.args());
        let mut bash = shell.command("bash -c");
        bash.arg(format!(
            "{FUNCTIONS}library='{} run --' device=$(soft \"$library\")\n\
             measure \"$library\" $device $device {program} {args} -n 20000 -x 0",
            invar.display()
        ));
        let output = shell.read(bash)?;
        output.trim().parse().with_context(|| format!("{} printed `{output}`", self.program))
    }

    fn invar_perf(&self, shell: &Shell, invar: &Path) -> Result<f64> {
        let size = if self.is_latency { "8" } else { "65536" };
        let mut perf = shell.program(invar);
        perf.args([
            "perf", "--op", self.op, "-b", size, "-e", size, "--iters", "20000", "--json", "-",
        ]);
        // Programs for libibverbs know no path MTU above 4096.
        perf.envs([("INVAR_TRANSPORT", "soft"), ("INVAR_LONG_MTU", "0")]);
        let result: Value = serde_json::from_str(&shell.read(perf)?)?;
        let row = &result["rows"][0];
        ensure!(row["wrong"] == 0, "bytes are wrong: {result}");
        let value = match self.is_latency {
            true => row["latency_us"]["p50"].as_f64(),
            // perftest's MB are MiB.
            false => row["algbw_gbytes_per_s"].as_f64().map(|gb| gb * 1e9 / f64::from(1 << 20)),
        };
        value.with_context(|| format!("no value in {result}"))
    }
}
