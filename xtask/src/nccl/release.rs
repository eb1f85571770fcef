//! The releases of NCCL, and their wheels.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell::Shell;

/// A release of NCCL in the Python package index.
pub(super) struct Release {
    pub(super) version: &'static str,
    /// The CUDA version in the package's name.
    cuda: u32,
    /// Whether the functions that the process calls read `NCCL_NET`. In 2.17 a communicator reads it between
    /// them.
    pub(super) reads_net: bool,
}

const fn release(version: &'static str, cuda: u32) -> Release {
    Release { version, cuda, reads_net: true }
}

/// The last release of each minor version, from the oldest that the plugin serves to the newest.
pub(super) const RELEASES: [Release; 19] = [
    release("2.14.3", 11),
    release("2.15.5", 11),
    release("2.16.5", 11),
    Release { reads_net: false, ..release("2.17.1", 12) },
    release("2.18.3", 12),
    release("2.19.3", 12),
    release("2.20.5", 12),
    release("2.21.5", 12),
    release("2.22.3", 12),
    release("2.23.4", 12),
    release("2.24.3", 12),
    release("2.25.1", 12),
    release("2.26.5", 12),
    release("2.27.7", 12),
    release("2.28.9", 12),
    release("2.29.7", 12),
    release("2.30.7", 12),
    release("2.31.2", 12),
    release("2.32.3", 12),
];

/// Where NCCL's library lies in a wheel.
const IN_WHEEL: &str = "nvidia/nccl/lib/libnccl.so.2";

/// What became of a download.
pub(super) enum Fetched {
    /// The path of `libnccl.so.2`.
    Library(PathBuf),
    /// pip is missing, or it cannot download from a package index. The text says why.
    NoIndex(String),
}

impl Release {
    /// Downloads the wheel and keeps its library in a folder of `cache`. A later call takes that library.
    ///
    /// # Errors
    /// The index can be reached, and does not have the release.
    pub(super) fn fetch(&self, shell: &Shell, cache: &Path) -> Result<Fetched> {
        let library = cache.join(self.version).join("libnccl.so.2");
        if library.is_file() {
            return Ok(Fetched::Library(library));
        }
        let wheel = cache.join(format!("{}.wheel", self.version));
        remove(&wheel)?;
        fs::create_dir_all(&wheel).with_context(|| wheel.display().to_string())?;
        let Release { version, cuda, .. } = self;
        println!("downloading NCCL {version}");
        let mut pip = shell.command(
            "python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir \
             --retries 1 --timeout 20 --only-binary=:all:",
        );
        pip.arg(format!("nvidia-nccl-cu{cuda}=={version}")).arg("--dest").arg(&wheel);
        let output = match pip.output() {
            Ok(output) => output,
            Err(error) => return Ok(Fetched::NoIndex(format!("python3 does not start: {error}"))),
        };
        if !output.status.success() {
            remove(&wheel)?;
            let text = String::from_utf8_lossy(&output.stderr);
            let why = format!("pip cannot fetch NCCL {version}: {}", text.trim());
            return if lacks_release(&text) { bail!(why) } else { Ok(Fetched::NoIndex(why)) };
        }
        let unpacked = unpack(shell, &wheel)?;
        let directory = cache.join(version);
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        fs::rename(&unpacked, &library).with_context(|| unpacked.display().to_string())?;
        remove(&wheel)?;
        Ok(Fetched::Library(library))
    }
}

/// Unpacks the only file of the folder there. Returns the path of NCCL's library.
fn unpack(shell: &Shell, directory: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let wheel = entries.next().context("pip left no wheel")??.path();
    let content = directory.join("content");
    let mut unzip = shell.command("python3 -m zipfile --extract");
    unzip.arg(&wheel).arg(&content);
    shell.run(unzip)?;
    let library = content.join(IN_WHEEL);
    if library.is_file() { Ok(library) } else { bail!("{}: no {IN_WHEEL}", wheel.display()) }
}

/// Whether pip's errors name the releases that the index has instead.
fn lacks_release(errors: &str) -> bool {
    errors.contains("(from versions: ") && !errors.contains("(from versions: none)")
}

fn remove(directory: &Path) -> Result<()> {
    match directory.exists() {
        true => fs::remove_dir_all(directory).with_context(|| directory.display().to_string()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_without_the_release_is_no_missing_index() {
        let lacks = "ERROR: Could not find a version that satisfies the requirement \
                     nvidia-nccl-cu12==2.99.0 (from versions: 2.16.2, 2.32.3)";
        assert!(lacks_release(lacks));
        assert!(!lacks_release("/usr/bin/python3: No module named pip"));
        assert!(!lacks_release("ERROR: Could not find a version … (from versions: none)"));
        assert!(!lacks_release("ReadTimeoutError: Read timed out."));
    }
}
