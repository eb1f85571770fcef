//! `cargo xtask gpu`: runs the checks that need a GPU, and real NCCL through PyTorch.
//!
//! Everything runs from a bundle: a folder with programs and the script `run.py`, which writes the report. A
//! machine with a GPU needs neither Rust nor a network for it. `--bundle` packs the folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::plugin::{self, Profile};
use crate::shell::Shell;
use crate::workspace::Workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file for the report, relative to the repository's root.
    #[arg(default_value = "docs/gpu.md")]
    output: PathBuf,
    /// Pack the bundle for another machine, and run nothing.
    #[arg(long, conflicts_with = "output")]
    bundle: bool,
}

/// The bundle's folder, which is also the name of the archive.
const NAME: &str = "invar-gpu";
/// Larger archives do not pass to every machine.
const ARCHIVE_BYTES_MAX: u64 = 50_000_000;
const SCRIPTS: [&str; 2] = ["run.py", "two_ranks.py"];
/// Sets of features of the tests. The trampolines of the feature `cust` exist for x86-64 alone.
const FEATURES: &[(&str, &str)] = if cfg!(target_arch = "x86_64") {
    &[("cuda", ""), ("cuda-cust", "cust")]
} else {
    &[("cuda", "")]
};

/// Makes the bundle, and runs or packs it.
pub(crate) fn run(shell: &Shell, args: &Args) -> Result<()> {
    let target = Workspace::load(shell)?.target_dir;
    let folder = make(shell, &target)?;
    if args.bundle {
        return pack(shell, &folder);
    }
    let mut script = shell.command("python3");
    script.arg(folder.join("run.py")).arg(shell.root().join(&args.output));
    shell.stream(script)
}

/// Builds the bundle's folder.
fn make(shell: &Shell, target: &Path) -> Result<PathBuf> {
    let folder = target.join(NAME);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    for part in ["bin", "lib", "tests"] {
        fs::create_dir_all(folder.join(part)).with_context(|| folder.display().to_string())?;
    }
    for (name, features) in FEATURES {
        let line = "test --release -p invar-testkit --test cuda --no-run --features";
        let mut test = shell.cargo(line);
        test.arg(features);
        let program = built(shell, test, "cuda")?;
        add(shell, &program, &folder.join("tests").join(name))?;
    }
    let bench = shell.cargo("build --release -p invar-testkit --bin bench_staging");
    let bench = built(shell, bench, "bench_staging")?;
    add(shell, &bench, &folder.join("tests/bench_staging"))?;
    let command = built(shell, shell.cargo("build --release -p invar-cli"), "invar")?;
    add(shell, &command, &folder.join("bin/invar"))?;
    // NCCL takes any other file beside it for the plugin.
    add(shell, &plugin::build(shell, Profile::Release)?, &folder.join("lib").join(plugin::NAME))?;
    for script in SCRIPTS {
        let from = shell.root().join("xtask/gpu").join(script);
        fs::copy(&from, folder.join(script)).with_context(|| from.display().to_string())?;
    }
    Ok(folder)
}

/// Runs a build, and returns the program of that name.
fn built(shell: &Shell, mut command: Command, name: &str) -> Result<PathBuf> {
    command.arg("--message-format=json");
    let output = shell.read(command)?;
    let messages = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = messages.filter_map(|message| {
        let is_wanted = message["target"]["name"] == name;
        let program = message["executable"].as_str().filter(|_| is_wanted)?;
        Some(PathBuf::from(program))
    });
    programs.next().with_context(|| format!("cargo built no {name}"))
}

/// Copies a program without its symbols.
fn add(shell: &Shell, from: &Path, to: &Path) -> Result<()> {
    let mut strip = shell.command("strip -o");
    strip.arg(to).arg(from);
    shell.run(strip)
}

fn pack(shell: &Shell, folder: &Path) -> Result<()> {
    let archive = folder.with_extension("tar.gz");
    let parent = folder.parent().context("the folder is in target")?;
    let mut tar = shell.command("tar --create --gzip --sort=name --owner=0 --group=0 --file");
    tar.arg(&archive).arg("--directory").arg(parent).arg(NAME);
    shell.run(tar)?;
    let bytes = fs::metadata(&archive).with_context(|| archive.display().to_string())?.len();
    ensure!(
        bytes <= ARCHIVE_BYTES_MAX,
        "{}: {bytes} bytes, more than {ARCHIVE_BYTES_MAX}",
        archive.display()
    );
    println!("{bytes} bytes  {}", archive.display());
    println!("there: tar -xzf {NAME}.tar.gz && python3 {NAME}/run.py gpu.md");
    Ok(())
}
