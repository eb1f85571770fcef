//! Measures collNet's all-reduce of floats beside `invar coll`'s of the same size and ranks, and beside
//! the same all-reduce by messages through the network half of the plugin, in a ring as NCCL's. The
//! programs run in turns, and the results are ratios of their times.

use std::path::Path;

use anyhow::{Context, Result};

use super::Args;
use super::coll::{self, RUNS, SIZES, Sizes};
use super::plot::{self, Values};
use super::soft_nic::{built, median};
use crate::shell::Shell;

/// CollNet's time may be at most this multiple of `invar coll`'s.
const AT_MOST: f64 = 1.1;

struct Case {
    name: &'static str,
    ranks: u32,
    /// The variables that choose how the ranks reach each other.
    env: &'static [(&'static str, &'static str)],
}

/// The ranks share memory. Messages of the ring never do, and go over TCP.
const SHM: &[(&str, &str)] = &[("INVAR_TRANSPORT", "socket")];
const SOCKET: &[(&str, &str)] = &[("NCCL_SHM_DISABLE", "1"), ("INVAR_TRANSPORT", "socket")];
const SOFT: &[(&str, &str)] = &[("NCCL_SHM_DISABLE", "1"), ("INVAR_TRANSPORT", "soft")];

const CASES: [Case; 6] = [
    Case { name: "collnet-shm-2", ranks: 2, env: SHM },
    Case { name: "collnet-shm-4", ranks: 4, env: SHM },
    Case { name: "collnet-socket-2", ranks: 2, env: SOCKET },
    Case { name: "collnet-socket-4", ranks: 4, env: SOCKET },
    Case { name: "collnet-soft-2", ranks: 2, env: SOFT },
    Case { name: "collnet-soft-4", ranks: 4, env: SOFT },
];

pub(super) fn cases() -> Vec<&'static str> {
    CASES.iter().map(|case| case.name).collect()
}

/// Prints the tables and returns the sizes that miss their bar.
pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    built(shell, "invar-nccl-plugin --example bench_collnet")?;
    let target_dir = built(shell, "invar-cli --bin invar")?;
    let mut missed = Vec::new();
    let (mut names, mut columns) = (Vec::new(), Vec::new());
    for case in CASES.iter().filter(|case| args.wants(case.name)) {
        println!(
            "{:>10}  {:>11} {:>13} {:>6}  {:>10} {:>6}   {}: all-reduce of floats, {RUNS} runs",
            "bytes", "collNet µs", "invar coll µs", "ratio", "ring µs", "ratio", case.name
        );
        let mut beside_coll = Vec::new();
        for sizes in &SIZES {
            for (bytes, [ours, coll, ring]) in case.compare(shell, &target_dir, sizes)? {
                let (to_coll, to_ring) = (ours / coll, ours / ring);
                println!(
                    "{bytes:>10}  {ours:>11.2} {coll:>13.2} {to_coll:>6.2}  {ring:>10.2} {to_ring:>6.2}"
                );
                if to_coll > AT_MOST {
                    missed.push(format!("{} at {bytes} bytes ({to_coll:.2})", case.name));
                }
                beside_coll.push(to_coll);
            }
        }
        names.push(case.name);
        columns.push(beside_coll);
    }
    let about = format!("of medians of {RUNS} runs on this host");
    let mut values = Values::new(about, &names);
    for (row, bytes) in SIZES.iter().flat_map(Sizes::all).enumerate() {
        values.row(plot::bytes(bytes), columns.iter().map(|column| column[row]));
    }
    args.plot(&plot::COLLNET, &values)?;
    Ok(missed)
}

impl Case {
    /// Measures in turns. Returns for each size the median times of collNet, `invar coll` and the ring.
    fn compare(
        &self,
        shell: &Shell,
        target_dir: &Path,
        sizes: &Sizes,
    ) -> Result<Vec<(u64, [f64; 3])>> {
        let all = sizes.all();
        let mut times = vec![[const { Vec::new() }; 3]; all.len()];
        for _ in 0..RUNS {
            let mut program = shell.program(&target_dir.join("release/examples/bench_collnet"));
            program.arg(self.ranks.to_string()).args(sizes.args()).envs(self.env.iter().copied());
            program.env("NCCL_COLLNET_ENABLE", "1").env("NCCL_SOCKET_IFNAME", "lo");
            let output = shell.capture(program).context("bench_collnet")?;
            let by_plugin = sizes.columns::<2>(&output)?;
            let by_coll = coll::invar(shell, target_dir, self.ranks, self.env, sizes)?;
            let measured = by_plugin.into_iter().zip(by_coll);
            for (times, ([collnet, ring], coll)) in times.iter_mut().zip(measured) {
                let [of_collnet, of_coll, of_ring] = times;
                of_collnet.push(collnet);
                of_coll.push(coll);
                of_ring.push(ring);
            }
        }
        let medians = times.iter_mut().map(|times| times.each_mut().map(|runs| median(runs)));
        Ok(all.into_iter().zip(medians).collect())
    }
}
