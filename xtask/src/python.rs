//! `cargo xtask python`: builds the Python package `invar` into a folder, and tests it.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};

use crate::outcome::Outcome;
use crate::shell::Shell;
use crate::workspace::Workspace;

/// The package's files in Python, and its tests.
const SOURCE: &str = "python/invar";
const TESTS: &str = "python/tests";
/// The file that cargo builds, and the name by which every CPython finds it.
const BUILT: &str = "libinvar_python.so";
const MODULE: &str = "_invar.abi3.so";
/// The second one is the system's, if a version manager has put another one first.
const PYTHONS: [&str; 2] = ["python3", "/usr/bin/python3"];

/// Builds the package for users, and prints how Python finds it.
pub(crate) fn run(shell: &Shell) -> Result<()> {
    let folder = build(shell, Profile::Release)?;
    println!("export PYTHONPATH={}", folder.display());
    Ok(())
}

/// Builds the package and runs its tests. Skipped where no Python has NumPy. Without PyTorch the tests of
/// its backend are skipped, and the outcome says so.
pub(crate) fn step(shell: &Shell) -> Result<Outcome> {
    let torch = with_module(shell, "torch");
    let Some(python) = torch.or_else(|| with_module(shell, "numpy")) else {
        let why = "no Python has NumPy: on Debian, apt-get install python3-numpy";
        return Ok(Outcome::Skipped(why.to_owned()));
    };
    let folder = build(shell, Profile::Dev)?;
    let mut tests = shell.command(&format!("{python} -m unittest discover --start-directory"));
    tests.args([TESTS, "--verbose"]);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("INVAR_") || text.starts_with("NCCL_") {
            tests.env_remove(&name);
        }
    }
    // Python would leave compiled files beside the tests.
    tests.env("PYTHONPATH", folder).env("PYTHONDONTWRITEBYTECODE", "1");
    shell.run(tests)?;
    Ok(match torch {
        Some(_) => Outcome::Passed,
        None => {
            let why = "the tests with PyTorch: on Debian, apt-get install python3-torch";
            Outcome::Skipped(why.to_owned())
        }
    })
}

/// The first Python that has a module.
pub(crate) fn with_module(shell: &Shell, module: &str) -> Option<&'static str> {
    let has_module = |python: &&str| {
        let mut command = shell.command(python);
        command.args(["-c", &format!("import {module}")]);
        command.output().is_ok_and(|output| output.status.success())
    };
    PYTHONS.into_iter().find(has_module)
}

/// How the module is built.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    Release,
    Dev,
}

/// Builds the native module, and puts the package together. Returns the folder in which the package lies.
pub(crate) fn build(shell: &Shell, profile: Profile) -> Result<PathBuf> {
    let (profile, flags) = match profile {
        Profile::Release => ("release", "--release --package invar-python"),
        Profile::Dev => ("debug", "--workspace --lib"),
    };
    shell.run(shell.cargo(&format!("build {flags}")))?;
    let target = Workspace::load(shell)?.target_dir;
    let folder = target.join("python").join(profile);
    let package = folder.join("invar");
    if package.exists() {
        fs::remove_dir_all(&package).with_context(|| package.display().to_string())?;
    }
    fs::create_dir_all(&package).with_context(|| package.display().to_string())?;
    for entry in fs::read_dir(shell.root().join(SOURCE)).context(SOURCE)? {
        let path = entry?.path();
        if path.is_file() {
            copy(&path, &package.join(path.file_name().context("a file has a name")?))?;
        }
    }
    copy(&target.join(profile).join(BUILT), &package.join(MODULE))?;
    Ok(folder)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("{} to {}", from.display(), to.display()))?;
    Ok(())
}
