//! `cargo xtask docs`: writes the parts of pages that come from code and data.
//!
//! The table in `docs/settings.md` comes from the core's settings, and the table in `README.md` from the one
//! in `docs/nccl.md`. The plots of `docs/plots` are drawn from the values beside them. Then mdBook makes the
//! site of all pages ([`book`]).

mod book;
mod links;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use invar_core::param::{ParamInfo, TABLE};

use crate::bench::plot::{FIGURES, Values};
use crate::nccl::page;
use crate::shell::Shell;
use crate::tool;

const SETTINGS: &str = "docs/settings.md";
const PLOTS: &str = "docs/plots";
const FRONT: &str = "README.md";
/// The start of the line before a table. [`END`] is the line after it.
const BEGIN: &str = "<!-- cargo xtask docs writes this table from ";
const END: &str = "<!-- end of the table -->\n";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// First install mdBook, which makes the site, if it is missing.
    #[arg(long)]
    install: bool,
}

/// Writes all generated files again, and builds the site.
pub(crate) fn run(shell: &Shell, args: &Args) -> Result<()> {
    if args.install {
        tool::MDBOOK.install(shell)?;
    }
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
    let mut files = Vec::new();
    for (path, table) in [(SETTINGS, table()), (FRONT, page::short_table(root)?)] {
        let text = with_table(&read(&root.join(path))?, &table).context(path)?;
        files.push((path.into(), text));
    }
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
fn with_table(page: &str, table: &str) -> Result<String> {
    let missing = |line: &str| format!("no line starts with {}", line.trim_end());
    let (before, rest) = page.split_once(BEGIN).with_context(|| missing(BEGIN))?;
    let (source, rest) = rest.split_once('\n').with_context(|| missing(END))?;
    let (_, after) = rest.split_once(END).with_context(|| missing(END))?;
    Ok(format!("{before}{BEGIN}{source}\n\n{table}\n{END}{after}"))
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
    use clap::Parser;
    use clap::error::ErrorKind;

    use super::*;

    /// The arguments of each `cargo xtask` in a page, a workflow or a script.
    fn commands(text: &str) -> Vec<Vec<&str>> {
        let lines = text.lines().filter(|line| !line.starts_with("<!--"));
        let uses = lines.flat_map(|line| line.split("cargo xtask ").skip(1));
        let commands = uses.filter_map(|rest| rest.split(['`', '#', '|', '&', ')']).next());
        commands.map(|command| command.split_whitespace().collect()).collect()
    }

    #[test]
    fn every_command_of_xtask_on_a_page_or_in_a_workflow_is_one() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut files: Vec<PathBuf> = links::pages(root).unwrap().into_keys().collect();
        // What changed long ago may be gone.
        files.retain(|page| page != Path::new("CHANGELOG.md"));
        files.push(".ci/run".into());
        let workflows = fs::read_dir(root.join(".github/workflows")).unwrap();
        files.extend(workflows.map(|entry| entry.unwrap().path()));
        let mut known = 0;
        for file in files {
            for command in commands(&read(&root.join(&file)).unwrap()) {
                let words = ["cargo xtask"].into_iter().chain(command.iter().copied());
                // Text may name a command by its first words, and a workflow computes a number.
                let kind = crate::Args::try_parse_from(words).err().map(|error| error.kind());
                let is_computed = command.iter().any(|word| word.contains('$'));
                let is_unknown = match kind {
                    Some(ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand) => true,
                    Some(ErrorKind::InvalidValue) => !is_computed,
                    _ => false,
                };
                assert!(!is_unknown, "{}: cargo xtask {command:?}: {kind:?}", file.display());
                known += 1;
            }
        }
        assert!(known >= 60, "the pages name more commands than {known}");
    }

    #[test]
    fn only_what_stands_between_the_two_lines_is_written() {
        let page = format!("before\n{BEGIN}a file -->\nan old table\n{END}after\n");
        let written = with_table(&page, "| new |\n").unwrap();
        assert_eq!(written, format!("before\n{BEGIN}a file -->\n\n| new |\n\n{END}after\n"));
        assert_eq!(with_table(&written, "| new |\n").unwrap(), written);
    }

    #[test]
    fn a_page_without_those_lines_is_refused() {
        let error = with_table("nothing\n", "").unwrap_err().to_string();
        assert!(error.contains("no line starts with <!-- cargo xtask docs"), "{error}");
    }
}
