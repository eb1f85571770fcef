//! The table of releases in docs/nccl.md.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

pub(super) const PATH: &str = "docs/nccl.md";
/// The line before the table. [`END`] is the line after it.
const BEGIN: &str = "<!-- cargo xtask nccl writes this table -->\n";
const END: &str = "<!-- end of the table -->\n";
const HEAD: &str = "| NCCL | loads | a plugin that fails, with `NCCL_NET=Invar` | the same without `NCCL_NET` |\n\
                    |---|---|---|---|\n";

/// What a release did.
#[derive(PartialEq, Eq)]
pub(super) struct Row {
    pub(super) version: String,
    /// The interface over which NCCL uses the plugin.
    pub(super) interface: String,
    /// The `ncclResult_t` if the plugin fails and `NCCL_NET` names it; `None` if that was not tried.
    pub(super) named: Option<u32>,
    /// The network that NCCL takes if the plugin fails and nothing names it.
    pub(super) unnamed: String,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { version, interface, named, unnamed } = self;
        let named = match named {
            Some(code) => format!("fails with {code}"),
            None => "not tried".to_owned(),
        };
        write!(f, "| {version} | {interface} | {named} | takes {unnamed} |")
    }
}

/// Writes the table.
pub(super) fn write(root: &Path, rows: &[Row]) -> Result<()> {
    let page = read(root)?;
    let (before, _, after) = parts(&page)?;
    let rows: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let text = format!("{before}{BEGIN}\n{HEAD}{rows}\n{END}{after}");
    fs::write(root.join(PATH), text).context(PATH)
}

/// Fails if the table says something else about the release.
pub(super) fn compare(root: &Path, row: &Row) -> Result<()> {
    let page = read(root)?;
    let (_, table, _) = parts(&page)?;
    let line = row.to_string();
    let is_there = table.lines().any(|other| other == line);
    ensure!(is_there, "{PATH} lacks this row; run cargo xtask nccl:\n{line}");
    Ok(())
}

fn read(root: &Path) -> Result<String> {
    fs::read_to_string(root.join(PATH)).context(PATH)
}

/// What stands before the table, the table, and what stands after it.
fn parts(page: &str) -> Result<(&str, &str, &str)> {
    let missing = |line: &str| format!("{PATH} has no line {}", line.trim_end());
    let (before, rest) = page.split_once(BEGIN).with_context(|| missing(BEGIN))?;
    let (table, after) = rest.split_once(END).with_context(|| missing(END))?;
    Ok((before, table, after))
}
