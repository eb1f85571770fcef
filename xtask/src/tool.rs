//! Finds and installs programs that do not come with cargo.

use std::process::Stdio;

use anyhow::{Result, bail};

use crate::shell::Shell;

/// A cargo subcommand from crates.io, with the version that this repository is checked with. If any
/// version is installed, that version is used.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
}

/// Runs cargo for every set of features.
pub(crate) const HACK: Tool = Tool { name: "cargo-hack", version: "0.6.46" };
/// Checks licences, bans and sources of dependencies.
pub(crate) const DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };
/// Builds and runs libFuzzer targets.
pub(crate) const FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2" };

/// Makes the site.
pub(crate) const MDBOOK: Tool = Tool { name: "mdbook", version: "0.5.4" };

impl Tool {
    /// Fails if the tool is missing. The error contains the command that installs it.
    pub(crate) fn require(&self, shell: &Shell) -> Result<()> {
        if !self.is_installed(shell) {
            bail!(
                "{} is missing: cargo install --locked {}@{}, or cargo xtask {} --install",
                self.name,
                self.name,
                self.version,
                if self.name.starts_with("cargo-") { "ci" } else { "docs" }
            );
        }
        Ok(())
    }

    /// Installs the tool if it is missing.
    pub(crate) fn install(&self, shell: &Shell) -> Result<()> {
        if self.is_installed(shell) {
            return Ok(());
        }
        println!("installing {} {}", self.name, self.version);
        // Each of these runs for seconds. Optimized, they would compile for minutes.
        shell.run(shell.cargo(&format!("install --debug --locked {}@{}", self.name, self.version)))
    }

    fn is_installed(&self, shell: &Shell) -> bool {
        // Cargo passes the name of its subcommand on.
        let subcommand = self.name.strip_prefix("cargo-");
        shell
            .command(self.name)
            .args(subcommand.into_iter().chain(["--version"]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}
