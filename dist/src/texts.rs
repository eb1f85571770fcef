//! The texts of every package: licences, what changed, and the pages for people.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::shell;

/// The folders of the pages and of their pictures. Beside each is the prefix of its files' names among the texts.
const FOLDERS: [(&str, &str); 2] = [("docs", ""), ("docs/plots", "plots/")];

/// Reads the texts, by file name. `third_party` has the licences of dependencies.
pub(crate) fn load(third_party: String) -> Result<Vec<(String, Vec<u8>)>> {
    let root = shell::root()?;
    let mut texts = vec![("THIRD-PARTY-LICENSES.txt".to_owned(), third_party.into_bytes())];
    for name in ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md"] {
        texts.push((name.to_owned(), read(&root.join(name))?.into_bytes()));
    }
    for (folder, place) in FOLDERS {
        let folder = root.join(folder);
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_file() {
                let name =
                    path.file_name().and_then(|name| name.to_str()).context("a UTF-8 name")?;
                texts.push((format!("{place}{name}"), on_the_web(&read(&path)?).into_bytes()));
            }
        }
    }
    Ok(texts)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Leads the links of a page that leave the folder of pages to the repository's address on the web.
fn on_the_web(page: &str) -> String {
    page.replace("](../", concat!("](", env!("CARGO_PKG_REPOSITORY"), "/blob/main/"))
}
