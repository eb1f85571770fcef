//! The kernel's facts about devices and modules.

use std::fs;
use std::path::{Path, PathBuf};

use invar_core::device::PciPlace;

/// The kernel's `/sys`, or a tree with the same layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysfs {
    root: PathBuf,
}

/// A kernel module that lets NICs access GPU memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peermem {
    /// Name of the module.
    pub module: &'static str,
    /// Version that the module reports; may be empty.
    pub version: String,
}

/// A PCI device: its sysfs path and its NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// Path of the device; it starts with `/sys/devices/`.
    pub path: String,
    /// NUMA node of the device; `None` if the kernel names none.
    pub numa_node: Option<u32>,
}

/// Modules and the files that show them. A module either registers with the RDMA core (`nv_mem` and
/// `nvidia-peermem` with MLNX_OFED, `net_ib.cc ncclIbGdrSupport`) or appears as loaded.
const PEERMEM: [(&str, &str); 4] = [
    ("nvidia-peermem", "kernel/mm/memory_peers/nvidia-peermem/version"),
    ("nv_peer_mem", "kernel/mm/memory_peers/nv_mem/version"),
    ("nv_peer_mem (nc)", "kernel/mm/memory_peers/nv_mem_nc/version"),
    ("nvidia-peermem", "module/nvidia_peermem/version"),
];

impl Sysfs {
    /// Uses a tree with the layout of `/sys`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Sysfs { root: root.into() }
    }

    /// Returns the root of the tree.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the kernel module that lets NICs register GPU memory by address, if one is loaded.
    pub fn peermem(&self) -> Option<Peermem> {
        PEERMEM.iter().find_map(|(module, path)| {
            let version = fs::read_to_string(self.root.join(path)).ok()?;
            Some(Peermem { module, version: version.trim().to_owned() })
        })
    }

    /// Returns the PCI device at an address such as `0000:3b:00.0`.
    pub fn pci_device(&self, address: &str) -> Option<PciDevice> {
        self.device(&self.root.join("bus/pci/devices").join(address))
    }

    /// Returns the PCI device of an RDMA device; `None` for a software device.
    pub fn rdma_device(&self, name: &str) -> Option<PciDevice> {
        self.device(&self.root.join("class/infiniband").join(name).join("device"))
    }

    fn device(&self, link: &Path) -> Option<PciDevice> {
        let (directory, root) = (link.canonicalize().ok()?, self.root.canonicalize().ok()?);
        let path = directory.strip_prefix(root).ok()?;
        // The kernel writes -1 if the machine has only one node; -1 does not parse as `u32`.
        let numa_node = fs::read_to_string(directory.join("numa_node")).ok();
        let numa_node = numa_node.and_then(|node| node.trim().parse().ok());
        Some(PciDevice { path: format!("/sys/{}", path.display()), numa_node })
    }
}

impl PciDevice {
    /// Returns the device's location, for the rules on distance.
    pub fn place(&self) -> PciPlace<'_> {
        PciPlace { path: &self.path, numa_node: self.numa_node }
    }
}
