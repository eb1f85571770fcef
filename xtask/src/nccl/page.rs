//! The table of releases in docs/nccl.md.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

pub(super) const PATH: &str = "docs/nccl.md";
/// The line before the table. [`END`] is the line after it.
const BEGIN: &str = "<!-- cargo xtask nccl writes this table -->\n";
const END: &str = "<!-- end of the table -->\n";
const HEAD: &str = "| NCCL | loads | collNet | a plugin that fails, with `NCCL_NET=Invar` \
                    | the same without `NCCL_NET` |\n\
                    |---|---|---|---|---|\n";

/// What a release did.
#[derive(PartialEq, Eq)]
pub(super) struct Row {
    pub(super) version: String,
    /// The interface over which NCCL uses the plugin.
    pub(super) interface: String,
    /// The interface over which NCCL uses the plugin's collNet.
    pub(super) collnet: String,
    /// The `ncclResult_t` if the plugin fails and `NCCL_NET` names it; `None` if that was not tried.
    pub(super) named: Option<u32>,
    /// The network that NCCL takes if the plugin fails and nothing names it.
    pub(super) unnamed: String,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { version, interface, collnet, named, unnamed } = self;
        let named = match named {
            Some(code) => format!("fails with {code}"),
            None => "not tried".to_owned(),
        };
        write!(f, "| {version} | {interface} | {collnet} | {named} | takes {unnamed} |")
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

/// The table for the front page: the releases that use each interface.
pub(crate) fn short_table(root: &Path) -> Result<String> {
    let page = read(root)?;
    let (_, table, _) = parts(&page)?;
    let mut columns: Vec<(&str, &str, &str)> = Vec::new();
    // The first two rows are the table's head.
    for row in table.lines().filter(|line| line.starts_with('|')).skip(2) {
        let [_, version, interface, ..] = row.split('|').map(str::trim).collect::<Vec<_>>()[..]
        else {
            bail!("{PATH}: no row of a release: {row}");
        };
        match columns.last_mut() {
            Some((_, last, of)) if *of == interface => *last = version,
            _ => columns.push((version, version, interface)),
        }
    }
    let mut lines = ["| NCCL |", "|---|", "| interface |"].map(str::to_owned);
    for (first, last, interface) in columns {
        let releases = if first == last { first } else { &format!("{first} to {last}") };
        lines[0] += &format!(" {releases} |");
        lines[1] += "---|";
        lines[2] += &format!(" {interface} |");
    }
    Ok(lines.map(|line| line + "\n").concat())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_table_has_each_release_between_its_first_and_its_last() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("docs")).unwrap();
        let rows = "| 2.14.3 | v6 | x | y |\n| 2.15.5 | v6 | x | y |\n| 2.19.3 | v7 | x | y |\n";
        fs::write(root.join(PATH), format!("before\n{BEGIN}\n{HEAD}{rows}\n{END}after")).unwrap();
        let table = short_table(root).unwrap();
        assert_eq!(
            table,
            "| NCCL | 2.14.3 to 2.15.5 | 2.19.3 |\n|---|---|---|\n| interface | v6 | v7 |\n"
        );
    }
}
