//! `cargo xtask dist`: builds Invar's packages into `target/dist`.

#![allow(clippy::print_stdout, reason = "a command line tool")]

mod archive;
mod build;
mod check;
mod crates;
mod deb;
mod dependencies;
mod elf;
mod notices;
mod product;
mod rpm_package;
mod sbom;
mod shell;
mod tarball;
#[cfg(test)]
mod tests;
mod texts;
mod tree;
mod wheel;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use hmac_sha256::Hash;

use crate::elf::Needs;
use crate::product::Product;

/// Build the packages of Invar into target/dist: tarball, Debian package, RPM, wheel, bill of materials,
/// and their checksums.
#[derive(Parser)]
#[command(name = "cargo xtask dist")]
struct Args {
    /// Also install, run and remove each package, as far as this machine can.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let target = build::target_directory()?;
    println!("building the command, the plugin and the Python module");
    let binaries = build::run(&target)?;
    let mut needs = Needs::default();
    needs.add(&binaries.command).context("the command")?;
    needs.add(&binaries.plugin).context("the plugin")?;
    needs.add(&binaries.verbs).context("libibverbs")?;
    needs.check_libraries()?;
    let glibc = needs.glibc()?;
    let crates = dependencies::load()?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let bill = sbom::json(&version, &crates)?;
    let product = Product {
        time: source_date()?,
        homepage: env!("CARGO_PKG_REPOSITORY").to_owned(),
        needs,
        texts: texts::load(notices::text(&crates)?)?,
        definition: invar_cli::definition(),
        command: binaries.command,
        plugin: binaries.plugin,
        module: binaries.module,
        verbs: binaries.verbs,
        version,
    };
    println!("glibc {}.{} or later; {} crates", glibc.major, glibc.minor, crates.len());
    println!("{:>10} bytes  the command, stripped", product.command.len());
    println!("{:>10} bytes  the plugin, stripped", product.plugin.len());
    println!("{:>10} bytes  the Python module, stripped", product.module.len());
    println!("{:>10} bytes  libibverbs, stripped", product.verbs.len());
    let work = target.join("dist-check");
    let mut files = packages(&product)?;
    files.extend(crates::build(&work).context("the crates")?);
    if args.check {
        let again = build::run(&work).context("a second build")?;
        let is_same = again.command == product.command
            && again.plugin == product.plugin
            && again.module == product.module
            && again.verbs == product.verbs;
        ensure!(is_same, "two builds in two folders gave two results");
        println!("two builds in two folders gave the same bytes");
        let mut again = packages(&product)?;
        again.extend(crates::build(&work)?);
        ensure!(again == files, "packing twice gave two results");
        println!("packing twice gave the same bytes");
    }
    files.push((format!("invar-{}.cdx.json", product.version), bill.into_bytes()));
    let directory = target.join("dist");
    write(&directory, files)?;
    if args.check { check::run(&directory, &work) } else { Ok(()) }
}

/// All packages with their file names.
fn packages(product: &Product) -> Result<Vec<(String, Vec<u8>)>> {
    Ok(vec![
        tarball::build(product).context("the tarball")?,
        deb::build(product).context("the Debian package")?,
        rpm_package::build(product).context("the RPM")?,
        wheel::build(product).context("the wheel")?,
    ])
}

/// Writes the files and their checksums into an empty directory.
fn write(directory: &Path, mut files: Vec<(String, Vec<u8>)>) -> Result<()> {
    files.sort();
    let sum = |(name, content): &(String, Vec<u8>)| format!("{}  {name}\n", hex(content));
    let sums: String = files.iter().map(sum).collect();
    files.push(("SHA256SUMS".to_owned(), sums.into_bytes()));
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    for (name, content) in files {
        let path = directory.join(name);
        println!("{:>10} bytes  {}", content.len(), path.display());
        fs::write(&path, content).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The SHA-256 of the bytes in hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    Hash::hash(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The time that all files get: `SOURCE_DATE_EPOCH`, or the time of the last commit.
fn source_date() -> Result<u64> {
    const NAME: &str = "SOURCE_DATE_EPOCH";
    if let Ok(text) = env::var(NAME) {
        return text.parse().with_context(|| format!("{NAME}={text}: no number of seconds"));
    }
    let time = shell::read(shell::command("git", &["log", "-1", "--format=%ct"])?);
    let time =
        time.with_context(|| format!("no commit gives the time of the files: set {NAME}"))?;
    time.trim().parse().with_context(|| format!("git says the time is {time}"))
}
