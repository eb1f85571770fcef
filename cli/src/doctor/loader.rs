//! Shared libraries, where the loader looks for them (`ld.so(8)`).

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::host::{Host, open_file};

/// The folders in which the loader looks last. It has the multiarch ones in its configuration.
const LAST: [&str; 4] = ["lib64", "usr/lib64", "lib", "usr/lib"];
/// The most files of the loader's configuration.
const FILES_MAX: usize = 256;
/// The most bytes of a library that are searched for its version.
const LIBRARY_BYTES_MAX: u64 = 1 << 30;
const PIECE_BYTES: usize = 1 << 20;

/// The folders where the loader looks, in order, each once.
pub(crate) fn folders(host: &Host) -> Vec<PathBuf> {
    let listed = host.var("LD_LIBRARY_PATH").unwrap_or_default();
    let listed = listed.split([':', ';']).filter(|folder| !folder.is_empty());
    let mut folders: Vec<String> = listed.map(str::to_owned).collect();
    let (mut files, mut next) = (vec!["etc/ld.so.conf".to_owned()], 0);
    while let Some(file) = files.get(next).cloned().filter(|_| next < FILES_MAX) {
        next += 1;
        let text = host.root.known(&file).unwrap_or_default();
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            match line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) {
                Some(patterns) => {
                    let patterns = patterns.split_whitespace();
                    files.extend(patterns.flat_map(|pattern| matching(host, &file, pattern)));
                }
                None if line.starts_with('/') => folders.push(line.to_owned()),
                None => {}
            }
        }
    }
    folders.extend(LAST.map(str::to_owned));
    let mut seen = BTreeSet::new();
    let paths = folders.iter().filter_map(|folder| host.root.path(folder).canonicalize().ok());
    paths.filter(|path| seen.insert(path.clone())).collect()
}

/// The files of a pattern such as `/etc/ld.so.conf.d/*.conf`. A relative pattern begins in the folder of
/// the file `including`.
fn matching(host: &Host, including: &str, pattern: &str) -> Vec<String> {
    let beside = including.rsplit_once('/').map_or("", |(folder, _)| folder);
    let pattern = match pattern.starts_with('/') {
        true => pattern.to_owned(),
        false => format!("{beside}/{pattern}"),
    };
    let (folder, file) = pattern.rsplit_once('/').unwrap_or_default();
    let Some((before, after)) = file.split_once('*') else { return vec![pattern] };
    let mut names = host.root.names(folder);
    names.retain(|name| name.starts_with(before) && name.ends_with(after));
    names.into_iter().map(|name| format!("{folder}/{name}")).collect()
}

/// The files that `take` accepts by name, in the loader's order.
pub(crate) fn libraries(folders: &[PathBuf], take: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let of = |folder: &PathBuf| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| take(name)).collect();
        names.sort_unstable();
        names.into_iter().map(|name| folder.join(name)).collect::<Vec<_>>()
    };
    folders.iter().flat_map(of).collect()
}

/// Removes paths that lead to a file before them.
pub(crate) fn distinct(paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    paths.into_iter().filter(|path| seen.insert(real(path))).collect()
}

/// The version of NCCL's library, as `2.18.3`: from the name of the file, or else from its content.
pub(crate) fn nccl_version(library: &Path) -> Option<String> {
    let real = library.canonicalize().ok()?;
    let name = real.file_name()?.to_string_lossy().into_owned();
    let from_name = name.strip_prefix("libnccl.so.").filter(|rest| rest.contains('.'));
    from_name.map(str::to_owned).or_else(|| version_within(open_file(&real).ok()?))
}

/// Finds `NCCL version 2.18.3+cuda12.1`.
fn version_within(file: impl Read) -> Option<String> {
    const MARK: &[u8] = b"NCCL version ";
    /// The mark, and more than a version.
    const OVERLAP: usize = 64;
    let mut file = file.take(LIBRARY_BYTES_MAX);
    let mut piece = Vec::with_capacity(PIECE_BYTES + OVERLAP);
    loop {
        let read = file.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece).ok()?;
        let marks = piece.windows(MARK.len()).enumerate().filter(|(_, bytes)| *bytes == MARK);
        for (at, _) in marks {
            let is_part = |byte: &&u8| byte.is_ascii_digit() || **byte == b'.';
            let version = piece[at + MARK.len()..].iter().take_while(is_part);
            let version: String = version.map(|byte| char::from(*byte)).collect();
            if numbers(&version).is_some() {
                return Some(version);
            }
        }
        if read == 0 {
            return None;
        }
        piece.drain(..piece.len().saturating_sub(OVERLAP));
    }
}

/// The first two numbers of a version.
pub(crate) fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_wherever_it_stands() {
        for at in [0, 1, PIECE_BYTES - 20, PIECE_BYTES - 5, PIECE_BYTES, 2 * PIECE_BYTES + 7] {
            let mut bytes = vec![b'N'; at];
            bytes.extend(b"NCCL version %s\0NCCL version 2.18.3+cuda12.1\0");
            assert_eq!(version_within(&bytes[..]).as_deref(), Some("2.18.3"), "{at}");
        }
        assert_eq!(version_within(&b"NCCL version "[..]), None);
        assert_eq!(numbers("2.18.3"), Some((2, 18)));
    }
}
