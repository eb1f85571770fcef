//! `cargo xtask docs`: writes the table of settings into `docs/settings.md`.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use invar_core::param::{ParamInfo, TABLE};

use crate::shell::Shell;

const SETTINGS: &str = "docs/settings.md";
/// The generated text stands between these lines.
const BEGIN: &str = "<!-- cargo xtask docs writes this table from core/src/param.rs -->\n";
const END: &str = "<!-- end of the table -->\n";

/// Writes the page anew.
pub(crate) fn run(shell: &Shell) -> Result<()> {
    let path = shell.root().join(SETTINGS);
    let page = with_table(&read(&path)?)?;
    fs::write(&path, page).with_context(|| path.display().to_string())
}

/// What is wrong with the page, if its table is not the one that the code gives.
pub(crate) fn check(root: &Path) -> Result<Option<String>> {
    let page = read(&root.join(SETTINGS))?;
    let message =
        || format!("{SETTINGS}: the table is not that of core/src/param.rs: run cargo xtask docs");
    Ok((with_table(&page)? != page).then(message))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// The page with the table as the code gives it.
fn with_table(page: &str) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).with_context(|| missing(BEGIN))?;
    let (_, after) = rest.split_once(END).with_context(|| missing(END))?;
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", table()))
}

fn missing(line: &str) -> String {
    format!("{SETTINGS} has no line {}", line.trim_end())
}

fn table() -> String {
    let mut text = String::from(
        "| variable | default | values | unit | read by | meaning |\n|---|---|---|---|---|---|\n",
    );
    for ParamInfo { name, default, allowed, unit, readers, meaning, differs } in TABLE {
        let default = if default.is_empty() { "" } else { &format!("`{default}`") };
        let differs = if differs.is_empty() { "" } else { &format!(" *{differs}*") };
        let row = format!(
            "| `{name}` | {default} | {allowed} | {unit} | {readers} | {meaning}{differs} |"
        );
        writeln!(text, "{row}").expect("a String takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_two_lines_is_written() {
        let page = format!("before\n{BEGIN}an old table\n{END}after\n");
        let written = with_table(&page).unwrap();
        assert!(written.starts_with(&format!("before\n{BEGIN}\n| variable |")), "{written}");
        assert!(
            written.ends_with(&format!("|\n\n{END}after\n")) && !written.contains("an old table")
        );
        assert_eq!(with_table(&written).unwrap(), written);
    }

    #[test]
    fn a_page_without_those_lines_is_refused() {
        let error = with_table("nothing\n").unwrap_err().to_string();
        assert!(error.contains("docs/settings.md has no line <!-- cargo xtask docs"), "{error}");
    }
}
