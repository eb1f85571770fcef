//! Installs each package in a clean root, runs it, removes it, and looks for what is left.

mod container;
mod root;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::crates::{self, Interfaces};
use crate::shell;
use root::{Root, is_installed};

/// The outcome of a check.
enum Outcome {
    Passed(String),
    /// The check did not run. The text says why.
    Skipped(String),
}

/// Checks the packages in a directory. `work` is a directory for clean roots, removed at the end.
pub(crate) fn run(packages: &Path, work: &Path) -> Result<()> {
    let found = |ending: &str| package(packages, ending);
    fs::create_dir_all(work).with_context(|| work.display().to_string())?;
    let mut outcomes = vec![("wheel", wheel::check(&found(".whl")?, &work.join("venv")))];
    match Root::create(&work.join("root")) {
        Ok(root) => {
            outcomes.push(("deb", debian(&root, &found(".deb")?)));
            outcomes.push(("tarball", tarball(&root, &found(".tar.gz")?)));
            outcomes.push(("rpm", rpm(&root, &found(".rpm")?)));
            outcomes.push(("container", container::check(&root, packages, &work.join("image"))));
            // The last one, since it installs Python in the root.
            outcomes.push(("wheel in a clean root", wheel::check_in(&root, &found(".whl")?)));
        }
        Err(error) => {
            let why = format!("no clean root: {error:#}");
            outcomes.push((
                "deb, tarball, rpm, container, wheel in a clean root",
                Ok(Outcome::Skipped(why)),
            ));
        }
    }
    outcomes.push(("crates", compiled(work)));
    outcomes.push(("interfaces", compared()));
    let mut failed = 0;
    for (name, outcome) in outcomes {
        match outcome {
            Ok(Outcome::Passed(text)) => println!("{name}: ok: {text}"),
            Ok(Outcome::Skipped(why)) => println!("{name}: SKIPPED: {why}"),
            Err(error) => {
                failed += 1;
                println!("{name}: FAILED: {error:#}");
            }
        }
    }
    root::remove(work)?;
    ensure!(failed == 0, "{failed} packages do not work");
    Ok(())
}

/// Each crate must build by itself, from the files that it packs.
fn compiled(work: &Path) -> Result<Outcome> {
    crates::verify(work)?;
    Ok(Outcome::Passed("each builds from its packed files".to_owned()))
}

fn compared() -> Result<Outcome> {
    Ok(match crates::compare_interfaces()? {
        Interfaces::Compatible(tag) => Outcome::Passed(format!("they keep what {tag} had")),
        Interfaces::NotCompared(why) => Outcome::Skipped(why),
    })
}

/// The one file with this ending.
fn package(packages: &Path, ending: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(packages).with_context(|| packages.display().to_string())? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(ending) {
            return Ok(path);
        }
    }
    bail!("{}: no file ends with {ending}", packages.display())
}

fn debian(root: &Root, package: &Path) -> Result<Outcome> {
    root.leaves_nothing(|| {
        let copy = root.path().join("tmp/invar.deb");
        fs::copy(package, &copy).with_context(|| copy.display().to_string())?;
        root.run(&["dpkg", "--install", "/tmp/invar.deb"])?;
        fs::remove_file(&copy).with_context(|| copy.display().to_string())?;
        root.run(&["dpkg", "--verify", "invar"])?;
        let lines = job(&|words| root.run(words), &["invar"])?;
        ensure!(!lines.contains("LD_LIBRARY_PATH"), "the loader does not find the plugin: {lines}");
        root.run(&["dpkg", "--purge", "invar"]).map(drop)
    })?;
    Ok(Outcome::Passed("dpkg installed it on Debian 12, it ran, and purge left nothing".to_owned()))
}

fn tarball(root: &Root, package: &Path) -> Result<Outcome> {
    root.leaves_nothing(|| {
        let target = root.path().join("opt");
        let mut tar = shell::command("tar", &["--extract", "--gzip", "--file"])?;
        tar.arg(package).arg("--directory").arg(&target);
        shell::read(tar)?;
        let entry = fs::read_dir(&target)?.next().context("tar extracted nothing")??;
        let name = entry.file_name();
        let name = name.to_str().context("the folder's name is UTF-8")?;
        let lines = job(&|words| root.run(words), &[&format!("/opt/{name}/bin/invar")])?;
        ensure!(lines.contains(&format!("/opt/{name}/lib")), "another plugin is named: {lines}");
        Ok(fs::remove_dir_all(entry.path())?)
    })?;
    Ok(Outcome::Passed("unpacked in /opt of Debian 12, it ran, and left nothing".to_owned()))
}

/// Debian has no dependencies that RPM knows, so `rpm` does not check them here.
fn rpm(root: &Root, package: &Path) -> Result<Outcome> {
    if !is_installed("rpm") {
        return Ok(Outcome::Skipped("rpm is missing".to_owned()));
    }
    let rpm = |args: &[&str]| {
        let mut command = shell::command("rpm", &["--root"])?;
        command.arg(root.path()).args(args);
        shell::read(command)
    };
    rpm(&["--initdb"])?;
    root.leaves_nothing(|| {
        let path = package.to_str().context("the path of target is UTF-8")?;
        rpm(&["--install", "--nodeps", path])?;
        rpm(&["--verify", "--nodeps", "invar"])?;
        let lines = job(&|words| root.run(words), &["invar"])?;
        ensure!(lines.contains("LD_LIBRARY_PATH=/usr/lib64"), "another plugin is named: {lines}");
        rpm(&["--erase", "invar"]).map(drop)
    })?;
    let text =
        "rpm installed it without its dependencies on Debian 12, it ran, and erase left nothing";
    Ok(Outcome::Passed(text.to_owned()))
}

/// Runs the words of a command, and returns what it prints.
type Run<'a> = &'a dyn Fn(&[&str]) -> Result<String>;

/// The jobs of an installation: move messages between two processes, sum over two ranks, run a program
/// with Invar's libibverbs, and load the plugin. Returns the lines of `invar env`.
fn job(run: Run<'_>, command: &[&str]) -> Result<String> {
    let invar = |args: &str| {
        let args: Vec<&str> = args.split_whitespace().collect();
        run(&[command, &args[..]].concat())
    };
    invar("perf --min-bytes 8 --max-bytes 64K --factor 64 --iters 50")?;
    invar("coll all_reduce --min-bytes 8 --max-bytes 64K --factor 64 --iters 50")?;
    // Fails unless the library is loaded into the program.
    invar("run -- grep -q lib/invar/libibverbs.so /proc/self/maps")?;
    // Loads the plugin, and fails if it does not load.
    invar("env")
}
