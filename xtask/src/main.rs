//! `cargo xtask`: the one command that people and CI run.

#![allow(clippy::print_stdout, reason = "a command line tool")]

mod api;
mod bench;
mod campaign;
mod ci;
mod contrib;
mod dist;
mod docs;
mod fuzz;
mod gpu;
mod launchers;
mod nccl;
mod no_std;
mod null_verbs;
mod outcome;
mod plugin;
mod python;
mod rdma_core;
mod rxe;
mod sanitize;
mod shell;
mod source;
mod stuck;
mod tidy;
mod tool;
mod torch_tests;
mod vm;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::shell::Shell;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks, fuzzing and benchmarks of this repository")]
struct Args {
    /// Show the output of every command at once, not only of a command that fails.
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every check, the cheapest first, and stop at the first that fails.
    Ci(ci::Args),
    /// Check the rules that rustfmt and clippy do not know: file sizes, forbidden words, places of
    /// `unsafe`, the table of settings.
    Tidy,
    /// Write the table of settings from the code, and the plots in docs from their data. Build the site
    /// into target/book.
    Docs(docs::Args),
    /// Prove that invar-core needs neither std nor alloc.
    NoStd,
    /// Run the fuzz targets, each for a bounded time.
    Fuzz(fuzz::Args),
    /// Run many simulated histories in a release build, and count which fault met which state of a
    /// machine. Stop at the first history that fails, and print the command that repeats it. Ctrl-C
    /// ends the campaign with the summary so far.
    Campaign(campaign::Args),
    /// Run tests under sanitizers, Miri and valgrind, if this machine has them.
    Sanitize(sanitize::Args),
    /// Inject faults, and check that the right end, rank or network is blamed.
    Stuck(stuck::Args),
    /// Build `libnccl-net-invar.so`, the plugin that NCCL loads.
    Plugin,
    /// Build the Python package `invar`, and print how Python finds it.
    Python,
    /// Run rdma-core's own Python tests on the software NIC's libibverbs, and print their results. The
    /// tests come from Debian's python3-pyverbs.
    RdmaCore,
    /// Run PyTorch's own tests of torch.distributed on the backend `invar`, and print their results. The
    /// tests come from the installed PyTorch.
    TorchTests {
        /// Run only the tests with these names.
        names: Vec<String>,
    },
    /// Start the command by the launchers of this machine: Open MPI, MPICH, torchrun, and a Slurm of two
    /// nodes in namespaces.
    Launchers,
    /// Load the plugin into releases of NCCL, which come from the Python package index. No GPU is
    /// needed. Check which network each release picks, also where the plugin fails.
    Nccl(nccl::Args),
    /// Build the packages of Invar into target/dist: tarball, Debian package, RPM, wheel, bill of
    /// materials and checksums.
    Dist(dist::Args),
    /// Run the tests that need a GPU, measure staging beside plain copies, and write a report.
    Gpu(gpu::Args),
    /// Measure Invar beside NCCL, the kernel's transports and Open MPI, in one run.
    Bench(bench::Args),
    /// Run a command in a throw-away guest with the kernel's software RoCE.
    Vm(vm::Args),
}

fn run(args: Args) -> Result<ExitCode> {
    let shell = Shell::new(args.verbose)?;
    match args.command {
        Command::Ci(args) => ci::run(&shell, &args),
        Command::Tidy => tidy::run(&shell).map(drop),
        Command::Docs(args) => docs::run(&shell, &args),
        Command::NoStd => no_std::run(&shell).map(drop),
        Command::Fuzz(args) => fuzz::run(&shell, &args).map(drop),
        Command::Campaign(args) => campaign::run(&shell, &args),
        Command::Sanitize(args) => sanitize::run(&shell, &args),
        Command::Stuck(args) => stuck::run(&shell, &args),
        Command::Plugin => plugin::run(&shell),
        Command::Python => python::run(&shell),
        Command::RdmaCore => rdma_core::run(&shell),
        Command::TorchTests { names } => torch_tests::run(&shell, &names),
        Command::Launchers => launchers::run(&shell),
        Command::Nccl(args) => nccl::run(&shell, &args),
        Command::Dist(args) => dist::run(&shell, &args),
        Command::Gpu(args) => gpu::run(&shell, &args),
        Command::Bench(args) => bench::run(&shell, &args),
        Command::Vm(args) => return Ok(vm::run(&shell, &args)),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
