//! Builds the null libibverbs of `tests/null-verbs` and gives it the file name that programs look for.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::shell::Shell;
use crate::workspace::Workspace;

/// The prefix of the names of the null libibverbs' functions.
pub(crate) const FUNCTIONS: &str = "invar_null_verbs::";

/// Builds the null libibverbs. Returns the folder to put into `LD_LIBRARY_PATH`.
pub(crate) fn build(shell: &Shell) -> Result<PathBuf> {
    shell.run(shell.cargo("build --release --package invar-null-verbs"))?;
    let target_dir = Workspace::load(shell)?.target_dir;
    let folder = target_dir.join("null-verbs");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let link = folder.join("libibverbs.so.1");
    let _ = fs::remove_file(&link);
    symlink(target_dir.join("release/libinvar_null_verbs.so"), &link)
        .with_context(|| link.display().to_string())?;
    Ok(folder)
}
