//! The site: gathers the pages for mdBook, and runs it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::links::{self, Link};
use crate::shell::Shell;
use crate::tool;
use crate::workspace::Workspace;

/// The configuration and the order of the pages.
const FOLDER: &str = "docs/book";
const SUMMARY: &str = "SUMMARY.md";
/// The files of the repository, for links that leave the site.
const FILES: &str = "https://github.com/invar-net/invar/blob/main";
/// Pages outside of `docs`, and their names in the site.
const MOVED: [(&str, &str); 4] = [
    ("README.md", "front.md"),
    ("ARCHITECTURE.md", "architecture.md"),
    ("CONTRIBUTING.md", "contributing.md"),
    ("CHANGELOG.md", "changes.md"),
];

/// Builds the site into `target/book`.
pub(super) fn build(shell: &Shell) -> Result<()> {
    let target = Workspace::load(shell)?.target_dir;
    let source = target.join("book-source");
    gather(shell.root(), &source)?;
    tool::MDBOOK.require(shell).context("the pages are written, but the site is not built")?;
    let site = target.join("book");
    let mut mdbook = shell.command("mdbook build --dest-dir");
    mdbook.arg(&site).arg(&source);
    shell.run(mdbook)?;
    println!("{}", site.join("index.html").display());
    Ok(())
}

/// Names each page that the site does not have, and each that its summary names in vain.
pub(super) fn check(root: &Path, pages: &BTreeMap<PathBuf, String>) -> Result<Vec<String>> {
    let path = Path::new(FOLDER).join(SUMMARY);
    let summary =
        fs::read_to_string(root.join(&path)).with_context(|| path.display().to_string())?;
    // The summary's links are relative to the folder of pages.
    let named: Vec<PathBuf> =
        links::links(Path::new(SUMMARY), &summary).into_iter().map(|link| link.path).collect();
    let ours: Vec<PathBuf> = pages.keys().map(|page| name_of(page)).collect();
    let missing = ours.iter().filter(|page| !named.contains(page));
    let missing = missing.map(|page| format!("{}: {} is missing", path.display(), page.display()));
    let vain = named.iter().filter(|page| !ours.contains(page));
    let vain = vain.map(|page| format!("{}: there is no {}", path.display(), page.display()));
    Ok(missing.chain(vain).collect())
}

/// Writes the pages with the links of the site into a folder.
fn gather(root: &Path, source: &Path) -> Result<()> {
    if source.exists() {
        fs::remove_dir_all(source).with_context(|| source.display().to_string())?;
    }
    let folder = source.join("src");
    fs::create_dir_all(folder.join("plots")).with_context(|| folder.display().to_string())?;
    let pages = links::pages(root)?;
    for (page, text) in &pages {
        let text = links::rewrite(page, text, |link| target(&pages, link));
        fs::write(folder.join(name_of(page)), text)?;
    }
    for entry in fs::read_dir(root.join("docs/plots"))? {
        let path = entry?.path();
        fs::copy(&path, folder.join("plots").join(path.file_name().context("a file")?))?;
    }
    for (name, to) in [("book.toml", source), (SUMMARY, &folder)] {
        let from = root.join(FOLDER).join(name);
        fs::copy(&from, to.join(name)).with_context(|| from.display().to_string())?;
    }
    ensure!(!pages.is_empty(), "there are no pages");
    Ok(())
}

/// The name of a page in the site, where all pages lie in one folder.
fn name_of(page: &Path) -> PathBuf {
    let moved = MOVED.iter().find(|(from, _)| Path::new(from) == page);
    match moved {
        Some((_, to)) => to.into(),
        None => page.file_name().unwrap_or_default().into(),
    }
}

/// The target of a link in the site; `None` if it stays as it is.
fn target(pages: &BTreeMap<PathBuf, String>, link: &Link) -> Option<String> {
    let Link { path, anchor, .. } = link;
    let anchor = anchor.as_ref().map_or(String::new(), |anchor| format!("#{anchor}"));
    if path.as_os_str().is_empty() {
        return None;
    }
    let path = if pages.contains_key(path) {
        name_of(path).display().to_string()
    } else if let Ok(plot) = path.strip_prefix("docs/plots") {
        format!("plots/{}", plot.display())
    } else {
        format!("{FILES}/{}", path.display())
    };
    Some(path + &anchor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_pages_of_the_site_or_to_files_of_the_repository() {
        let pages =
            ["README.md", "docs/install.md"].map(|page| (PathBuf::from(page), String::new()));
        let pages = pages.into();
        let to = |path: &str, anchor: Option<&str>| {
            let anchor = anchor.map(str::to_owned);
            target(&pages, &Link { at: 0..0, path: path.into(), anchor })
        };
        assert_eq!(to("docs/install.md", Some("rpm")).as_deref(), Some("install.md#rpm"));
        assert_eq!(to("README.md", None).as_deref(), Some("front.md"));
        assert_eq!(to("docs/plots/coll.svg", None).as_deref(), Some("plots/coll.svg"));
        assert_eq!(to("core/src/nic.rs", None), Some(format!("{FILES}/core/src/nic.rs")));
        assert_eq!(to("", Some("rpm")), None);
    }

    #[test]
    fn every_page_of_this_repository_is_in_the_site() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let pages = links::pages(root).unwrap();
        assert_eq!(check(root, &pages).unwrap(), Vec::<String>::new());
        let mut more = pages;
        more.insert("docs/new.md".into(), String::new());
        assert_eq!(check(root, &more).unwrap().len(), 1);
    }
}
