//! Asks cargo about this workspace.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::shell::Shell;

/// The part of `cargo metadata` that the steps need.
pub(crate) struct Workspace {
    /// The directory in which cargo builds.
    pub(crate) target_dir: PathBuf,
    /// The workspace's members.
    pub(crate) packages: Vec<Package>,
}

/// A member of the workspace.
pub(crate) struct Package {
    /// The package's name as `-p` takes it.
    pub(crate) name: String,
    /// The manifest, `Cargo.toml`.
    pub(crate) manifest: PathBuf,
    /// The line that a registry shows. It is empty if the manifest has none.
    pub(crate) description: String,
    /// Whether the package may be published in a registry.
    pub(crate) public: bool,
    /// The names of its dependencies, without dev- and build-dependencies.
    pub(crate) dependencies: Vec<String>,
}

impl Workspace {
    /// Runs `cargo metadata`.
    pub(crate) fn load(shell: &Shell) -> Result<Workspace> {
        let json = shell.read(shell.cargo("metadata --no-deps --format-version 1"))?;
        parse(&json).context("cargo metadata says something unexpected")
    }
}

fn parse(json: &str) -> Result<Workspace> {
    let value: Value = serde_json::from_str(json)?;
    let packages = value["packages"].as_array().context("no packages")?;
    Ok(Workspace {
        target_dir: value["target_directory"].as_str().context("no target_directory")?.into(),
        packages: packages.iter().map(package).collect::<Result<_>>()?,
    })
}

fn package(value: &Value) -> Result<Package> {
    let dependencies = value["dependencies"].as_array().context("no dependencies")?;
    Ok(Package {
        name: value["name"].as_str().context("a package without a name")?.to_owned(),
        manifest: value["manifest_path"].as_str().context("no manifest_path")?.into(),
        description: value["description"].as_str().unwrap_or_default().to_owned(),
        // `null` allows any registry, a list allows those registries. `publish = false` is the empty
        // list.
        public: value["publish"].as_array().is_none_or(|registries| !registries.is_empty()),
        dependencies: dependencies
            .iter()
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| Some(dependency["name"].as_str()?.to_owned()))
            .collect(),
    })
}
