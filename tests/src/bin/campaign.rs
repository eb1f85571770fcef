//! Runs many histories of simulations, for `cargo xtask campaign`. `campaign FIRST SEEDS JOBS NAME...`
//! runs the seeds from `FIRST` on, for each of the simulations, on `JOBS` threads.

#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::error::Error;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use invar_testkit::sim::{Campaign, Progress, SIMULATIONS, TWICE_EVERY};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// The time between two lines of progress where the output is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// The status of a program that ctrl-C has ended.
const INTERRUPTED: u8 = 130;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [first, seeds, jobs, names @ ..] = args.as_slice() else {
        return Err("usage: campaign FIRST SEEDS JOBS NAME...".into());
    };
    let (first, seeds, jobs) = (first.parse::<u64>()?, seeds.parse::<u64>()?, jobs.parse()?);
    let stop = Arc::new(AtomicBool::new(false));
    // A second ctrl-C ends the program at once.
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED.into(), Arc::clone(&stop))?;
    flag::register(SIGINT, Arc::clone(&stop))?;
    for name in names {
        let simulation = SIMULATIONS.iter().find(|simulation| simulation.name == name);
        let simulation = simulation.ok_or_else(|| format!("no simulation {name}"))?;
        let campaign = Campaign {
            simulation,
            seeds: first..first.saturating_add(seeds),
            jobs,
            twice_every: TWICE_EVERY,
            stop: &stop,
        };
        let summary = campaign.run(display(name));
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        println!("{summary}");
        if summary.failure.is_some() || summary.lacks_pairs() {
            return Ok(ExitCode::FAILURE);
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(INTERRUPTED.into());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the progress on standard error: in one line of a terminal, or else as a line from time to
/// time.
fn display(name: &str) -> impl FnMut(&Progress) {
    let mut next = LINE_EVERY;
    move |progress| {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K{name}: {progress}");
        } else if progress.time >= next {
            next = progress.time + LINE_EVERY;
            eprintln!("{name}: {progress}");
        }
    }
}
