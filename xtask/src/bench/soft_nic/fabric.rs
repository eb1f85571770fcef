//! Measures what many connections cost, and how much throughput remains when packets are lost.
//! `bench_soft` runs two software NICs in one process.

use std::path::Path;

use anyhow::{Context, Result};

use super::{MIB, built, median};
use crate::bench::Args;
use crate::shell::Shell;

pub(super) const CONNECTIONS: &str = "connections";
pub(super) const LOSS: &str = "loss";

const RUNS: usize = 3;

/// The most that a message may cost over many connections, as a multiple of its cost over one.
const CONNECTIONS_BAR: f64 = 2.0;
/// The least speedup of adaptive routing over go-back-N where one packet in a hundred is lost.
const LOSS_BAR: f64 = 3.0;

/// The arguments of `bench_soft`.
struct Work {
    connections: u32,
    bytes: usize,
    messages: u32,
    drop_ppm: u32,
    adaptive: bool,
}

pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    let mut missed = Vec::new();
    if !args.wants(CONNECTIONS) && !args.wants(LOSS) {
        return Ok(missed);
    }
    let target_dir = built(shell, "invar-testkit --bin bench_soft")?;
    if args.wants(CONNECTIONS) {
        missed.extend(connections(shell, &target_dir)?);
    }
    if args.wants(LOSS) {
        missed.extend(loss(shell, &target_dir)?);
    }
    Ok(missed)
}

fn connections(shell: &Shell, target_dir: &Path) -> Result<Option<String>> {
    let mut worst = 1.0_f64;
    let mut one = None;
    println!("connections: ns a message of 8 bytes");
    for connections in [1, 16, 256, 1024] {
        let messages = 100_000;
        let work = Work { connections, bytes: 8, messages, drop_ppm: 0, adaptive: false };
        let ns = seconds(shell, target_dir, &work)? * 1e9 / f64::from(messages);
        worst = worst.max(ns / *one.get_or_insert(ns));
        println!("{connections:>11} {ns:8.0}");
    }
    Ok((worst > CONNECTIONS_BAR)
        .then(|| format!("{CONNECTIONS} ({worst:.2} of {CONNECTIONS_BAR})")))
}

fn loss(shell: &Shell, target_dir: &Path) -> Result<Option<String>> {
    let mut missed = None;
    println!("loss: Gbit/s of messages of 1 MiB, in order and with adaptive routing");
    for (drop_ppm, messages) in [(0, 400), (1_000, 400), (10_000, 200), (50_000, 40)] {
        let rate = |adaptive| -> Result<f64> {
            let work = Work { connections: 1, bytes: MIB, messages, drop_ppm, adaptive };
            let bits = f64::from(messages) * MIB as f64 * 8e-9;
            Ok(bits / seconds(shell, target_dir, &work)?)
        };
        let (in_order, adaptive) = (rate(false)?, rate(true)?);
        println!("{:>9} % {in_order:8.2} {adaptive:8.2}", f64::from(drop_ppm) / 1e4);
        if drop_ppm == 10_000 && adaptive < LOSS_BAR * in_order {
            missed = Some(format!("{LOSS} ({:.2} of {LOSS_BAR})", adaptive / in_order));
        }
    }
    Ok(missed)
}

/// The median of the seconds that [`RUNS`] runs of `bench_soft` print.
fn seconds(shell: &Shell, target_dir: &Path, work: &Work) -> Result<f64> {
    let Work { connections, bytes, messages, drop_ppm, adaptive } = *work;
    let run = || -> Result<f64> {
        let mut bench = shell.program(&target_dir.join("release/bench_soft"));
        bench.args([connections, bytes as u32, messages, drop_ppm].map(|n| n.to_string()));
        bench.arg(u32::from(adaptive).to_string());
        shell.capture(bench)?.trim().parse().context("bench_soft says no seconds")
    };
    Ok(median(&mut (0..RUNS).map(|_| run()).collect::<Result<Vec<f64>>>()?))
}
