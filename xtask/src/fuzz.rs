//! Runs the libFuzzer targets of `fuzz/`.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::outcome::Outcome;
use crate::shell::Shell;
use crate::tool;
use crate::workspace::Workspace;

/// The time of a smoke run. It suffices to run every input of the corpus and to see that the target
/// works at all.
const SMOKE_SECONDS: u32 = 2;

/// The options of cargo-fuzz. Sanitizers need a nightly compiler. Overflow checks and debug assertions
/// are on without them.
const OPTIONS: &str = "--fuzz-dir fuzz --sanitizer none";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The targets to run. Without a name, all targets run.
    targets: Vec<String>,
    /// The time in seconds for which each target runs.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

/// Runs every target for a few seconds.
pub(crate) fn smoke(shell: &Shell) -> Result<Outcome> {
    run(shell, &Args { targets: Vec::new(), seconds: SMOKE_SECONDS })
}

/// Runs the targets one after the other, and stops at the first that finds something.
pub(crate) fn run(shell: &Shell, args: &Args) -> Result<Outcome> {
    tool::FUZZ.require(shell)?;
    let all = targets(shell)?;
    if all.is_empty() {
        return Ok(Outcome::Skipped("fuzz/ has no targets".to_owned()));
    }
    for target in &args.targets {
        ensure!(all.contains(target), "fuzz/ has no target {target}; it has {}", all.join(", "));
    }
    let target_dir = Workspace::load(shell)?.target_dir.join("fuzz");
    // Build all targets at once, so that the runs below find them built.
    let mut build = shell.cargo(&format!("fuzz build {OPTIONS}"));
    build.arg("--target-dir").arg(&target_dir);
    shell.run(build)?;
    for target in if args.targets.is_empty() { &all } else { &args.targets } {
        fuzz(shell, target, args.seconds, &target_dir)?;
    }
    Ok(Outcome::Passed)
}

fn targets(shell: &Shell) -> Result<Vec<String>> {
    if !shell.root().join("fuzz/Cargo.toml").exists() {
        return Ok(Vec::new());
    }
    let list = shell.read(shell.cargo("fuzz list --fuzz-dir fuzz"))?;
    Ok(list.lines().map(str::to_owned).collect())
}

/// Runs one target. New inputs go to a corpus under `target_dir`, which grows from run to run. The
/// corpus in `fuzz/`, if the target has one, is only read.
fn fuzz(shell: &Shell, target: &str, seconds: u32, target_dir: &Path) -> Result<()> {
    let found = target_dir.join("corpus").join(target);
    fs::create_dir_all(&found)?;
    let mut command = shell.cargo(&format!("fuzz run {OPTIONS}"));
    command.arg("--target-dir").arg(target_dir).arg(target).arg(&found);
    let kept = Path::new("fuzz/corpus").join(target);
    if shell.root().join(&kept).exists() {
        command.arg(kept);
    }
    command.arg("--").arg(format!("-max_total_time={seconds}"));
    // An input that takes longer than 10 s is a finding, since it may hang.
    command.arg("-timeout=10");
    if let Err(error) = shell.run(command) {
        bail!("{error:#}\nthe input that did it lies in fuzz/artifacts/{target}/");
    }
    Ok(())
}
