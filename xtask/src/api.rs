//! `cargo xtask ci --only api`: users of `invar` can name every type of its public signatures.
//!
//! The step reads the JSON that rustdoc writes. That output is unstable, so a script makes rustdoc write it on
//! whatever toolchain CI has.

mod docs;
mod signature;
mod surface;

use anyhow::{Result, bail, ensure};

use crate::outcome::Outcome;
use crate::shell::Shell;
use crate::workspace::Workspace;
use docs::Docs;
use surface::Surface;

/// rustdoc with its unstable options.
const RUSTDOC: &str = "xtask/unstable-rustdoc";

/// The `invar` library and the crates whose items it re-exports.
const CRATES: [&str; 5] = ["invar", "invar-core", "invar-linux", "invar-cuda", "invar-verbs"];

/// Every public function of the library returns this error.
const ERROR: &str = "invar::error::Error";

/// The raw layer's paths begin with this. Its functions return the protocol's small error, for speed.
const RAW: &str = "invar::raw::";

/// Reports every type that users cannot name, and every function that returns another error than
/// [`ERROR`].
pub(crate) fn run(shell: &Shell) -> Result<Outcome> {
    let mut command = shell.cargo("doc --workspace --lib --no-deps");
    command.env("RUSTDOC", shell.root().join(RUSTDOC));
    command.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    shell.run(command)?;
    let docs = Docs::load(&Workspace::load(shell)?.target_dir.join("doc"), &CRATES)?;
    let findings = check(&docs)?;
    if !findings.is_empty() {
        eprintln!("{}", findings.join("\n"));
        bail!("the public API of invar has {} findings", findings.len());
    }
    Ok(Outcome::Passed)
}

fn check(docs: &Docs) -> Result<Vec<String>> {
    let surface = Surface::of(docs, CRATES[0]);
    ensure!(surface.has(ERROR), "rustdoc's JSON has another shape: {ERROR} is not found in it");
    let mut findings = Vec::new();
    for item in &surface.items {
        let (is_ours, is_raw) = (item.krate == CRATES[0], item.public_path.starts_with(RAW));
        // A user who calls methods of an adapter's type depends on that adapter anyway.
        if is_raw && !is_ours {
            continue;
        }
        for used in signature::used(docs, item) {
            let Some(path) = docs.path(&item.krate, used.id) else { continue };
            if !path.is_known() && !surface.has(&path.name) {
                let (public, place) = (&item.public_path, used.place);
                findings.push(format!("{public}: {place}: users cannot name {}", path.name));
            }
        }
        if is_ours && !is_raw {
            for (function, error) in signature::errors(docs, item) {
                if error != ERROR {
                    findings.push(format!("{function}: it fails with {error}, not invar::Error"));
                }
            }
        }
    }
    findings.sort();
    findings.dedup();
    Ok(findings)
}
