//! `cargo xtask ci`: runs every check, one after the other.

mod cargo_steps;

use std::io::{IsTerminal, Write};
use std::time::Instant;

use anyhow::{Error, Result, bail};
use clap::builder::PossibleValuesParser;
use invar_testkit::skip;

use crate::outcome::Outcome;
use crate::shell::Shell;
use crate::tool::{self, Tool};
use crate::{api, contrib, fuzz, nccl, no_std, python, rdma_core, rxe, tidy};

/// One check of `cargo xtask ci`.
struct CiStep {
    name: &'static str,
    about: &'static str,
    tool: Option<Tool>,
    run: fn(&Shell) -> Result<Outcome>,
}

const fn step(
    name: &'static str,
    about: &'static str,
    tool: Option<Tool>,
    run: fn(&Shell) -> Result<Outcome>,
) -> CiStep {
    CiStep { name, about, tool, run }
}

/// All steps, the cheapest first, so that a slip costs seconds. The tests come last, so that cargo's
/// own summary of them ends the output.
const STEPS: [CiStep; 16] = [
    step("fmt", "rustfmt has nothing to change", None, cargo_steps::fmt),
    step(
        "tidy",
        "file sizes, forbidden words, places of unsafe, circles of modules",
        None,
        tidy::run,
    ),
    step("contrib", "Prometheus' rules and Grafana's dashboard", None, contrib::step),
    step("deny", "licences, bans and sources of dependencies", Some(tool::DENY), cargo_steps::deny),
    step("clippy", "clippy is silent with all features, tests included", None, cargo_steps::clippy),
    step(
        "features",
        "clippy is silent for each published crate by itself, with none, one and all features",
        Some(tool::HACK),
        cargo_steps::features,
    ),
    step("doc", "rustdoc is silent", None, cargo_steps::doc),
    step("api", "users of invar can name every type of its public signatures", None, api::run),
    step("no-std", "invar-core needs neither std nor alloc", None, no_std::run),
    step("loom", "every interleaving of processes in shared memory", None, cargo_steps::loom),
    step("fuzz", "each fuzz target runs for a few seconds", Some(tool::FUZZ), fuzz::smoke),
    step("nccl", "releases of NCCL load the plugin and pick it, without a GPU", None, nccl::step),
    step("rdma-core", "rdma-core's tests on our libibverbs.so.1", None, rdma_core::step),
    step("python", "the Python module, its examples and its types", None, python::step),
    step("vm", "the kernel's RoCE works as device and as peer, in a guest", None, rxe::step),
    step("test", "cargo test --workspace", None, cargo_steps::test),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these steps.
    #[arg(long, value_name = "STEP", value_delimiter = ',', value_parser = names())]
    only: Vec<String>,
    /// List the steps and stop.
    #[arg(long)]
    list: bool,
    /// First install the cargo tools that are missing.
    #[arg(long)]
    install: bool,
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(STEPS.iter().map(|step| step.name))
}

/// Runs the steps that the user asked for, and stops at the first that fails.
pub(crate) fn run(shell: &Shell, args: &Args) -> Result<()> {
    let wanted = |step: &&CiStep| args.only.is_empty() || args.only.iter().any(|n| n == step.name);
    let steps: Vec<&CiStep> = STEPS.iter().filter(wanted).collect();
    if args.list {
        for step in steps {
            println!("{:9} {}", step.name, step.about);
        }
        return Ok(());
    }
    if args.install {
        for tool in steps.iter().filter_map(|step| step.tool.as_ref()) {
            tool.install(shell)?;
        }
    }
    let start = Instant::now();
    for step in &steps {
        run_step(shell, step)?;
    }
    println!("{} of {} steps in {:.0} s", steps.len(), STEPS.len(), start.elapsed().as_secs_f64());
    Ok(())
}

/// Runs one step and prints one line: its name, its duration and its result.
fn run_step(shell: &Shell, step: &CiStep) -> Result<()> {
    let name = step.name;
    if std::io::stdout().is_terminal() {
        // Show which step is running. The result line overwrites this text.
        print!("{name} ...\r");
        std::io::stdout().flush()?;
    }
    let start = Instant::now();
    let result = match &step.tool {
        Some(tool) => tool.require(shell).and_then(|()| (step.run)(shell)),
        None => (step.run)(shell),
    };
    let seconds = start.elapsed().as_secs_f64();
    match result {
        Ok(Outcome::Passed) => println!("{name:9}{seconds:7.1} s  ok"),
        Ok(Outcome::Skipped(why)) => {
            println!("{name:9}{seconds:7.1} s  SKIPPED: {why}");
            skip::allow(name).map_err(Error::msg)?;
        }
        Err(error) => {
            println!("{name:9}{seconds:7.1} s  FAILED");
            bail!("{error:#}\nrerun it alone: cargo xtask ci --only {name}");
        }
    }
    Ok(())
}
