//! Archives that depend only on their content and on one given time.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use crate::tree::Tree;

/// Compresses without a file name and without a time.
pub(crate) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// A compressed tar archive: directories, then files, of user and group 0, at the time `time`. Each path
/// begins with `prefix`.
pub(crate) fn tar_gz(tree: &Tree, prefix: &str, time: u64) -> Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    let mut add = |path: &str, kind: EntryType, mode: u32, content: &[u8]| {
        let path = format!("{prefix}{path}");
        let mut header = Header::new_gnu();
        // `Header::set_path` would drop the leading `./` of Debian's packages.
        let name = &mut header.as_gnu_mut().context("a header of GNU tar")?.name;
        ensure!(path.len() <= name.len(), "{path}: longer than {} bytes", name.len());
        name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_username("root")?;
        header.set_groupname("root")?;
        header.set_mtime(time);
        header.set_size(content.len().try_into()?);
        header.set_cksum();
        Ok(archive.append(&header, content)?)
    };
    for directory in std::iter::once("").chain(tree.directories()) {
        let slash = if directory.is_empty() { "" } else { "/" };
        add(&format!("{directory}{slash}"), EntryType::Directory, 0o755, &[])?;
    }
    for (path, file) in tree.files() {
        add(path, EntryType::Regular, file.mode(), &file.content)?;
    }
    gzip(&archive.into_inner()?)
}
