//! The steps that are a cargo command or two.

use anyhow::Result;

use super::Outcome;
use crate::shell::Shell;
use crate::workspace::Workspace;

/// The crates that stand outside the workspace.
const OUTSIDE: [&str; 2] = [FUZZ, "xtask/no-std-proof/Cargo.toml"];
const FUZZ: &str = "fuzz/Cargo.toml";

/// `default` is a name for one of the sets, and would only double their number.
const FEATURE_SETS: &str = "--workspace --feature-powerset --exclude-features default";

pub(super) fn fmt(shell: &Shell) -> Result<Outcome> {
    shell.run(shell.cargo("fmt --all --check"))?;
    for manifest in OUTSIDE.iter().filter(|manifest| shell.root().join(manifest).exists()) {
        shell.run(shell.cargo(&format!("fmt --check --manifest-path {manifest}")))?;
    }
    Ok(Outcome::Passed)
}

/// Its database of advisories is left out: that needs more of the network than a registry. So is
/// the no_std proof, which depends on invar-core alone.
pub(super) fn deny(shell: &Shell) -> Result<Outcome> {
    const CHECK: &str = "--all-features check bans licenses sources";
    shell.run(shell.cargo(&format!("deny --workspace {CHECK}")))?;
    if shell.root().join(FUZZ).exists() {
        shell.run(shell.cargo(&format!("deny --manifest-path {FUZZ} {CHECK}")))?;
    }
    Ok(Outcome::Passed)
}

pub(super) fn clippy(shell: &Shell) -> Result<Outcome> {
    shell.run(shell.cargo(&format!("hack clippy {FEATURE_SETS} --all-targets -- -D warnings")))?;
    Ok(Outcome::Passed)
}

/// Without the tests' dependencies, whose features would hide one that a crate forgot to ask for.
pub(super) fn features(shell: &Shell) -> Result<Outcome> {
    shell.run(shell.cargo(&format!("hack check {FEATURE_SETS}")))?;
    // What core says to defmt is left out on hosts, where nothing links with it.
    let mut command = shell.cargo("check --package invar-core --features defmt --target-dir");
    command.arg(Workspace::load(shell)?.target_dir.join("defmt"));
    command.env("RUSTFLAGS", "--cfg defmt_on_host -D warnings");
    shell.run(command)?;
    Ok(Outcome::Passed)
}

pub(super) fn doc(shell: &Shell) -> Result<Outcome> {
    let mut command = shell.cargo("doc --workspace --all-features --no-deps");
    command.env("RUSTDOCFLAGS", "-D warnings");
    shell.run(command)?;
    Ok(Outcome::Passed)
}

/// Loom's atomics stand in for the processor's where this configuration is set, so that only the
/// tests named `interleavings` are of use then. It has a target folder of its own: the flag would
/// have everything built again.
pub(super) fn loom(shell: &Shell) -> Result<Outcome> {
    let mut command =
        shell.cargo("test --release --package invar-core --lib interleavings --target-dir");
    command.arg(Workspace::load(shell)?.target_dir.join("loom"));
    command.env("RUSTFLAGS", "--cfg loom");
    shell.run(command)?;
    Ok(Outcome::Passed)
}

/// The README's own command, shown as it runs: no crate has a feature then but core its `log`, for the
/// others. Then the crates that have features without any, and with all of them, the libraries that
/// tests load included.
pub(super) fn test(shell: &Shell) -> Result<Outcome> {
    const ALL: &str = "-p invar-core -p invar-cuda -p invar-testkit --all-features";
    shell.stream(shell.cargo("test --workspace"))?;
    shell.stream(shell.cargo("test -p invar-core --no-default-features"))?;
    shell.stream(shell.cargo(&format!("test {ALL} --lib --test cuda")))?;
    Ok(Outcome::Passed)
}
