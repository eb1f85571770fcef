//! `cargo xtask plugin`: builds the shared library that NCCL loads, under the file name that NCCL
//! expects.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell::Shell;
use crate::workspace::Workspace;

/// The file that NCCL opens for `NCCL_NET_PLUGIN=invar`.
pub(crate) const NAME: &str = "libnccl-net-invar.so";
/// The versions of NCCL's plugin interface that the plugin serves.
pub(crate) const VERSIONS: RangeInclusive<u32> = 6..=12;
/// The file that cargo builds. Its name has no hyphens, because the crate's name has none.
const BUILT: &str = "libnccl_net_invar.so";

/// Builds the plugin and prints its path and how to use it.
pub(crate) fn run(shell: &Shell) -> Result<()> {
    let library = build(shell, Profile::Release)?;
    println!("{}", library.display());
    let directory = library.parent().context("a file is in a directory")?;
    println!("LD_LIBRARY_PATH={} NCCL_NET_PLUGIN=invar NCCL_NET=Invar", directory.display());
    Ok(())
}

/// How the plugin is built.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// For users: optimized, without symbols.
    Release,
    /// Optimized, with the symbols that instruction counts need.
    Symbols,
    /// As the tests build it: with assertions, in less time.
    Dev,
}

impl Profile {
    /// The directory of cargo's output, the directory for the plugin alone, and cargo's command.
    fn layout(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Profile::Release => (
                "release",
                "plugin",
                "rustc --package invar-nccl-plugin --lib --release -- -C strip=symbols",
            ),
            Profile::Symbols => (
                "release",
                "plugin-with-symbols",
                "rustc --package invar-nccl-plugin --lib --release --",
            ),
            Profile::Dev => ("debug", "plugin-dev", "build --workspace --lib"),
        }
    }
}

/// Builds the plugin into a directory of its own. Returns its path. NCCL since 2.27 looks for a library
/// called `invar` first. In cargo's folder it would find the command of that name.
pub(crate) fn build(shell: &Shell, profile: Profile) -> Result<PathBuf> {
    let (built_in, directory, command) = profile.layout();
    shell.run(shell.cargo(command))?;
    let target_dir = Workspace::load(shell)?.target_dir;
    let directory = target_dir.join(directory);
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let library = directory.join(NAME);
    // Copy to a temporary file and rename that over the library, because a process may have the library
    // open.
    let copy = directory.join(format!(".{NAME}"));
    let built = target_dir.join(built_in).join(BUILT);
    fs::copy(built, &copy).with_context(|| copy.display().to_string())?;
    fs::rename(&copy, &library).with_context(|| library.display().to_string())?;
    is_alone(&library)?;
    Ok(library)
}

/// Fails if the directory contains any other file, which NCCL could take for the plugin.
fn is_alone(library: &Path) -> Result<()> {
    let directory = library.parent().context("a file is in a directory")?;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        ensure!(path == library, "{}: NCCL may take it for the plugin", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_has_the_command_too_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join(NAME);
        fs::write(&library, "").unwrap();
        assert!(is_alone(&library).is_ok());
        fs::write(directory.path().join("invar"), "").unwrap();
        let error = is_alone(&library).unwrap_err().to_string();
        assert!(error.ends_with("/invar: NCCL may take it for the plugin"), "{error}");
    }
}
