//! The files of a package, in order.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

/// A file of a package.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct File {
    pub(crate) content: Vec<u8>,
    pub(crate) executable: bool,
}

impl File {
    pub(crate) fn mode(&self) -> u32 {
        if self.executable { 0o755 } else { 0o644 }
    }
}

/// Files by their path below the package's root. The order of paths is the order in every archive.
#[derive(Default, Debug)]
pub(crate) struct Tree(BTreeMap<String, File>);

impl Tree {
    /// Adds a file. Fails if the path has one.
    pub(crate) fn add(&mut self, path: impl Into<String>, file: File) -> Result<()> {
        let path = path.into();
        ensure!(!path.starts_with('/'), "{path}: a path of a package is relative");
        ensure!(self.0.insert(path.clone(), file).is_none(), "{path}: two files of one name");
        Ok(())
    }

    /// Adds a file that nobody runs.
    pub(crate) fn add_data(
        &mut self,
        path: impl Into<String>,
        content: impl Into<Vec<u8>>,
    ) -> Result<()> {
        self.add(path, File { content: content.into(), executable: false })
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &File)> {
        self.0.iter().map(|(path, file)| (path.as_str(), file))
    }

    /// All directories that have a file or a directory, parents first.
    pub(crate) fn directories(&self) -> BTreeSet<&str> {
        let mut directories = BTreeSet::new();
        for path in self.0.keys() {
            directories.extend(path.match_indices('/').map(|(end, _)| &path[..end]));
        }
        directories
    }

    /// The number of bytes of all files.
    pub(crate) fn bytes(&self) -> usize {
        self.0.values().map(|file| file.content.len()).sum()
    }
}
