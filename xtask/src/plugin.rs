//! `cargo xtask plugin`: the shared library that NCCL loads, under the name by which it does.

use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Context, Result};

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

/// Builds it for release; gives its path.
pub(crate) fn build(shell: &Shell) -> Result<PathBuf> {
    shell.run(shell.cargo("build --release --package invar-nccl-plugin"))?;
    let directory = Workspace::load(shell)?.target_dir.join("release");
    let library = directory.join(NAME);
    // Beside it and then over it: a process may have it open.
    let copy = directory.join(format!(".{NAME}"));
    fs::copy(directory.join(BUILT), &copy).with_context(|| copy.display().to_string())?;
    fs::rename(&copy, &library).with_context(|| library.display().to_string())?;
    Ok(library)
}
