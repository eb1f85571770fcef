//! Measures perftest on the libibverbs of `invar run` beside `invar perf`, over loopback. The two run in turns, and
//! the bars are ratios.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Args;
use super::soft_nic::{built, median};
use crate::shell::Shell;

const RUNS: usize = 5;

/// perftest's bandwidth must be at least this share of `invar perf`'s.
const OF_PERF_BANDWIDTH: f64 = 0.9;
/// perftest's latency may be at most this multiple of `invar perf`'s.
const OF_PERF_LATENCY: f64 = 1.1;

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

/// A shell script that runs the program of perftest `$2` at two ends, on the software NIC of loopback, and prints the
/// column `$3` of the client's result. `$1` is the command `invar`, and the program's arguments follow. The client
/// comes again until the server listens.
const SCRIPT: &str = r#"
run="$1 run --" program=$2 column=$3
shift 3
device=$(INVAR_SOFT_DEVICES=lo $run ibv_devices | awk '/soft/ { print $1 }')
timeout 60 $run $program "$@" -d $device >/dev/null 2>&1 &
for try in $(seq 50); do
    text=$(timeout 60 $run $program "$@" -d $device localhost 2>/dev/null) && break
    sleep 0.1
done
wait $! && awk "/#bytes/ { row = NR + 1 } row && NR == row { print \$$column }" <<<"$text"
"#;

pub(super) fn cases() -> Vec<&'static str> {
    MEASURES.iter().map(|measure| measure.program).collect()
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
    Ok(missed)
}

impl Measure {
    /// Returns the column of the result, the average bandwidth or the typical latency, and the program's arguments
    /// without the number of messages.
    fn args(&self) -> &'static str {
        if self.is_latency { "5 -s 8" } else { "4 -s 65536 -t 32" }
    }

    fn perftest(&self, shell: &Shell, invar: &Path) -> Result<f64> {
        let mut bash = shell.command("bash -c");
        bash.args([SCRIPT, "bash"]).arg(invar).arg(self.program);
        bash.args(self.args().split(' ')).args(["-n", "20000", "-x", "0"]);
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
