//! Measures all-reduce by `invar coll` beside Open MPI's on this host. The programs run in turns, and
//! the result is the ratio of their times. Where a case asks for it, bare UDP runs beside the software
//! NIC. PyTorch's gloo, which is slower by far, runs once if it is installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Args;
use super::plot::{self, Values};
use super::soft_nic::{built, median};
use super::tcp;
use crate::shell::Shell;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// An odd number, so that one run is the median.
pub(super) const RUNS: usize = 5;

/// Where Invar has to be faster, its time may be at most this share of Open MPI's time.
const BETTER: f64 = 1.0 / 1.3;
/// The most µs that 8 bytes between two ranks may take over shared memory.
const SHORTEST_US: f64 = 2.0;

/// The sizes that one start of the programs measures.
pub(super) struct Sizes {
    begin: u64,
    end: u64,
    factor: u64,
    warmup: u32,
    iterations: u32,
}

pub(super) const SIZES: [Sizes; 3] = [
    Sizes { begin: 8, end: 32 * KIB, factor: 8, warmup: 200, iterations: 2000 },
    Sizes { begin: 256 * KIB, end: MIB, factor: 4, warmup: 20, iterations: 100 },
    Sizes { begin: 4 * MIB, end: 64 * MIB, factor: 4, warmup: 2, iterations: 8 },
];

struct Case {
    name: &'static str,
    ranks: u32,
    /// The options of `mpirun` that choose Open MPI's transport.
    mpi: &'static str,
    /// The variables that choose Invar's transport.
    env: &'static [(&'static str, &'static str)],
    shared_memory: bool,
    /// Whether bare UDP is measured beside this case.
    over_udp: bool,
}

const OVER_TCP: &str = "--mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo";

const CASES: [Case; 4] = [
    Case { name: "shm-2", ranks: 2, mpi: "", env: &[], shared_memory: true, over_udp: false },
    Case {
        name: "shm-4",
        ranks: 4,
        // Open MPI binds ranks to processors in turn, as Invar does. Where processors are few, the
        // figures depend on which ranks share one.
        mpi: "--bind-to core:overload-allowed",
        env: &[],
        shared_memory: true,
        over_udp: false,
    },
    Case {
        name: "socket-2",
        ranks: 2,
        mpi: OVER_TCP,
        env: &[("NCCL_SHM_DISABLE", "1"), ("INVAR_TRANSPORT", "socket")],
        shared_memory: false,
        over_udp: false,
    },
    Case {
        name: "soft-2",
        ranks: 2,
        mpi: OVER_TCP,
        env: &[("NCCL_SHM_DISABLE", "1"), ("INVAR_TRANSPORT", "soft")],
        shared_memory: false,
        over_udp: true,
    },
];

/// The case that measures the reductions alone, beside memcpy.
const REDUCE: &str = "reduce";

pub(super) fn cases() -> Vec<&'static str> {
    barred().into_iter().chain([REDUCE]).collect()
}

/// The cases that have a bar.
pub(super) fn barred() -> Vec<&'static str> {
    CASES.iter().map(|case| case.name).collect()
}

/// Prints the tables and returns the cases that miss their bar.
pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    if args.wants(REDUCE) {
        reduce(shell)?;
    }
    if !CASES.iter().any(|case| args.wants(case.name)) {
        return Ok(Vec::new());
    }
    let target_dir = built(shell, "invar-cli --bin invar")?;
    let mpi = build_mpi(shell, &target_dir)?;
    let others = Others { mpi, torch: find_torch(shell) };
    let (mut missed, mut ratios) = (Vec::new(), Vec::new());
    tcp::print_congestion_control();
    for case in CASES.iter().filter(|case| args.wants(case.name)) {
        let mut of_case = Vec::new();
        println!(
            "{:>10}  {:>10} {:>10}  {:>10} {:>10} {:>6}  {:>10} {:>10}   {}: all-reduce of floats, \
             {RUNS} runs",
            "bytes", "Invar µs", "GB/s", "MPI µs", "GB/s", "ratio", "gloo µs", "UDP µs", case.name
        );
        if case.over_udp {
            built(shell, "invar-testkit --example bench_udp_all_reduce")?;
        }
        for sizes in &SIZES {
            let (too_slow, of_sizes) = case.compare(shell, &target_dir, &others, sizes)?;
            missed.extend(too_slow);
            of_case.extend(of_sizes);
        }
        ratios.push((case.name, of_case));
    }
    args.plot(&plot::COLL, &as_values(&ratios))?;
    Ok(missed)
}

/// Turns the ratios into a table with a row for each size and a series for each case.
fn as_values(ratios: &[(&str, Vec<f64>)]) -> Values {
    let names: Vec<&str> = ratios.iter().map(|(name, _)| *name).collect();
    let about = format!("of medians of {RUNS} runs on this host");
    let mut values = Values::new(about, &names);
    for (row, bytes) in SIZES.iter().flat_map(Sizes::all).enumerate() {
        values.row(plot::bytes(bytes), ratios.iter().map(|(_, of_case)| of_case[row]));
    }
    values
}

/// Measures sums of two operands beside memcpy, in GB/s of stored bytes.
fn reduce(shell: &Shell) -> Result<()> {
    let target_dir = built(shell, "invar-testkit --example bench_reduce")?;
    let output = shell.capture(shell.program(&target_dir.join("release/examples/bench_reduce")))?;
    let mut copy = f64::NAN;
    println!("{:>10} {:10} {:>8} {:>8}", "bytes", "sum of", "GB/s", "ratio");
    for line in output.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, bytes, rate] = words[..] else { bail!("bench_reduce says {line:?}") };
        let rate: f64 = rate.parse()?;
        if name == "memcpy" {
            copy = rate;
        }
        println!("{bytes:>10} {name:10} {rate:8.1} {:8.2}", rate / copy);
    }
    Ok(())
}

/// Measures all-reduce over bare UDP. Returns µs for each size.
fn udp(shell: &Shell, target_dir: &Path, sizes: &Sizes) -> Result<Vec<f64>> {
    let mut program = shell.program(&target_dir.join("release/examples/bench_udp_all_reduce"));
    program.args(sizes.args());
    sizes.times(&shell.capture(program)?)
}

/// The programs that Invar is measured beside.
struct Others {
    /// The all-reduce program that uses Open MPI.
    mpi: PathBuf,
    /// A Python interpreter that has PyTorch with gloo.
    torch: Option<String>,
}

/// Returns `INVAR_BENCH_PYTHON`, or else `python3`, if that interpreter has PyTorch with gloo.
fn find_torch(shell: &Shell) -> Option<String> {
    let python = env::var("INVAR_BENCH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut asked = shell.program(Path::new(&python));
    asked.args(["-c", "from torch.distributed import *; exit(not is_gloo_available())"]);
    let has_gloo = asked.output().is_ok_and(|answer| answer.status.success());
    if !has_gloo {
        println!("no gloo beside it: {python} has no PyTorch (pip install torch numpy)");
    }
    has_gloo.then_some(python)
}

/// Compiles the all-reduce program with `mpicc`.
pub(super) fn build_mpi(shell: &Shell, target_dir: &Path) -> Result<PathBuf> {
    if Command::new("mpicc").arg("--version").output().is_err() {
        bail!(
            "there is no mpicc to measure against: install Open MPI (Debian: openmpi-bin and \
             libopenmpi-dev)"
        );
    }
    let program = target_dir.join("all_reduce_mpi");
    let mut mpicc = shell.command("mpicc -O2 -Wall -Werror xtask/src/bench/coll/all_reduce.c -o");
    mpicc.arg(&program);
    shell.run(mpicc)?;
    Ok(program)
}

impl Case {
    /// Measures Invar and the others in turn, so that other load on the host affects them alike.
    /// Returns the sizes that miss their bar, and for each size Invar's share of Open MPI's time.
    fn compare(
        &self,
        shell: &Shell,
        target_dir: &Path,
        others: &Others,
        sizes: &Sizes,
    ) -> Result<(Vec<String>, Vec<f64>)> {
        let all = sizes.all();
        let mut ours = vec![Vec::new(); all.len()];
        let mut theirs = vec![Vec::new(); all.len()];
        let mut bare = vec![Vec::new(); all.len()];
        for _ in 0..RUNS {
            let times = invar(shell, target_dir, self.ranks, self.env, sizes)?;
            ours.iter_mut().zip(times).for_each(|(ours, time)| ours.push(time));
            let times = open_mpi(shell, &others.mpi, self.ranks, self.mpi, sizes)?;
            theirs.iter_mut().zip(times).for_each(|(theirs, time)| theirs.push(time));
            if self.over_udp {
                let times = udp(shell, target_dir, sizes).context("bare UDP")?;
                bare.iter_mut().zip(times).for_each(|(bare, time)| bare.push(time));
            }
        }
        let gloo = match &others.torch {
            Some(python) => self.gloo(shell, python, sizes).context("gloo")?,
            None => vec![f64::NAN; all.len()],
        };
        let (mut missed, mut ratios) = (Vec::new(), Vec::new());
        let times = ours.iter_mut().zip(&mut theirs).zip(gloo.into_iter().zip(&mut bare));
        for (bytes, ((ours, theirs), (gloo, bare))) in all.into_iter().zip(times) {
            let (ours, theirs) = (median(ours), median(theirs));
            let bare = if self.over_udp { median(bare) } else { f64::NAN };
            let ratio = ours / theirs;
            ratios.push(ratio);
            println!(
                "{bytes:>10}  {ours:>10.2} {:>10.2}  {theirs:>10.2} {:>10.2} {ratio:>6.2}  \
                 {gloo:>10.2} {bare:>10.2}",
                self.busbw(bytes, ours),
                self.busbw(bytes, theirs),
            );
            if !self.is_met(bytes, ours, ratio) {
                missed.push(format!("{} at {bytes} bytes ({ours:.1} µs, {ratio:.2})", self.name));
            }
        }
        Ok((missed, ratios))
    }

    fn is_met(&self, bytes: u64, us: f64, ratio: f64) -> bool {
        match bytes {
            _ if !self.shared_memory => ratio <= BETTER,
            MIB.. => ratio <= BETTER,
            _ if bytes >= 32 * KIB => ratio <= 1.0,
            8 if self.ranks == 2 => us <= SHORTEST_US,
            _ => true,
        }
    }

    /// The bus bandwidth in GB/s, as nccl-tests counts it: at least so much goes over each rank's link.
    fn busbw(&self, bytes: u64, us: f64) -> f64 {
        bus_bytes(self.ranks, bytes) / us / 1e3
    }

    /// Runs gloo, which has no transport over shared memory. Returns µs for each size.
    fn gloo(&self, shell: &Shell, python: &str, sizes: &Sizes) -> Result<Vec<f64>> {
        let mut program = shell.program(Path::new(python));
        program.arg("xtask/src/bench/coll/all_reduce.py").arg(self.ranks.to_string());
        program.args(sizes.args());
        sizes.times(&shell.read(program)?)
    }
}

/// Runs the Open MPI program with options of `mpirun`. Returns µs for each size.
pub(super) fn open_mpi(
    shell: &Shell,
    program: &Path,
    ranks: u32,
    options: &str,
    sizes: &Sizes,
) -> Result<Vec<f64>> {
    let line = format!("mpirun --allow-run-as-root --oversubscribe -np {ranks} {options}");
    let mut mpirun = shell.command(&line);
    mpirun.arg(program).args(sizes.args());
    sizes.times(&shell.capture(mpirun).context("Open MPI")?)
}

/// Runs `invar coll all_reduce` with variables that choose the transport. Returns µs for each size.
pub(super) fn invar(
    shell: &Shell,
    target_dir: &Path,
    ranks: u32,
    env: &[(&str, &str)],
    sizes: &Sizes,
) -> Result<Vec<f64>> {
    let json = target_dir.join("coll.json");
    let line = format!(
        "coll all_reduce --ranks {ranks} -b {} -e {} -f {} -w {} -n {} --json",
        sizes.begin, sizes.end, sizes.factor, sizes.warmup, sizes.iterations
    );
    let mut coll = shell.program(&target_dir.join("release/invar"));
    coll.args(line.split_whitespace()).arg(&json).envs(env.iter().copied());
    shell.capture(coll).context("invar coll all_reduce")?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
    let rows = report["rows"].as_array().context("no rows")?;
    ensure!(rows.len() == sizes.all().len(), "{} rows in the report", rows.len());
    let times = rows.iter().zip(sizes.all()).map(|(row, bytes)| {
        ensure!(row["wrong"] == 0, "wrong elements: {}", row["wrong"]);
        ensure!(row["count"] == bytes / 4, "a row of {}, not of {bytes} bytes", row["count"]);
        let busbw = row["busbw_gbytes_per_s"].as_f64().context("no busbw")?;
        Ok(bus_bytes(ranks, bytes) / busbw / 1e3)
    });
    times.collect()
}

/// The least number of bytes that go over each rank's link (nccl-tests, PERFORMANCE.md).
fn bus_bytes(ranks: u32, bytes: u64) -> f64 {
    let ranks = f64::from(ranks);
    bytes as f64 * 2.0 * (ranks - 1.0) / ranks
}

impl Sizes {
    /// Messages of `bytes` alone.
    pub(super) const fn one(bytes: u64, warmup: u32, iterations: u32) -> Sizes {
        Sizes { begin: bytes, end: bytes, factor: 2, warmup, iterations }
    }

    /// All sizes, in bytes.
    pub(super) fn all(&self) -> Vec<u64> {
        let next = |bytes: &u64| Some(bytes * self.factor).filter(|bytes| *bytes <= self.end);
        std::iter::successors(Some(self.begin), next).collect()
    }

    /// The arguments by which the other programs learn the sizes.
    pub(super) fn args(&self) -> [String; 5] {
        let Sizes { begin, end, factor, warmup, iterations } = self;
        [*begin, *end, *factor, u64::from(*warmup), u64::from(*iterations)].map(|n| n.to_string())
    }

    /// Parses the lines "bytes µs" that the other programs print. Returns µs for each size.
    fn times(&self, output: &str) -> Result<Vec<f64>> {
        Ok(self.columns::<1>(output)?.into_iter().map(|[time]| time).collect())
    }

    /// Parses lines of bytes and `N` times. Returns the times for each size.
    pub(super) fn columns<const N: usize>(&self, output: &str) -> Result<Vec<[f64; N]>> {
        let times = self.all().into_iter().map(|bytes| {
            let prefix = format!("{bytes} ");
            let line = output.lines().find_map(|line| line.strip_prefix(&prefix));
            let line = line.with_context(|| format!("no line for {bytes} bytes in:\n{output}"))?;
            let times = line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
            times.try_into().ok().with_context(|| format!("not {N} times for {bytes} bytes"))
        });
        times.collect()
    }
}
