//! `cargo xtask gpu`: runs the checks that need a GPU and writes them down with the machine's
//! description.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::Shell;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file for the report, relative to the repository's root.
    #[arg(default_value = "docs/gpu.md")]
    output: PathBuf,
}

/// The commands that describe the machine. Not every machine has all of them.
const MACHINE: [&str; 5] = [
    "uname -srm",
    "lscpu",
    "nvidia-smi --query-gpu=name,pci.bus_id,driver_version,memory.total --format=csv",
    "nvidia-smi topo -m",
    "rdma link",
];

/// Runs the checks on every GPU, for near and for far NICs, with both CUDA bindings. Measures staging
/// beside plain copies. Writes the report if all checks pass.
pub(crate) fn run(shell: &Shell, args: &Args) -> Result<()> {
    let mut report =
        "# Seen on a machine with a GPU\n\n`cargo xtask gpu` has written this.\n".to_owned();
    for line in MACHINE {
        let answer = shell.capture(shell.command(line)).unwrap_or_else(|error| error.to_string());
        add(&mut report, &format!("`{line}`"), &answer)?;
    }
    let devices = shell.cargo("run --quiet --release -p invar-cli -- devices");
    add(&mut report, "`invar devices`", &shell.capture(devices)?)?;
    // The trampolines of the feature `cust` exist for x86-64 alone.
    let features: &[&str] = if cfg!(target_arch = "x86_64") { &["", "cust"] } else { &[""] };
    for feature in features {
        for level in ["PXB", "SYS"] {
            let title = format!("Checks, features [{feature}], NCCL_NET_GDR_LEVEL={level}");
            add(&mut report, &title, &shell.capture(checks(shell, feature, level))?)?;
        }
    }
    let bench = shell.cargo("run --quiet --release -p invar-testkit --bin bench_staging");
    add(&mut report, "Staging beside one copy of all", &shell.capture(bench)?)?;
    let output = shell.root().join(&args.output);
    std::fs::write(&output, report).with_context(|| output.display().to_string())?;
    println!("written: {}", output.display());
    Ok(())
}

fn checks(shell: &Shell, feature: &str, level: &str) -> Command {
    let mut checks = shell.cargo("test --quiet --release -p invar-testkit --test cuda");
    checks.args(["--features", feature, "hardware", "--", "--nocapture", "--test-threads=1"]);
    checks.env("INVAR_GPU", "1").env("NCCL_NET_GDR_LEVEL", level);
    checks
}

fn add(report: &mut String, title: &str, text: &str) -> Result<()> {
    Ok(write!(report, "\n## {title}\n\n```text\n{}\n```\n", text.trim_end())?)
}
