//! Links of pages: finds them, follows them, and rewrites them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

/// A link to a file of the repository.
pub(super) struct Link {
    /// The place of the target in the page.
    pub(super) at: Range<usize>,
    /// The file's path from the repository's root; empty if the link stays on its page.
    pub(super) path: PathBuf,
    pub(super) anchor: Option<String>,
}

/// The pages for people: those in the root and in `docs`.
pub(super) fn pages(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut pages = BTreeMap::new();
    for folder in ["", "docs"] {
        let folder = root.join(folder);
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                pages.insert(path.strip_prefix(root)?.to_owned(), text);
            }
        }
    }
    Ok(pages)
}

/// Names each link that leads nowhere.
pub(super) fn check(root: &Path, pages: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let anchors: BTreeMap<&Path, BTreeSet<String>> =
        pages.iter().map(|(path, text)| (path.as_path(), anchors(text))).collect();
    let mut findings = Vec::new();
    for (page, text) in pages {
        for link in links(page, text) {
            let line = 1 + text[..link.at.start].matches('\n').count();
            let target = &text[link.at.clone()];
            let path = if link.path.as_os_str().is_empty() { page } else { &link.path };
            if !root.join(path).exists() {
                findings.push(format!("{}:{line}: {target} leads nowhere", page.display()));
                continue;
            }
            let Some(anchor) = &link.anchor else { continue };
            let known = anchors.get(path.as_path());
            if known.is_some_and(|anchors| !anchors.contains(anchor)) {
                let text = format!("{}:{line}: {target}: no such heading", page.display());
                findings.push(text);
            }
        }
    }
    findings
}

/// The links of a page to files of the repository, in their order.
pub(super) fn links(page: &Path, text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for (start, line) in lines_outside_code(text) {
        let mut from = 0;
        while let Some(at) = line[from..].find("](") {
            let target_at = from + at + 2;
            let Some(len) = line[target_at..].find(')') else { break };
            let target = &line[target_at..target_at + len];
            from = target_at + len;
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = match target.split_once('#') {
                Some((path, anchor)) => (path, Some(anchor.to_owned())),
                None => (target, None),
            };
            let path = match path.is_empty() {
                true => PathBuf::new(),
                false => normal(&page.parent().unwrap_or(Path::new("")).join(path)),
            };
            let at = start + target_at..start + target_at + len;
            links.push(Link { at, path, anchor });
        }
    }
    links
}

/// Writes other targets into a page; `target` returns `None` for a link that stays as it is.
pub(super) fn rewrite(
    page: &Path,
    text: &str,
    mut target: impl FnMut(&Link) -> Option<String>,
) -> String {
    let (mut written, mut end) = (String::new(), 0);
    for link in links(page, text) {
        if let Some(target) = target(&link) {
            written += &text[end..link.at.start];
            written += &target;
            end = link.at.end;
        }
    }
    written + &text[end..]
}

/// The lines outside of code blocks, each with its place in the text.
fn lines_outside_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let (mut at, mut in_code) = (0, false);
    text.split_inclusive('\n').filter_map(move |line| {
        let start = at;
        at += line.len();
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            return None;
        }
        (!in_code).then_some((start, line))
    })
}

/// The anchors of a page's headings, as forges and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in lines_outside_code(text) {
        let Some(title) = line.strip_prefix('#') else { continue };
        let title = title.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        anchors.insert(title.chars().filter(kept).collect::<String>().replace(' ', "-"));
    }
    anchors
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A page, of two parts\n\n\
                        See [b](b.md#part-two) and [src](../core/src/lib.rs), [x](https://x.org/a).\n\
                        ```sh\nno [link](here)\n```\n## Part two\n[up](#a-page-of-two-parts)\n";

    fn targets(text: &str) -> Vec<String> {
        let links = links(Path::new("docs/a.md"), text);
        links.iter().map(|link| link.path.display().to_string()).collect()
    }

    #[test]
    fn links_to_files_are_found_outside_of_code() {
        assert_eq!(targets(PAGE), ["docs/b.md", "core/src/lib.rs", ""]);
    }

    #[test]
    fn headings_are_anchors() {
        assert_eq!(Vec::from_iter(anchors(PAGE)), ["a-page-of-two-parts", "part-two"]);
    }

    #[test]
    fn links_that_lead_nowhere_are_named() {
        let other = "# Other\n[a](a.md#part-three)\n[c](c.md)\n[a](a.md#part-two)\n";
        let pages = [("docs/a.md", PAGE), ("docs/b.md", other)];
        let pages = pages.map(|(path, text)| (PathBuf::from(path), text.to_owned())).into();
        // None of these files is in this folder.
        let findings = check(Path::new("/nonexistent"), &pages);
        assert_eq!(findings.len(), 6, "{findings:?}");
        assert!(findings[0].starts_with("docs/a.md:3: b.md#part-two leads nowhere"));
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in ["docs/a.md", "docs/b.md", "core/src/lib.rs"] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), "").unwrap();
        }
        let findings = check(root, &pages);
        let [heading, missing, nowhere] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(heading, "docs/a.md:3: b.md#part-two: no such heading");
        assert_eq!(missing, "docs/b.md:2: a.md#part-three: no such heading");
        assert_eq!(nowhere, "docs/b.md:3: c.md leads nowhere");
    }

    #[test]
    fn only_the_targets_of_links_are_rewritten() {
        let written = rewrite(Path::new("docs/a.md"), PAGE, |link| {
            link.path.starts_with("core").then(|| "https://x.org/lib.rs".to_owned())
        });
        assert_eq!(written, PAGE.replace("../core/src/lib.rs", "https://x.org/lib.rs"));
    }
}
