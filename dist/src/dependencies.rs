//! The crates that the packed binaries contain, as cargo resolves them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell;

/// The packages that become binaries.
pub(crate) const BINARIES: [&str; 4] =
    ["invar-cli", "invar-nccl-plugin", "invar-python", "invar-soft-verbs"];
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A crate's name and version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CrateId {
    pub(crate) name: String,
    pub(crate) version: String,
}

/// A crate in the binaries.
#[derive(Debug)]
pub(crate) struct Crate {
    pub(crate) id: CrateId,
    /// The SPDX expression of its manifest.
    pub(crate) licence: String,
    /// Where its source is on the web. It is empty if the manifest does not say.
    pub(crate) repository: String,
    /// The directory of its source on this machine.
    pub(crate) directory: PathBuf,
    /// Whether the crate belongs to this repository.
    pub(crate) is_own: bool,
    /// The SHA-256 of its file in the registry.
    pub(crate) checksum: Option<String>,
    pub(crate) dependencies: Vec<CrateId>,
}

/// Asks cargo for all crates in the binaries, sorted. Crates that only run during the build are left out.
pub(crate) fn load() -> Result<Vec<Crate>> {
    let in_binaries = in_binaries()?;
    let target = ["--filter-platform", TARGET];
    let args = ["metadata", "--locked", "--format-version", "1"];
    let json = shell::read(shell::cargo(&[&args[..], &target].concat())?)?;
    let metadata: Value = serde_json::from_str(&json)?;
    let lock = fs::read_to_string(shell::root()?.join("Cargo.lock")).context("Cargo.lock")?;
    parse(&metadata, &in_binaries, &checksums(&lock))
        .context("cargo metadata says something unexpected")
}

/// The crates that `cargo tree` prints for the binaries. Cargo knows which features are on.
fn in_binaries() -> Result<BTreeSet<CrateId>> {
    let mut crates = BTreeSet::new();
    for binary in BINARIES {
        let edges = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"];
        let args = ["tree", "--locked", "--target", TARGET, "--package", binary];
        let lines = shell::read(shell::cargo(&[&args[..], &edges].concat())?)?;
        for line in lines.lines().filter(|line| !line.is_empty()) {
            let mut words = line.split(' ');
            let (Some(name), Some(version)) = (words.next(), words.next()) else {
                bail!("cargo tree printed: {line}");
            };
            let version = version.trim_start_matches('v').to_owned();
            crates.insert(CrateId { name: name.to_owned(), version });
        }
    }
    Ok(crates)
}

/// The checksums in `Cargo.lock`.
fn checksums(lock: &str) -> BTreeMap<CrateId, String> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.map(|line| line.trim_end_matches('"').to_owned())
    };
    let entry = |block: &str| {
        let id = CrateId { name: value(block, "name")?, version: value(block, "version")? };
        Some((id, value(block, "checksum")?))
    };
    lock.split("[[package]]").filter_map(entry).collect()
}

fn parse(
    metadata: &Value,
    in_binaries: &BTreeSet<CrateId>,
    checksums: &BTreeMap<CrateId, String>,
) -> Result<Vec<Crate>> {
    let packages = metadata["packages"].as_array().context("no packages")?;
    let mut ids = BTreeMap::new();
    for package in packages {
        ids.insert(text(package, "id")?, id(package)?);
    }
    let mut dependencies: BTreeMap<&str, Vec<CrateId>> = BTreeMap::new();
    for node in metadata["resolve"]["nodes"].as_array().context("no resolve")? {
        let names = node["dependencies"].as_array().context("no dependencies")?;
        let names = names.iter().filter_map(Value::as_str).filter_map(|name| ids.get(name));
        let names = names.filter(|id| in_binaries.contains(id)).cloned();
        dependencies.insert(text(node, "id")?, names.collect());
    }
    let mut crates = Vec::new();
    for package in packages {
        let id = id(package)?;
        if !in_binaries.contains(&id) {
            continue;
        }
        let manifest = Path::new(text(package, "manifest_path")?);
        let mut dependencies = dependencies.remove(text(package, "id")?).unwrap_or_default();
        dependencies.sort();
        crates.push(Crate {
            licence: text(package, "license").unwrap_or("see its files").to_owned(),
            repository: text(package, "repository").unwrap_or_default().to_owned(),
            directory: manifest.parent().context("a manifest is in a directory")?.to_owned(),
            is_own: package["source"].is_null(),
            checksum: checksums.get(&id).cloned(),
            dependencies,
            id,
        });
    }
    crates.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(crates)
}

fn id(package: &Value) -> Result<CrateId> {
    let text = |key| text(package, key).map(str::to_owned);
    Ok(CrateId { name: text("name")?, version: text("version")? })
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().with_context(|| format!("no {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_id(name: &str) -> CrateId {
        CrateId { name: name.to_owned(), version: "1.2.3".to_owned() }
    }

    #[test]
    fn only_crates_in_the_binaries_are_listed_with_their_checksums() {
        let package = |name: &str| {
            serde_json::json!({
                "id": format!("registry#{name}"), "name": name, "version": "1.2.3", "license": "MIT",
                "manifest_path": format!("/crates/{name}/Cargo.toml"), "source": "registry",
            })
        };
        let metadata = serde_json::json!({
            "packages": [package("b"), package("build"), package("a")],
            "resolve": {"nodes": [
                {"id": "registry#a", "dependencies": ["registry#b", "registry#build"]},
            ]},
        });
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.2.3\"\nchecksum = \"00ff\"\n\n\
            [[package]]\nname = \"b\"\nversion = \"1.2.3\"\n";
        let in_binaries = BTreeSet::from([crate_id("a"), crate_id("b")]);
        let crates = parse(&metadata, &in_binaries, &checksums(lock)).unwrap();
        let ids: Vec<&CrateId> = crates.iter().map(|found| &found.id).collect();
        assert_eq!(ids, [&crate_id("a"), &crate_id("b")]);
        assert_eq!(crates[0].checksum.as_deref(), Some("00ff"));
        assert_eq!(crates[0].dependencies, [crate_id("b")]);
        assert!(!crates[0].is_own && crates[1].checksum.is_none());
    }
}
