//! Proves in two ways that invar-core needs neither std nor alloc. `cargo check` proves nothing, since
//! it accepts `extern crate std`.

mod link;
mod sysroot;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::outcome::Outcome;
use crate::shell::Shell;
use crate::workspace::Workspace;

/// The feature sets that devices and hosts use. `defmt` needs the linker script of its device, so
/// `cargo xtask ci --only features` just compiles it.
const FEATURE_SETS: [&str; 2] = ["", "log"];

/// Runs both proofs.
pub(crate) fn run(shell: &Shell) -> Result<Outcome> {
    let proof = Proof {
        shell,
        host: host(shell)?,
        target_dir: Workspace::load(shell)?.target_dir.join("no-std"),
    };
    // Build with the dependency versions that the workspace is tested with.
    fs::copy(shell.root().join("Cargo.lock"), shell.root().join("xtask/no-std-proof/Cargo.lock"))
        .context("cannot copy Cargo.lock")?;
    sysroot::prove(&proof)?;
    link::prove(&proof)?;
    Ok(Outcome::Passed)
}

/// The settings with which both proofs build.
struct Proof<'a> {
    shell: &'a Shell,
    /// The target triple for which rustc builds by default.
    host: String,
    target_dir: PathBuf,
}

impl Proof<'_> {
    /// Builds the static library no-std-proof and returns its path. It uses the toolchain's own
    /// libraries, or those of `sysroot` if there is one.
    fn build(&self, features: &str, sysroot: Option<&Path>) -> Result<PathBuf> {
        let mut cargo = self.shell.cargo("build --manifest-path xtask/no-std-proof/Cargo.toml");
        cargo.args(["--features", features, "--target", &self.host]);
        cargo.arg("--target-dir").arg(&self.target_dir);
        if let Some(sysroot) = sysroot {
            // Flags of the target do not apply to procedural macros, which need std.
            let triple = self.host.to_uppercase().replace('-', "_");
            let flags = format!("--sysroot={}", sysroot.display());
            cargo.env(format!("CARGO_TARGET_{triple}_RUSTFLAGS"), flags);
        }
        self.shell.run(cargo)?;
        Ok(self.target_dir.join(&self.host).join("debug/libno_std_proof.a"))
    }
}

pub(crate) fn host(shell: &Shell) -> Result<String> {
    let version = shell.read(shell.command("rustc --version --verbose"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc --version --verbose names no host")?.to_owned())
}
