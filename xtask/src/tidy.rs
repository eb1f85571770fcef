//! `cargo xtask tidy`: checks rules of CONTRIBUTING.md that neither rustfmt nor clippy knows. It also
//! checks that the generated parts of `docs` are up to date.

mod circles;
mod file;
mod listeners;
mod package;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::docs;
use crate::outcome::Outcome;
use crate::shell::Shell;
use crate::workspace::Workspace;

/// Prints all findings. Fails if there are any.
pub(crate) fn run(shell: &Shell) -> Result<Outcome> {
    let (mut findings, mut texts) = (Vec::new(), Vec::new());
    for path in files(shell.root())? {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let path = path.strip_prefix(shell.root())?;
        for (line, message) in
            file::check(path, &text).into_iter().chain(listeners::check(path, &text))
        {
            findings.push(format!("{}:{line}: {message}", path.display()));
        }
        texts.push((path.to_owned(), text));
    }
    findings.extend(circles::check(&texts));
    findings.extend(docs::check(shell.root())?);
    findings.extend(listeners::check_doors(shell.root()));
    let of_package = |package| package::check(shell.root(), package);
    findings.extend(Workspace::load(shell)?.packages.iter().flat_map(of_package));
    if !findings.is_empty() {
        eprintln!("{}", findings.join("\n"));
        bail!("tidy has {} findings", findings.len());
    }
    Ok(Outcome::Passed)
}

/// The files that people write. Hidden and generated files are left out.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut directories) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type()))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if kind?.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    directories.push(path);
                }
            } else if ["rs", "toml", "sh"]
                .iter()
                .any(|kind| path.extension() == Some(kind.as_ref()))
            {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}
