//! The steps that run just a cargo command or two.

use anyhow::Result;

use crate::outcome::Outcome;
use crate::shell::Shell;
use crate::workspace::Workspace;

/// The crates outside the workspace.
const OUTSIDE: [&str; 2] = [FUZZ, "xtask/no-std-proof/Cargo.toml"];
const FUZZ: &str = "fuzz/Cargo.toml";

/// The crates that others use, each with no feature, with each feature alone, and with all of them. `default` names
/// one of these sets. The crates of the tests are left out, because the step `test` builds them without features
/// and with all.
const FEATURE_SETS: &str = "--workspace --ignore-private --exclude invar-testkit --exclude invar-simulator \
                            --exclude invar-test-wait --each-feature --exclude-features default";

pub(super) fn fmt(shell: &Shell) -> Result<Outcome> {
    shell.run(shell.cargo("fmt --all --check"))?;
    for manifest in OUTSIDE.iter().filter(|manifest| shell.root().join(manifest).exists()) {
        shell.run(shell.cargo(&format!("fmt --check --manifest-path {manifest}")))?;
    }
    Ok(Outcome::Passed)
}

/// Runs cargo-deny without its database of advisories, which needs more of the network than a registry.
/// The no_std proof is left out, since it depends on invar-core alone.
pub(super) fn deny(shell: &Shell) -> Result<Outcome> {
    const CHECK: &str = "--all-features check bans licenses sources";
    shell.run(shell.cargo(&format!("deny --workspace {CHECK}")))?;
    if shell.root().join(FUZZ).exists() {
        shell.run(shell.cargo(&format!("deny --manifest-path {FUZZ} {CHECK}")))?;
    }
    Ok(Outcome::Passed)
}

pub(super) fn clippy(shell: &Shell) -> Result<Outcome> {
    const TARGETS: &str = "--workspace --all-targets --all-features";
    shell.run(shell.cargo(&format!("clippy {TARGETS} -- -D warnings")))?;
    Ok(Outcome::Passed)
}

/// Checks sets of features without dev-dependencies. Their features would hide a feature that a
/// crate forgot to ask for.
pub(super) fn features(shell: &Shell) -> Result<Outcome> {
    shell.run(shell.cargo(&format!("hack clippy {FEATURE_SETS} -- -D warnings")))?;
    // The core's `defmt` messages are left out on hosts, where nothing links with defmt.
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

/// Runs the tests named `interleavings` with loom's atomics. Under `--cfg loom` no other test is of
/// use. The step has its own target folder, because the flag would rebuild everything else.
pub(super) fn loom(shell: &Shell) -> Result<Outcome> {
    let mut command =
        shell.cargo("test --release --package invar-core --lib interleavings --target-dir");
    command.arg(Workspace::load(shell)?.target_dir.join("loom"));
    command.env("RUSTFLAGS", "--cfg loom");
    // All tests of the core are compiled and six run. Optimizing across crates would take longer than they do.
    command
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    shell.run(command)?;
    Ok(Outcome::Passed)
}

/// Runs the tests. The first command is the README's own, and its output is shown as it comes. There no
/// crate has a feature except the core, which has `log` for the others. The second command runs the tests of
/// features. It names the whole workspace, so that other projects' crates have the features of the first command and
/// are not built again.
pub(super) fn test(shell: &Shell) -> Result<Outcome> {
    const OF_FEATURES: &str =
        "--features invar-testkit/cust,invar-testkit/mutants --test cuda --test mutants";
    shell.stream(shell.cargo("test --workspace"))?;
    shell.stream(shell.cargo(&format!("test --workspace {OF_FEATURES}")))?;
    Ok(Outcome::Passed)
}
