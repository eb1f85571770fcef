//! Installs the wheel with pip.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::root::{is_installed, paths, remove};
use super::{Outcome, PRELOADED};
use crate::shell;

/// A program with two ranks, which needs no NumPy.
const RANKS: &str = "
import threading, invar
def rank(number, hub_id, sums):
    with invar.Communicator.join(hub_id, number, 2) as comm:
        data = bytearray([1 + number] * 3)
        comm.all_reduce(data)
        sums[number] = bytes(data)
sums = {}
with invar.Hub(2) as hub:
    ranks = [threading.Thread(target=rank, args=(n, hub.id, sums)) for n in range(2)]
    [thread.start() for thread in ranks]
    [thread.join() for thread in ranks]
print(sums == {0: bytes([3] * 3), 1: bytes([3] * 3)})
";

/// The names of Python's releases that the wheel serves.
const PYTHONS: [&str; 7] =
    ["python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14"];

/// Installs the wheel in a virtual environment of each Python of this host, runs and removes it.
pub(super) fn check(wheel: &Path, environment: &Path) -> Result<Outcome> {
    let mut served = Vec::new();
    for python in PYTHONS.into_iter().filter(|python| is_installed(python)) {
        // A version manager may have a command for a release that it does not have.
        let Ok(version) = shell::command(python, &["--version"]).and_then(shell::read) else {
            continue;
        };
        let outcome = install(python, wheel, environment);
        remove(environment)?;
        outcome.with_context(|| python.to_owned())?;
        served.push(version.trim().to_owned());
    }
    served.dedup();
    if served.is_empty() {
        return Ok(Outcome::Skipped("python3 is missing".to_owned()));
    }
    Ok(Outcome::Passed(format!(
        "pip installed it, it ran, and pip left nothing: {}",
        served.join(", ")
    )))
}

fn install(python: &str, wheel: &Path, environment: &Path) -> Result<()> {
    remove(environment)?;
    let mut venv = shell::command(python, &["-m", "venv"])?;
    venv.arg(environment);
    shell::read(venv)?;
    let run = |program: &str, args: &[&str]| {
        let mut command = shell::command(environment.join("bin").join(program), args)?;
        // Python would leave compiled files of its own.
        command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("LD_LIBRARY_PATH");
        shell::read(command)
    };
    let pip = |args: &[&str]| {
        run("python", &[&["-m", "pip", "--disable-pip-version-check"], args].concat())
    };
    pip(&["--version"])?;
    let before = paths(environment)?;
    let path = wheel.to_str().context("the path of target is UTF-8")?;
    pip(&["install", "--no-index", "--no-deps", path])?;
    pip(&["check"])?;
    let sizes = ["--min-bytes", "8", "--max-bytes", "64K", "--factor", "64", "--iters", "50"];
    run("invar", &[&["perf"], &sizes[..]].concat())?;
    run("invar", &[&["run", "--"], &PRELOADED[..]].concat())?;
    let sums = run("python", &["-c", RANKS])?;
    ensure!(sums.trim() == "True", "the sums of two ranks are right: {sums}");
    let plugin = run(
        "python",
        &["-c", "import ctypes, invar; p = invar.nccl_plugin_path(); ctypes.CDLL(p); print(p)"],
    )?;
    for (program, args) in [("python", &["-m", "invar", "env"][..]), ("invar", &["env"])] {
        let lines = run(program, args)?;
        ensure!(lines.contains(plugin.trim()), "{program} {args:?} names another plugin: {lines}");
    }
    pip(&["uninstall", "--yes", "invar"])?;
    let after = paths(environment)?;
    let left: Vec<_> = after.symmetric_difference(&before).collect();
    ensure!(left.is_empty(), "left behind or gone: {left:?}");
    Ok(())
}
