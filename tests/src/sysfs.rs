//! Directory trees that stand in for `/sys`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

/// A tree with the layout of `/sys`. Dropping this value removes the tree.
#[derive(Debug)]
pub struct Tree(TempDir);

impl Tree {
    /// The PCI address of [`Tree::new`]'s GPU.
    pub const GPU: &str = "0000:3d:00.0";

    /// A tree with a GPU, an RDMA device below the same switch, and another one at the other CPU.
    pub fn new(near: &str, far: &str) -> Self {
        let tree = Tree::empty();
        let switch = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        tree.gpu(&format!("{switch}/0000:3c:08.0/{}", Self::GPU), 0);
        tree.rdma_device(near, &format!("{switch}/0000:3c:10.0/0000:3e:00.0"), 0);
        tree.rdma_device(far, "devices/pci0000:d7/0000:d7:00.0/0000:d8:00.0", 1);
        tree
    }

    /// A tree without any device.
    pub fn empty() -> Self {
        Tree(tempfile::tempdir().expect("a directory"))
    }

    /// Adds a GPU. Its directory `path` below the root ends with its PCI address.
    pub fn gpu(&self, path: &str, numa_node: u32) {
        let (_, address) = path.rsplit_once('/').expect("a path");
        self.device(path, numa_node, &format!("bus/pci/devices/{address}"));
    }

    /// Adds an RDMA device.
    pub fn rdma_device(&self, name: &str, path: &str, numa_node: u32) {
        self.device(path, numa_node, &format!("class/infiniband/{name}/device"));
    }

    /// Adds a file with one line.
    pub fn file(&self, path: &str, line: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
        fs::write(path, format!("{line}\n")).expect("a file");
    }

    /// Adds a link to another path of the tree.
    pub fn link(&self, path: &str, target: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
        symlink(self.root().join(target), path).expect("a link");
    }

    /// The root of the tree.
    pub fn root(&self) -> &Path {
        self.0.path()
    }

    fn device(&self, path: &str, numa_node: u32, link: &str) {
        self.file(&format!("{path}/numa_node"), &numa_node.to_string());
        let link = self.root().join(link);
        fs::create_dir_all(link.parent().expect("below the root")).expect("a directory");
        symlink(self.root().join(path), link).expect("a link");
    }
}
