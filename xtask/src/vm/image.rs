//! The files of a guest.

use std::fs::File;
use std::path::PathBuf;

/// A directory with all files that QEMU needs. Nobody changes it while this value lives.
pub(super) struct Image {
    pub(super) directory: PathBuf,
    _lock: File,
}

impl Image {
    /// The files in a directory, which `lock` keeps from change.
    pub(super) fn new(directory: PathBuf, lock: File) -> Self {
        Image { directory, _lock: lock }
    }

    pub(super) fn kernel(&self) -> PathBuf {
        self.directory.join("vmlinuz")
    }

    pub(super) fn initramfs(&self) -> PathBuf {
        self.directory.join("initramfs")
    }

    /// The file with the guest's memory at the time of the snapshot.
    pub(super) fn ram(&self) -> PathBuf {
        self.directory.join("ram")
    }

    /// The file with the rest of the machine's state.
    pub(super) fn state(&self) -> PathBuf {
        self.directory.join("state")
    }
}
