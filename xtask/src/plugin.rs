//! `cargo xtask plugin`: the shared library that NCCL loads, under the name by which it does.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell::Shell;
use crate::workspace::Workspace;

/// What `NCCL_NET_PLUGIN=invar` opens.
pub(crate) const NAME: &str = "libnccl-net-invar.so";
/// Of the interface between NCCL and plugins, that it serves.
pub(crate) const VERSIONS: RangeInclusive<u32> = 6..=12;
/// What cargo builds: a crate's name has no hyphens.
const BUILT: &str = "libnccl_net_invar.so";

/// Builds it, says where it is and how it is used.
pub(crate) fn run(shell: &Shell) -> Result<()> {
    let library = build(shell)?;
    println!("{}", library.display());
    let directory = library.parent().context("a file is in a directory")?;
    println!("LD_LIBRARY_PATH={} NCCL_NET_PLUGIN=invar NCCL_NET=Invar", directory.display());
    Ok(())
}

/// Builds it for release, without symbols; gives its path.
pub(crate) fn build(shell: &Shell) -> Result<PathBuf> {
    build_in(shell, "plugin", "-C strip=symbols")
}

/// Builds it for release, with the symbols by which instructions are counted; gives its path.
pub(crate) fn build_with_symbols(shell: &Shell) -> Result<PathBuf> {
    build_in(shell, "plugin-with-symbols", "")
}

/// A directory of its own: NCCL since 2.27 first looks for a library that is called `invar`, and
/// beside what else cargo builds it would find the command.
fn build_in(shell: &Shell, directory: &str, rustc_flags: &str) -> Result<PathBuf> {
    let line = "rustc --release --package invar-nccl-plugin --lib --";
    shell.run(shell.cargo(&format!("{line} {rustc_flags}")))?;
    let target_dir = Workspace::load(shell)?.target_dir;
    let directory = target_dir.join(directory);
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let library = directory.join(NAME);
    // Beside it and then over it: a process may have it open.
    let copy = directory.join(format!(".{NAME}"));
    let built = target_dir.join("release").join(BUILT);
    fs::copy(built, &copy).with_context(|| copy.display().to_string())?;
    fs::rename(&copy, &library).with_context(|| library.display().to_string())?;
    is_alone(&library)?;
    Ok(library)
}

/// Refuses a directory in which a loader finds anything else.
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
    use std::{env, process};

    #[test]
    fn a_directory_that_has_the_command_too_is_refused() {
        let directory = env::temp_dir().join(format!("xtask-plugin-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let library = directory.join(NAME);
        fs::write(&library, "").unwrap();
        assert!(is_alone(&library).is_ok());
        fs::write(directory.join("invar"), "").unwrap();
        let error = is_alone(&library).unwrap_err().to_string();
        fs::remove_dir_all(&directory).unwrap();
        assert!(error.ends_with("/invar: NCCL may take it for the plugin"), "{error}");
    }
}
