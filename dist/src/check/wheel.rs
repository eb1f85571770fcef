//! Installs the wheel with pip.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::root::{Root, is_installed, paths, remove};
use super::{Outcome, Run, job};
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
    let run = |words: &[&str]| {
        let (program, args) = words.split_first().context("no command")?;
        shell::read(shell::command(program, args)?)
    };
    let [wheel, venv] =
        [wheel, environment].map(|path| path.to_str().context("the path of target is UTF-8"));
    let (wheel, venv) = (wheel?, venv?);
    let mut served = Vec::new();
    for python in PYTHONS.into_iter().filter(|python| is_installed(python)) {
        // A version manager may have a command for a release that it does not have.
        let Ok(version) = run(&[python, "--version"]) else { continue };
        let outcome = install(&run, python, wheel, venv, environment);
        remove(environment)?;
        outcome.with_context(|| python.to_owned())?;
        served.push(version.trim().to_owned());
    }
    served.dedup();
    if served.is_empty() {
        return Ok(Outcome::Skipped("python3 is missing".to_owned()));
    }
    Ok(Outcome::Passed(format!(
        "pip installed it, also by --target, it ran, and pip left nothing: {}",
        served.join(", ")
    )))
}

/// Installs the wheel in a root with Debian's Python and nothing else, runs and removes it.
pub(super) fn check_in(root: &Root, wheel: &Path) -> Result<Outcome> {
    root.run(&["apt-get", "update"])?;
    root.run(&["apt-get", "install", "--yes", "--no-install-recommends", "python3-venv"])?;
    root.leaves_nothing(|| {
        let name = wheel.file_name().and_then(OsStr::to_str).context("a wheel has a name")?;
        let path = format!("/tmp/{name}");
        let copy = root.path().join("tmp").join(name);
        fs::copy(wheel, &copy).with_context(|| copy.display().to_string())?;
        let environment = root.path().join("opt/venv");
        install(&|words| root.run(words), "python3", &path, "/opt/venv", &environment)?;
        remove(&environment)?;
        fs::remove_file(&copy).with_context(|| copy.display().to_string())
    })?;
    let text =
        "pip installed it on Debian 12 with nothing but Python, it ran, and pip left nothing";
    Ok(Outcome::Passed(text.to_owned()))
}

/// Installs the wheel in the new environment `venv`. `environment` is its path on this host.
fn install(run: Run<'_>, python: &str, wheel: &str, venv: &str, environment: &Path) -> Result<()> {
    remove(environment)?;
    // Python would leave compiled files of its own.
    let run = |words: &[&str]| {
        let clean = ["env", "--unset=LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE=1"];
        run(&[&clean, words].concat())
    };
    run(&[python, "-m", "venv", venv])?;
    let [python, invar] = ["python", "invar"].map(|name| format!("{venv}/bin/{name}"));
    let pip = |args: &[&str]| {
        run(&[&[&python, "-m", "pip", "--disable-pip-version-check"], args].concat())
    };
    pip(&["--version"])?;
    let before = paths(environment)?;
    pip(&["install", "--no-index", "--no-deps", wheel])?;
    pip(&["check"])?;
    let lines = job(&run, &[&invar])?;
    let sums = run(&[&python, "-c", RANKS])?;
    ensure!(sums.trim() == "True", "the sums of two ranks are right: {sums}");
    let plugin = run(&[
        &python,
        "-c",
        "import ctypes, invar; p = invar.nccl_plugin_path(); ctypes.CDLL(p); print(p)",
    ])?;
    for lines in [lines, run(&[&python, "-m", "invar", "env"])?] {
        ensure!(lines.contains(plugin.trim()), "invar env names another plugin: {lines}");
    }
    pip(&["uninstall", "--yes", "invar"])?;
    let after = paths(environment)?;
    let left: Vec<_> = after.symmetric_difference(&before).collect();
    ensure!(left.is_empty(), "left behind or gone: {left:?}");
    let folder = format!("{venv}/folder");
    pip(&["install", "--no-index", "--no-deps", "--target", &folder, wheel])?;
    let variable = format!("PYTHONPATH={folder}");
    let run = |words: &[&str]| run(&[&["env", variable.as_str()], words].concat());
    job(&run, &[&python, "-m", "invar"]).context("pip install --target").map(drop)
}
