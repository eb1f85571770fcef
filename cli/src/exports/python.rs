//! Where Python keeps packages below a prefix such as `/usr/local` or a virtual environment.

use std::fs;
use std::path::{Path, PathBuf};

/// The directories of packages below the prefix that exist, in a fixed order.
pub(super) fn package_directories(prefix: &Path) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for library in ["lib", "lib64"] {
        let Ok(entries) = fs::read_dir(prefix.join(library)) else { continue };
        let is_python = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
        };
        let mut pythons: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_python).collect();
        pythons.sort();
        let packages =
            |python: PathBuf| ["site-packages", "dist-packages"].map(|name| python.join(name));
        directories.extend(pythons.into_iter().flat_map(packages).filter(|path| path.is_dir()));
    }
    directories
}
