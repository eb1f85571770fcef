//! `cargo xtask docs`: writes the parts of pages that come from code and data.
//!
//! The table in `docs/settings.md` comes from the core's settings. The plots of `docs/plots` are drawn
//! from the values beside them. Then mdBook makes the site of all pages ([`book`]).

mod book;
mod links;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use invar_core::param::{ParamInfo, TABLE};

use crate::bench::plot::{FIGURES, Values};
use crate::shell::Shell;

const SETTINGS: &str = "docs/settings.md";
const PLOTS: &str = "docs/plots";
/// The line before the table. [`END`] is the line after it.
const BEGIN: &str = "<!-- cargo xtask docs writes this table from core/src/param.rs -->\n";
const END: &str = "<!-- end of the table -->\n";

/// Writes all generated files again.
pub(crate) fn run(shell: &Shell) -> Result<()> {
    for (path, text) in files(shell.root())? {
        let path = shell.root().join(path);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    book::build(shell)
}

/// Names each file that differs from what [`run`] would write, each link that leads nowhere, and each page that
/// the site lacks.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let is_old = |(path, text): &(PathBuf, String)| {
        fs::read_to_string(root.join(path)).map_or(true, |old| old != *text)
    };
    let old = files(root)?.into_iter().filter(is_old);
    let old = old.map(|(path, _)| format!("{}: is old: run cargo xtask docs", path.display()));
    let pages = links::pages(root)?;
    Ok(old.chain(links::check(root, &pages)).chain(book::check(root, &pages)?).collect())
}

/// The generated files: their paths in the repository and their content.
fn files(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut files = vec![(SETTINGS.into(), with_table(&read(&root.join(SETTINGS))?)?)];
    for figure in &FIGURES {
        let file = |kind: &str| Path::new(PLOTS).join(format!("{}.{kind}", figure.name));
        let values = Values::parse(&read(&root.join(file("csv")))?);
        let values = values.with_context(|| file("csv").display().to_string())?;
        files.push((file("svg"), figure.draw(&values)?));
    }
    Ok(files)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Replaces the table of the page by the current one.
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
