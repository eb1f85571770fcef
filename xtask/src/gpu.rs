//! `cargo xtask gpu`: what only a machine with a GPU can show.

use anyhow::Result;

use crate::shell::Shell;

/// Runs the checks on every GPU, then measures staging beside plain copies.
pub(crate) fn run(shell: &Shell) -> Result<()> {
    let mut checks = shell.cargo("test --release -p invar-testkit --test cuda hardware");
    checks.args(["--", "--nocapture", "--test-threads=1"]).env("INVAR_GPU", "1");
    shell.stream(checks)?;
    shell.stream(shell.cargo("run --release -p invar-testkit --bin bench_staging"))
}
