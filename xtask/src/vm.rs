//! `cargo xtask vm -- COMMAND`: runs a command in a throw-away guest that has Linux's own RoCE,
//! `rdma_rxe`.
//!
//! The guest runs Debian's kernel and packages under QEMU, which emulates its processors. So it needs
//! no KVM, no root and no RDMA hardware. The guest sees this checkout and its build directory under
//! their own paths, so programs built here run there. `xtask/vm/init` creates the RDMA devices.
//!
//! The first run builds the image in `target/vm` (about half a minute, 90 MB from Debian's mirror). The
//! image ends with a snapshot of the booted guest, from which each command starts within a second.
//! Every change that a command makes to the guest is lost with the guest.

mod build;
mod image;
mod machine;
mod session;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::shell::Shell;
use crate::workspace::Workspace;
use image::Image;
use session::Session;

/// The exit status if the time limit passed, as `timeout` has it.
const TIMED_OUT: u8 = 124;
/// The exit status if something other than the command failed.
const NOT_RUN: u8 = 125;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The command to run in the guest, in the current directory. Its exit status becomes the status of
    /// this program. 124 means that the time limit passed, 125 that the guest failed.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// A shell command to run on the host meanwhile, at the other end of rxe_t's cable. It runs in a
    /// network namespace with the addresses 198.51.100.1 and 2001:db8:b::1, and needs root. Its exit
    /// status counts if the guest's is 0.
    #[arg(long, value_name = "COMMAND")]
    host: Option<OsString>,
    /// The time limit in seconds for the guest and the host's command. After it both are killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// Build the image again, with Debian's current packages.
    #[arg(long)]
    rebuild: bool,
    /// Install QEMU with apt-get if it is missing. Needs root.
    #[arg(long)]
    install: bool,
}

pub(crate) fn run(shell: &Shell, args: &Args) -> ExitCode {
    match start(shell, args) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(NOT_RUN)
        }
    }
}

/// Fails if QEMU is missing.
pub(crate) fn require(shell: &Shell) -> Result<()> {
    let version = shell.read(shell.command(&format!("{} --version", machine::QEMU)));
    version.map(drop).context("no guest without QEMU: apt-get install qemu-system-x86")
}

fn start(shell: &Shell, args: &Args) -> Result<u8> {
    if args.install && require(shell).is_err() {
        shell.run(shell.command(
            "apt-get -qq -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends \
             qemu-system-x86",
        ))?;
    }
    require(shell)?;
    let target_dir = Workspace::load(shell)?.target_dir;
    let image = Image::ensure(shell, &target_dir, args.rebuild)?;
    if args.command.is_empty() {
        if args.host.is_some() {
            bail!("--host runs beside a command in the guest, and none is given");
        }
        return Ok(0);
    }
    let session = Session {
        root: shell.root(),
        target_dir: &target_dir,
        command: &args.command,
        host: args.host.as_deref(),
    };
    let status = session.run(&image, Duration::from_secs(args.timeout))?;
    Ok(status.unwrap_or_else(|| {
        eprintln!("error: stopped after {} s; see --timeout", args.timeout);
        TIMED_OUT
    }))
}
