//! What the kernel tells about devices and modules.

use std::fs;
use std::path::{Path, PathBuf};

use invar_core::device::PciPlace;

/// The kernel's view of devices, `/sys`, or a tree that stands for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysfs {
    root: PathBuf,
}

/// A kernel module that gives NICs the way to GPU memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peermem {
    /// Its name.
    pub module: &'static str,
    /// What it says its version is; may be empty.
    pub version: String,
}

/// A PCI device: its path in sysfs and its NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// Starts with `/sys/devices/`.
    pub path: String,
    /// `None` where the kernel names none.
    pub numa_node: Option<u32>,
}

/// Where a module shows itself: as registered with the RDMA core of the time (`nv_mem` and
/// `nvidia-peermem` with MLNX_OFED, `net_ib.cc ncclIbGdrSupport`), or by being loaded.
const PEERMEM: [(&str, &str); 4] = [
    ("nvidia-peermem", "kernel/mm/memory_peers/nvidia-peermem/version"),
    ("nv_peer_mem", "kernel/mm/memory_peers/nv_mem/version"),
    ("nv_peer_mem (nc)", "kernel/mm/memory_peers/nv_mem_nc/version"),
    ("nvidia-peermem", "module/nvidia_peermem/version"),
];

impl Sysfs {
    /// A tree laid out as `/sys` is.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Sysfs { root: root.into() }
    }

    /// Its root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The module that lets NICs register GPU memory by its address, if one is loaded.
    pub fn peermem(&self) -> Option<Peermem> {
        PEERMEM.iter().find_map(|(module, path)| {
            let version = fs::read_to_string(self.root.join(path)).ok()?;
            Some(Peermem { module, version: version.trim().to_owned() })
        })
    }

    /// The PCI device at an address like `0000:3b:00.0`.
    pub fn pci_device(&self, address: &str) -> Option<PciDevice> {
        self.device(&self.root.join("bus/pci/devices").join(address))
    }

    /// The PCI device that an RDMA device is on; `None` for one in software.
    pub fn rdma_device(&self, name: &str) -> Option<PciDevice> {
        self.device(&self.root.join("class/infiniband").join(name).join("device"))
    }

    fn device(&self, link: &Path) -> Option<PciDevice> {
        let (directory, root) = (link.canonicalize().ok()?, self.root.canonicalize().ok()?);
        let path = directory.strip_prefix(root).ok()?;
        // The kernel writes -1 where there is but one node.
        let numa_node = fs::read_to_string(directory.join("numa_node")).ok();
        let numa_node = numa_node.and_then(|node| node.trim().parse().ok());
        Some(PciDevice { path: format!("/sys/{}", path.display()), numa_node })
    }
}

impl PciDevice {
    /// For rules about distance.
    pub fn place(&self) -> PciPlace<'_> {
        PciPlace { path: &self.path, numa_node: self.numa_node }
    }
}
