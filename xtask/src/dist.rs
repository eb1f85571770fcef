//! `cargo xtask dist`: builds Invar's packages.
//!
//! The work is done by a package of its own. It needs the writers of all archive formats, which the other
//! commands do not have to wait for.

use anyhow::Result;

use crate::shell::Shell;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also install, run and remove each package, as far as this machine can. This needs root, and
    /// debootstrap, rpm, buildah and python3.
    #[arg(long)]
    check: bool,
}

/// Runs the package `invar-dist`.
pub(crate) fn run(shell: &Shell, args: &Args) -> Result<()> {
    let check = if args.check { "--check" } else { "" };
    shell.stream(shell.cargo(&format!("run --quiet --locked --package invar-dist -- {check}")))
}
