//! `invar doctor`: finds what is wrong with this host.
//!
//! The [`host`] is what the [`checks`] look at: the kernel's files, the environment, and the system's
//! answers. Tests put a stand-in in its place. [`rdma`], [`pci`], [`loader`], [`netdev`] and [`nft`] read
//! what checks need. The [`report`] holds the findings, and [`mend`] what several of them say.

mod checks;
mod equal;
mod host;
mod hosts;
mod loader;
mod losses;
mod mend;
mod netdev;
mod nft;
mod pci;
mod peer;
mod rdma;
mod report;
#[cfg(test)]
mod stand_in;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use invar::Settings;

use crate::failure::{Failure, WRONG};
use crate::output::{pretty_json, print};
use crate::perf::probe;
use checks::{CHECKS, Check};
use host::Host;
use peer::Choice;
use report::Report;

/// Find what is wrong with this host, what it costs, and the command that mends it.
///
/// Each finding is `bad` (something does not work), `warn` (something works badly, or fails at times) or
/// `note` (something that may be meant so). A `?` marks what this process cannot see, often for want of
/// root. The command changes nothing, and needs no root.
///
/// Exit status: 0 nothing is bad and there is no warning, 1 there is, 2 a flag or a name is not allowed,
/// 141 nobody reads the results any more, 3 anything else.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Checks to run, as --list names them [default: all]
    #[arg(value_name = "CHECK")]
    checks: Vec<String>,

    /// List the checks
    #[arg(long, conflicts_with_all = ["checks", "verbose", "root", "peer", "hosts"])]
    list: bool,

    /// Also show what is well
    #[arg(short, long)]
    verbose: bool,

    /// Print JSON: an object with the findings
    #[arg(long)]
    json: bool,

    /// Send messages between every device of this host and of the host at this address, which runs
    /// `invar doctor --serve`. Other checks run only if they are named [default port: 14791]
    #[arg(long, value_name = "HOST[:PORT]")]
    peer: Option<String>,

    /// Run the tests of --peer with each host of FILE, which has one host a line, and show a table, the worst host first.
    /// Each device of this host is tried until it reaches one of the other host
    #[arg(long, value_name = "FILE", conflicts_with = "peer")]
    hosts: Option<PathBuf>,

    /// Serve clients of --peer, one after another [default: at TCP port 14791 of all addresses]
    #[arg(long, value_name = "ADDR[:PORT]", num_args = 0..=1, default_missing_value = probe::ADDRESS)]
    #[arg(conflicts_with_all = ["checks", "list", "verbose", "json", "peer", "hosts", "root"])]
    serve: Option<String>,

    /// Read the kernel's and the administrator's files below DIR, where a container has its host's root.
    /// Interfaces, limits, libibverbs and the packet filter remain those of this process
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.list {
        let text = if args.json { list_as_json()? } else { list() };
        print(io::stdout(), "the list", &text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(addr) = &args.serve {
        probe::serve(addr, &Settings::from_env()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let calls_others = args.peer.is_some() || args.hosts.is_some();
    let checks = match args.checks.as_slice() {
        [] if calls_others => Vec::new(),
        names => chosen(names)?,
    };
    if let Some(root) = args.root.as_ref().filter(|root| !root.is_dir()) {
        return Err(Failure::usage(format!("--root {}: there is no such folder", root.display())));
    }
    let host = Host::here(args.root.as_deref());
    let mut report = examine(&host, &checks);
    if let Some(addr) = &args.peer {
        let addrs = std::slice::from_ref(addr);
        peer::check(addrs, Choice::All, &Settings::from_env()?, &host, &mut report)?;
    }
    if let Some(path) = &args.hosts {
        hosts::check(path, &Settings::from_env()?, &host, &mut report)?;
    }
    let text = match args.json {
        true => report.as_json(&host.system.hostname())?,
        false => report.as_text(args.verbose),
    };
    print(io::stdout(), "the findings", &text)?;
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

fn examine(host: &Host, checks: &[&Check]) -> Report {
    let mut report = Report::default();
    checks.iter().for_each(|check| check.run(host, &mut report));
    report
}

/// The checks of these names, in the order of the list; all without a name.
fn chosen(names: &[String]) -> Result<Vec<&'static Check>, Failure> {
    for name in names {
        if CHECKS.iter().all(|check| check.name != name) {
            let all: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
            let text = format!("{name}: there is no such check; there is {}", all.join(", "));
            return Err(Failure::usage(text));
        }
    }
    let is_chosen =
        |check: &&Check| names.is_empty() || names.iter().any(|name| check.name == name);
    Ok(CHECKS.iter().filter(is_chosen).collect())
}

fn list() -> String {
    let lines = CHECKS.iter().map(|check| format!("{:<11} {}", check.name, check.about));
    lines.collect::<Vec<_>>().join("\n")
}

fn list_as_json() -> Result<String, Failure> {
    let object = |check: &Check| serde_json::json!({ "name": check.name, "about": check.about });
    let checks: Vec<serde_json::Value> = CHECKS.iter().map(object).collect();
    pretty_json(&checks)
}

#[cfg(test)]
mod tests;
