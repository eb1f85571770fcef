//! `cargo xtask campaign`: runs many histories of the simulations, and tells which fault met which state.

use std::num::NonZero;
use std::os::unix::process::CommandExt;
use std::thread;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use invar_testkit::sim::SIMULATIONS;

use crate::shell::Shell;
use crate::workspace::Workspace;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The simulations to run. Without a name, all simulations run, one after the other.
    #[arg(value_name = "SIMULATION", value_parser = names())]
    simulations: Vec<String>,
    /// The number of histories of each simulation. Each history has a seed of its own.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    seeds: u64,
    /// The seed of the first history. The next histories have the next seeds.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    first: u64,
    /// The number of threads that run histories [default: one for each processor]
    #[arg(long, value_name = "J")]
    jobs: Option<NonZero<usize>>,
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(SIMULATIONS.map(|simulation| simulation.name))
}

/// Builds the program `campaign` and becomes it. So ctrl-C reaches only that program, which then prints
/// its summary.
pub(crate) fn run(shell: &Shell, args: &Args) -> Result<()> {
    shell.run(shell.cargo("build --release --package invar-testkit --bin campaign"))?;
    let program = Workspace::load(shell)?.target_dir.join("release/campaign");
    let jobs = match args.jobs {
        Some(jobs) => jobs,
        None => thread::available_parallelism()?,
    };
    let mut command = shell.program(&program);
    command.args([args.first, args.seeds, jobs.get() as u64].map(|number| number.to_string()));
    match args.simulations.as_slice() {
        [] => command.args(SIMULATIONS.map(|simulation| simulation.name)),
        simulations => command.args(simulations),
    };
    Err(command.exec()).with_context(|| format!("cannot start {}", program.display()))
}
