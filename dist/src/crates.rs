//! The crates for a registry, as `cargo package` makes them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell;

/// The names of the workspace's crates that may be published.
fn names() -> Result<Vec<String>> {
    let args = ["metadata", "--no-deps", "--locked", "--format-version", "1"];
    let metadata: Value = serde_json::from_str(&shell::read(shell::cargo(&args)?)?)?;
    let packages = metadata["packages"].as_array().context("cargo names no packages")?;
    // `publish = false` is an empty list of registries.
    let may_be_published =
        |package: &&Value| package["publish"].as_array().is_none_or(|to| !to.is_empty());
    let name = |package: &Value| package["name"].as_str().map(str::to_owned);
    let names = packages.iter().filter(may_be_published).map(name);
    names.collect::<Option<_>>().context("a package without a name")
}

/// All crates with their file names. `work` is a directory for cargo.
pub(crate) fn build(work: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    package(work, &["--no-verify"])?;
    let directory = work.join("package");
    let mut crates = Vec::new();
    for name in names()? {
        let file = format!("{name}-{}.crate", env!("CARGO_PKG_VERSION"));
        let path = directory.join(&file);
        let content = fs::read(&path).with_context(|| path.display().to_string())?;
        crates.push((file, content));
    }
    Ok(crates)
}

/// Builds each crate from its packed files, with the other crates of this version as its dependencies.
pub(crate) fn verify(work: &Path) -> Result<()> {
    forget_unpacked(&shell::cargo_home()?.join("registry/src"), &names()?)?;
    package(work, &[])
}

/// Removes the crates of these names that cargo has unpacked for an earlier run. Their version is the same, so cargo
/// would take them although they have changed.
fn forget_unpacked(registries: &Path, names: &[String]) -> Result<()> {
    let Ok(registries) = fs::read_dir(registries) else { return Ok(()) };
    for registry in registries {
        let registry = registry?;
        // A registry of this host has no name before its number.
        if !registry.file_name().to_string_lossy().starts_with('-') {
            continue;
        }
        for name in names {
            let path = registry.path().join(format!("{name}-{}", env!("CARGO_PKG_VERSION")));
            if path.exists() {
                fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
            }
        }
    }
    Ok(())
}

fn package(work: &Path, flags: &[&str]) -> Result<()> {
    // A developer tries uncommitted changes too. The crate then says so.
    let mut command = shell::cargo(&["package", "--locked", "--allow-dirty"])?;
    command.args(flags).arg("--target-dir").arg(work);
    for name in names()? {
        command.args(["--package", &name]);
    }
    shell::read(command).map(drop)
}

/// What a check of the interfaces came to.
pub(crate) enum Interfaces {
    /// They keep the rules of semantic versioning since this tag.
    Compatible(String),
    /// Nothing was compared. The text says why.
    NotCompared(String),
}

/// Compares the interfaces of the crates with those of the last release.
pub(crate) fn compare_interfaces() -> Result<Interfaces> {
    let skipped = |why: &str| Ok(Interfaces::NotCompared(why.to_owned()));
    let tags = shell::read(shell::command(
        "git",
        &["tag", "--list", "v[0-9]*", "--sort=-version:refname", "--merged", "HEAD^"],
    )?);
    let Ok(tags) = tags else { return skipped("no history of git") };
    let Some(tag) = tags.lines().next() else { return skipped("there is no earlier release") };
    if shell::read(shell::cargo(&["semver-checks", "--version"])?).is_err() {
        return skipped(
            "cargo-semver-checks is missing: cargo install --locked cargo-semver-checks",
        );
    }
    for name in names()? {
        let args = ["semver-checks", "--package", &name, "--baseline-rev", tag];
        if let Err(error) = shell::read(shell::cargo(&args)?) {
            bail!("{name} breaks its interface of {tag}: {error:#}");
        }
    }
    Ok(Interfaces::Compatible(tag.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_crates_of_this_workspace_in_registries_of_this_host_are_forgotten() {
        let all = tempfile::tempdir().unwrap();
        let unpacked = |name: &str| format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let paths = ["-12/invar", "-12/log", "public.org-34/invar"]
            .map(|path| all.path().join(unpacked(path)));
        paths.iter().for_each(|path| fs::create_dir_all(path).unwrap());
        forget_unpacked(all.path(), &["invar".to_owned()]).unwrap();
        assert_eq!(paths.map(|path| path.exists()), [false, true, true]);
        fs::remove_dir_all(all.path()).unwrap();
        forget_unpacked(all.path(), &["invar".to_owned()]).unwrap();
    }
}
