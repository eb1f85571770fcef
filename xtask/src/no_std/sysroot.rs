//! The first proof: invar-core and all its dependencies compile where std and alloc do not exist.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use super::{FEATURE_SETS, Proof};

/// The toolchain's libraries that the sysroot contains, as beginnings of file names.
const LIBRARIES: [&str; 2] = ["libcore-", "libcompiler_builtins-"];

pub(super) fn prove(proof: &Proof<'_>) -> Result<()> {
    let sysroot = proof.target_dir.join("sysroot");
    make(proof, &sysroot)?;
    for library in ["std", "alloc"] {
        expect_missing(proof, &sysroot, library)?;
    }
    for features in FEATURE_SETS {
        proof.build(features, Some(&sysroot))?;
    }
    Ok(())
}

/// Creates a sysroot that contains links to [`LIBRARIES`] and nothing else.
fn make(proof: &Proof<'_>, sysroot: &Path) -> Result<()> {
    let toolchain = proof.shell.read(proof.shell.command("rustc --print sysroot"))?;
    let below = Path::new("lib/rustlib").join(&proof.host).join("lib");
    let (from, to) = (Path::new(toolchain.trim()).join(&below), sysroot.join(&below));
    if sysroot.exists() {
        fs::remove_dir_all(sysroot)?;
    }
    fs::create_dir_all(&to)?;
    let mut linked = 0;
    for entry in fs::read_dir(&from).with_context(|| format!("cannot read {}", from.display()))? {
        let path: PathBuf = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if LIBRARIES.iter().any(|library| name.to_string_lossy().starts_with(library)) {
            symlink(&path, to.join(name))?;
            linked += 1;
        }
    }
    ensure!(linked >= LIBRARIES.len(), "{} lacks {LIBRARIES:?}", from.display());
    Ok(())
}

/// Checks that a crate that uses `library` fails in this sysroot. Otherwise the proof would be
/// worthless.
fn expect_missing(proof: &Proof<'_>, sysroot: &Path, library: &str) -> Result<()> {
    let probe = sysroot.join(format!("uses_{library}.rs"));
    fs::write(&probe, format!("#![no_std]\nextern crate {library};\n"))?;
    let mut rustc = proof.shell.command("rustc --crate-type=lib --emit=metadata --sysroot");
    rustc.arg(sysroot);
    let output = rustc.arg("--out-dir").arg(sysroot).arg(&probe).stdin(Stdio::null()).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || !stderr.contains("E0463") {
        bail!("`extern crate {library}` should be error E0463 in {}: {stderr}", sysroot.display());
    }
    Ok(())
}
