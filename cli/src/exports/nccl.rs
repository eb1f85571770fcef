//! Finds NCCL on this host, and asks for its version.

use std::path::{Path, PathBuf};
use std::{env, fmt};

use serde::{Serialize, Serializer};

use super::loader::Loaded;
use super::python::package_directories;
use crate::failure::Failure;

const NAME: &str = "libnccl.so.2";
/// The oldest version whose plugin interface Invar has.
const SERVED_MIN: NcclVersion = NcclVersion::new(2, 14);

/// An NCCL of this host.
#[derive(Serialize)]
pub(super) struct Nccl {
    path: PathBuf,
    /// `null` if the library cannot be loaded.
    pub(super) version: Option<NcclVersion>,
    /// The loader's reason why it does not load the library.
    error: Option<String>,
}

/// A version as `ncclGetVersion` encodes it since 2.9.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct NcclVersion(u32);

impl NcclVersion {
    pub(super) const fn new(major: u32, minor: u32) -> Self {
        NcclVersion(major * 10_000 + minor * 100)
    }
}

impl Nccl {
    /// Takes NCCL at `wanted`, or else that of the active Python environment, or else the loader's.
    pub(super) fn find(wanted: Option<&Path>) -> Result<Option<Nccl>, Failure> {
        if let Some(wanted) = wanted {
            return given(wanted).map(Some);
        }
        if let Some(path) = in_environments().into_iter().find(|path| path.is_file()) {
            return Ok(Some(load(path)));
        }
        let Ok(loaded) = Loaded::open(NAME) else { return Ok(None) };
        let path = loaded.file_of("ncclGetVersion").unwrap_or_else(|| NAME.into());
        Ok(Some(Nccl { path, version: version_of(&loaded), error: None }))
    }

    /// Fails if no plugin of Invar has an interface that this version takes.
    pub(super) fn check_served(&self, version: NcclVersion) -> Result<(), Failure> {
        if version >= SERVED_MIN {
            return Ok(());
        }
        Err(Failure::new(format_args!(
            "{} is NCCL {version}: Invar's plugin serves {SERVED_MIN} and later",
            self.path.display()
        )))
    }
}

/// The library that the user named, by its path or its directory.
fn given(wanted: &Path) -> Result<Nccl, Failure> {
    let path = if wanted.is_dir() { wanted.join(NAME) } else { wanted.to_owned() };
    let refuse = |why: &str| Err(Failure::usage(format_args!("--nccl {}: {why}", path.display())));
    if !path.is_file() {
        return refuse("no such file; name libnccl.so.2 or its directory");
    }
    // Without a slash the loader would search for the name.
    match load(path.canonicalize().unwrap_or_else(|_| path.clone())) {
        Nccl { error: Some(error), .. } => refuse(&error),
        Nccl { version: None, .. } => refuse("is no NCCL: it has no ncclGetVersion"),
        nccl => Ok(nccl),
    }
}

fn load(path: PathBuf) -> Nccl {
    match Loaded::open(&path) {
        Ok(loaded) => Nccl { version: version_of(&loaded), error: None, path },
        Err(error) => Nccl { version: None, error: Some(error), path },
    }
}

fn version_of(loaded: &Loaded) -> Option<NcclVersion> {
    loaded.nccl_version().map(NcclVersion)
}

/// Where PyTorch's packages and conda put NCCL.
fn in_environments() -> Vec<PathBuf> {
    let variables =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].map(|name| env::var_os(name).map(PathBuf::from));
    let command = env::current_exe().ok();
    let own = command.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_owned);
    let mut paths = Vec::new();
    let in_packages = |packages: &Path| packages.join("nvidia/nccl/lib").join(NAME);
    // The wheel has the command in its package.
    paths.extend(own.as_deref().and_then(Path::parent).map(in_packages));
    for prefix in variables.into_iter().flatten().chain(own) {
        let packages = package_directories(&prefix);
        paths.extend(packages.iter().map(|packages| in_packages(packages)));
        paths.push(prefix.join("lib").join(NAME));
    }
    paths
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Up to 2.8 the major version counts thousands.
        let major_unit = if self.0 < 10_000 { 1_000 } else { 10_000 };
        let (major, rest) = (self.0 / major_unit, self.0 % major_unit);
        write!(f, "{major}.{}", rest / 100)?;
        if rest % 100 == 0 { Ok(()) } else { write!(f, ".{}", rest % 100) }
    }
}

impl Serialize for NcclVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match (&self.version, &self.error) {
            (Some(version), _) => write!(f, "NCCL {version}: {path}"),
            (None, Some(error)) => {
                let error = error.replace(char::is_control, " ");
                write!(f, "NCCL of unknown version, since it does not load: {error}")
            }
            (None, None) => write!(f, "NCCL of unknown version: {path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_and_shown_as_people_write_them() {
        assert_eq!(NcclVersion(21_403).to_string(), "2.14.3");
        assert_eq!(NcclVersion(2_804).to_string(), "2.8.4");
        assert_eq!(NcclVersion::new(2, 28).to_string(), "2.28");
        assert!(NcclVersion(2_804) < SERVED_MIN && NcclVersion(21_403) > SERVED_MIN);
    }
}
