//! `cargo xtask nccl`: loads the plugin into real releases of NCCL, without a GPU.
//!
//! The wheels of NCCL come from the Python package index through pip. For each release a process loads
//! `libnccl.so.2` and calls the function with which NCCL picks the network of a new communicator
//! ([`child`]). The trials ([`trial`]) check what NCCL picks, and what it does where the plugin fails.

mod child;
pub(crate) mod page;
mod release;
mod trial;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::outcome::Outcome;
use crate::plugin::{self, Profile};
use crate::shell::Shell;
use crate::workspace::Workspace;
use page::Row;
use release::{Fetched, RELEASES, Release};
use trial::Trials;

/// The releases that CI tries: the oldest, one with a table in the middle, the newest.
const IN_CI: [&str; 3] = ["2.14.3", "2.27.7", "2.32.3"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Releases to try [default: all, and write the table in docs/nccl.md]
    releases: Vec<String>,
    /// Load this libnccl.so.2 and let it pick a network. For the processes that this command starts.
    #[arg(long, hide = true, value_name = "FILE")]
    child: Option<PathBuf>,
}

/// Tries the releases that the user named. Without a name it tries all, and writes the table.
pub(crate) fn run(shell: &Shell, args: &Args) -> Result<()> {
    if let Some(library) = &args.child {
        return child::run(library);
    }
    let plugin = plugin::build(shell, Profile::Dev)?;
    let mut rows = Vec::new();
    for release in wanted(&args.releases)? {
        match tried(shell, &plugin, release)? {
            Ok(row) => rows.push(row),
            Err(missing) => bail!(missing),
        }
    }
    if args.releases.is_empty() {
        page::write(shell.root(), &rows)?;
        println!("written: {}", page::PATH);
    }
    Ok(())
}

/// Tries the releases of [`IN_CI`], and compares each with its row in docs/nccl.md. Without a package index
/// the step is skipped.
pub(crate) fn step(shell: &Shell) -> Result<Outcome> {
    let plugin = plugin::build(shell, Profile::Dev)?;
    for release in wanted(&IN_CI.map(str::to_owned))? {
        match tried(shell, &plugin, release)? {
            Ok(row) => page::compare(shell.root(), &row)?,
            Err(missing) => return Ok(Outcome::Skipped(missing)),
        }
    }
    Ok(Outcome::Passed)
}

fn wanted(names: &[String]) -> Result<Vec<&'static Release>> {
    for name in names {
        let is_known = RELEASES.iter().any(|release| release.version == name);
        let known = RELEASES.map(|release| release.version).join(", ");
        ensure!(is_known, "NCCL {name}: the known releases are {known}");
    }
    let is_wanted =
        |release: &&Release| names.is_empty() || names.iter().any(|name| name == release.version);
    Ok(RELEASES.iter().filter(is_wanted).collect())
}

/// Tries one release. The inner error says why the release could not be fetched.
fn tried(shell: &Shell, plugin: &Path, release: &Release) -> Result<Result<Row, String>> {
    let target = Workspace::load(shell)?.target_dir;
    let library = match release.fetch(shell, &target.join("nccl"))? {
        Fetched::Library(library) => library,
        Fetched::NoIndex(why) => return Ok(Err(why)),
    };
    let trials = Trials { shell, plugin, library: &library, target: &target };
    let row = trials.row(release).with_context(|| format!("NCCL {}", release.version))?;
    ensure!(row.version == release.version, "{} says it is {}", release.version, row.version);
    println!("{row}");
    Ok(Ok(row))
}
