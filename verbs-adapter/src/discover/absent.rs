//! The reason why a host has no usable RDMA devices, and the remedy.

use std::fs;
use std::io;
use std::path::Path;

use crate::library::LibraryError;

/// The reason why libibverbs lists no devices.
pub(super) enum Absence<'a> {
    /// libibverbs is missing or unusable.
    Library(&'a LibraryError),
    /// libibverbs fails to list devices.
    Failed(&'a io::Error),
    /// libibverbs lists no devices.
    Empty,
}

impl Absence<'_> {
    /// Explains the absence in one line. `sysfs` and `dev` are the paths of the kernel's trees.
    pub(super) fn explain(&self, sysfs: &Path, dev: &Path) -> String {
        let names = names(&sysfs.join("class/infiniband")).join(", ");
        let has_devices = !names.is_empty();
        let why = match self {
            Absence::Library(error) if has_devices => {
                format!("the kernel has {names}, but {error}: install rdma-core")
            }
            Absence::Library(error) => error.to_string(),
            Absence::Failed(error) if is_unknown_to_kernel(error) && has_devices => format!(
                "the kernel has {names}, but no program may use them: load its module \
                 (modprobe ib_uverbs)"
            ),
            Absence::Failed(error) if is_unknown_to_kernel(error) => {
                "the kernel has no RDMA, or its module ib_uverbs is not loaded".to_owned()
            }
            Absence::Failed(error) => format!("ibv_get_device_list: {error}"),
            Absence::Empty if !has_devices => "the kernel has none".to_owned(),
            Absence::Empty if !dev.join("infiniband").is_dir() => format!(
                "the kernel has {names}, but there is no /dev/infiniband: a container needs \
                 --device=/dev/infiniband"
            ),
            Absence::Empty => format!(
                "the kernel has {names}, but libibverbs finds none: it may lack their driver \
                 (Debian: ibverbs-providers), or may not open /dev/infiniband"
            ),
        };
        format!("no RDMA devices: {why}")
    }
}

/// libibverbs returns ENOSYS if `/sys/class/infiniband_verbs` is missing.
fn is_unknown_to_kernel(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSYS)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_says_what_the_kernel_has_and_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let [sys, dev, none] = ["sys", "dev", "none"].map(|name| folder.path().join(name));
        for name in ["mlx5_1", "mlx5_0"] {
            fs::create_dir_all(sys.join("class/infiniband").join(name)).unwrap();
        }
        fs::create_dir_all(dev.join("infiniband")).unwrap();
        let library = LibraryError::Absent("libibverbs.so.1: cannot open".to_owned());
        let failed = |errno| io::Error::from_raw_os_error(errno);
        for (absence, sysfs, dev, why) in [
            (
                Absence::Library(&library),
                &none,
                &none,
                "no libibverbs (libibverbs.so.1: cannot open)",
            ),
            (
                Absence::Library(&library),
                &sys,
                &dev,
                "the kernel has mlx5_0, mlx5_1, but no libibverbs (libibverbs.so.1: cannot open): \
                 install rdma-core",
            ),
            (
                Absence::Failed(&failed(libc::ENOSYS)),
                &none,
                &none,
                "the kernel has no RDMA, or its module ib_uverbs is not loaded",
            ),
            (
                Absence::Failed(&failed(libc::ENOSYS)),
                &sys,
                &none,
                "the kernel has mlx5_0, mlx5_1, but no program may use them: load its module \
                 (modprobe ib_uverbs)",
            ),
            (
                Absence::Failed(&failed(libc::ENOMEM)),
                &sys,
                &dev,
                "ibv_get_device_list: Cannot allocate memory (os error 12)",
            ),
            (Absence::Empty, &none, &none, "the kernel has none"),
            (
                Absence::Empty,
                &sys,
                &none,
                "the kernel has mlx5_0, mlx5_1, but there is no /dev/infiniband: a container needs \
                 --device=/dev/infiniband",
            ),
            (
                Absence::Empty,
                &sys,
                &dev,
                "the kernel has mlx5_0, mlx5_1, but libibverbs finds none: it may lack their driver \
                 (Debian: ibverbs-providers), or may not open /dev/infiniband",
            ),
        ] {
            assert_eq!(absence.explain(sysfs, dev), format!("no RDMA devices: {why}"));
        }
    }
}
