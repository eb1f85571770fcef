//! `cargo xtask torch-tests`: runs PyTorch's own tests of torch.distributed on the backend `invar`.
//!
//! The tests come with the installed PyTorch. `python/tests/torch_distributed.py` names the backend to them.

use std::env;
use std::fs::File;

use anyhow::{Context, Result, bail};

use crate::python::{self, Profile};
use crate::shell::Shell;
use crate::workspace::Workspace;

const TESTS: &str = "python/tests/torch_distributed.py";
/// PyTorch's tests import this package, which PyTorch does not bring.
const PACKAGE: &str = "expecttest==0.3.0";

/// Runs the tests of these names, or else all tests, and prints tables of the results.
pub(crate) fn run(shell: &Shell, names: &[String]) -> Result<()> {
    let Some(python) = python::with_module(shell, "torch") else {
        bail!("no Python has PyTorch: on Debian, apt-get install python3-torch");
    };
    let module = python::build(shell, Profile::Dev)?;
    let folder = Workspace::load(shell)?.target_dir.join("torch-tests");
    let mut pip = shell.command(&format!("{python} -m pip install --quiet --no-deps --upgrade"));
    pip.arg("--target").arg(&folder).arg(PACKAGE);
    shell.run(pip)?;
    let log = folder.join("log.txt");
    let mut tests = shell.command(&format!("{python} -W ignore {TESTS}"));
    tests.args(names).env("PYTHONPATH", env::join_paths([&module, &folder])?);
    tests.env("PYTHONDONTWRITEBYTECODE", "1");
    tests.stderr(File::create(&log).with_context(|| log.display().to_string())?);
    shell.stream(tests).with_context(|| format!("{} has the errors", log.display()))
}
