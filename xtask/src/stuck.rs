//! `cargo xtask stuck`: injects faults into processes on two hosts, and checks that each process names the end,
//! the rank or the network at fault.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};

use crate::shell::Shell;
use crate::workspace::Workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only the faults whose names contain this text.
    #[arg(value_name = "TEXT")]
    only: Option<String>,
}

/// Builds the program `stuck` and becomes it, so that the table appears line by line. It needs root, iproute2 and
/// nftables.
pub(crate) fn run(shell: &Shell, args: &Args) -> Result<()> {
    shell.run(shell.cargo("build --release --package invar-testkit --bin stuck"))?;
    let program = Workspace::load(shell)?.target_dir.join("release/stuck");
    let mut command = shell.program(&program);
    command.args(&args.only);
    Err(command.exec()).with_context(|| format!("cannot start {}", program.display()))
}
