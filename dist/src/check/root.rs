//! A minimal Debian system in a directory, in which commands run.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::shell;

const SUITE: &str = "bookworm";
/// No command in the root or in the image takes longer.
pub(super) const COMMAND_SECONDS_MAX: &str = "120";
/// Where package managers and the kernel keep their own records, and the folder of the flight recorder,
/// which `docs/install.md` names.
const RECORDS: [&str; 9] = [
    "dev",
    "etc/ld.so.cache",
    "proc",
    "sys",
    "tmp/invar-0",
    "var/cache",
    "var/lib/dpkg",
    "var/lib/rpm",
    "var/log",
];

/// A root directory. It is removed at the end.
pub(super) struct Root(PathBuf);

impl Root {
    /// Installs Debian's minimal system from its archive.
    pub(super) fn create(path: &Path) -> Result<Root> {
        ensure!(fs::metadata("/proc/self")?.uid() == 0, "only root may make one");
        for tool in ["debootstrap", "unshare", "timeout"] {
            ensure!(is_installed(tool), "{tool} is missing");
        }
        remove(path)?;
        fs::create_dir_all(path).with_context(|| path.display().to_string())?;
        let root = Root(path.canonicalize()?);
        println!("installing Debian's minimal system in {}", path.display());
        let args = ["600", "debootstrap", "--variant=minbase", SUITE];
        let mut command = shell::command("timeout", &args)?;
        command.arg(&root.0);
        shell::read(command)?;
        Ok(root)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Runs a command in the root, and returns what it prints. Its processes and mounts are in
    /// namespaces of their own, which end with it.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        let limit = ["--kill-after=5", COMMAND_SECONDS_MAX];
        let spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let mut command = shell::command("timeout", &[&limit[..], &spaces].concat())?;
        command.arg("--root").arg(&self.0).args(["env", "--ignore-environment"]);
        command.arg("PATH=/usr/sbin:/usr/bin:/sbin:/bin").args(words);
        shell::read(command)
    }

    /// Fails if files are there after the work that were not there before, or the other way round.
    pub(super) fn leaves_nothing(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let before = paths(&self.0)?;
        work()?;
        let after = paths(&self.0)?;
        let is_record =
            |path: &&PathBuf| RECORDS.iter().any(|record| path.starts_with(self.0.join(record)));
        let changed: Vec<&PathBuf> =
            before.symmetric_difference(&after).filter(|path| !is_record(path)).collect();
        ensure!(changed.is_empty(), "left behind or gone: {changed:?}");
        Ok(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            eprintln!("warning: {error:#}");
        }
    }
}

/// Whether a command of this name is in the `PATH`.
pub(super) fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// All paths below a directory, without following links.
pub(super) fn paths(directory: &Path) -> Result<BTreeSet<PathBuf>> {
    let (mut paths, mut left) = (BTreeSet::new(), vec![directory.to_owned()]);
    while let Some(directory) = left.pop() {
        let entries = fs::read_dir(&directory);
        for entry in entries.with_context(|| directory.display().to_string())? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            }
            paths.insert(entry.path());
        }
    }
    Ok(paths)
}

/// Removes a directory, unless something is mounted in it.
pub(super) fn remove(path: &Path) -> Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.metadata()?.dev() != metadata.dev() {
            bail!("{}: another file system is mounted here", entry.path().display());
        }
    }
    fs::remove_dir_all(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Root {
        // `Root` removes it.
        let path = tempfile::tempdir().unwrap().keep();
        fs::create_dir_all(path.join("var/log")).unwrap();
        fs::create_dir_all(path.join("usr")).unwrap();
        fs::create_dir_all(path.join("tmp")).unwrap();
        Root(path)
    }

    #[test]
    fn a_file_that_is_left_or_gone_is_reported_and_a_record_is_not() {
        let root = root();
        fs::write(root.path().join("usr/old"), "").unwrap();
        let write = |path: &str| Ok(fs::write(root.path().join(path), "")?);
        assert!(root.leaves_nothing(|| write("var/log/dpkg.log")).is_ok());
        for left in ["usr/new", "tmp/invar.deb"] {
            let error = root.leaves_nothing(|| write(left)).unwrap_err().to_string();
            assert!(error.contains(left), "{error}");
        }
        let gone = || Ok(fs::remove_file(root.path().join("usr/old"))?);
        assert!(root.leaves_nothing(gone).unwrap_err().to_string().contains("usr/old"));
    }
}
