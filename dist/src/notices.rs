//! The licences of the crates in the binaries, as their authors wrote them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::dependencies::Crate;

/// The starts of the names of files that hold a licence or a notice.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
const RULE: &str = "----------------------------------------------------------------------";

/// A text that lists all foreign crates with their licences, and each licence text once.
pub(crate) fn text(crates: &[Crate]) -> Result<String> {
    let mut list = String::from(
        "The command and the plugin contain these Rust crates, and Rust's standard library\n\
         (MIT OR Apache-2.0, by the Rust project's developers). Below are the licences that the\n\
         crates bring with them.\n\n",
    );
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for found in crates.iter().filter(|found| !found.is_own) {
        let name = format!("{} {}", found.id.name, found.id.version);
        writeln!(list, "{name}: {}", found.licence)?;
        if !found.repository.is_empty() {
            writeln!(list, "    {}", found.repository)?;
        }
        for text in texts_of(&found.directory)? {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    let mut texts: Vec<(Vec<String>, String)> =
        texts.into_iter().map(|(text, names)| (names, text)).collect();
    texts.sort();
    for (names, text) in texts {
        write!(list, "\n{RULE}\n{}\n{RULE}\n\n{}\n", names.join("\n"), text.trim_end())?;
    }
    Ok(list)
}

/// The licence files in a directory, in the order of their names.
fn texts_of(directory: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if NAMES.iter().any(|start| name.starts_with(start)) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: &Path| {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        Ok(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"))
    };
    paths.iter().map(|path| read(path)).collect()
}
