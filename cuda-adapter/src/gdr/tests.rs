use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A GPU below the same switch as `mlx5_0`, with a driver that can do everything.
pub(crate) fn gpu() -> GpuInfo {
    GpuInfo {
        ordinal: 0,
        name: "GPU".to_owned(),
        pci_bus_id: "0000:3d:00.0".to_owned(),
        compute_capability: (8, 0),
        gpudirect: Some(true),
        dma_buf: true,
        writes_ordering: None,
        host_flush: false,
    }
}

/// A tree like `/sys`, removed at the end.
struct Tree(PathBuf);

impl Tree {
    /// One GPU, one NIC beside it, and one at the other CPU.
    fn new() -> Self {
        static TREES: AtomicU32 = AtomicU32::new(0);
        let number = TREES.fetch_add(1, Ordering::Relaxed);
        let root =
            std::env::temp_dir().join(format!("invar-sysfs-{}-{number}", std::process::id()));
        let tree = Tree(root);
        let switch = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        tree.device(
            &format!("{switch}/0000:3c:08.0/0000:3d:00.0"),
            0,
            "bus/pci/devices/0000:3d:00.0",
        );
        tree.device(
            &format!("{switch}/0000:3c:10.0/0000:3e:00.0"),
            0,
            "class/infiniband/mlx5_0/device",
        );
        let far = "devices/pci0000:d7/0000:d7:00.0/0000:d8:00.0";
        tree.device(far, 1, "class/infiniband/mlx5_1/device");
        tree
    }

    fn device(&self, path: &str, numa_node: u32, link: &str) {
        self.file(&format!("{path}/numa_node"), &numa_node.to_string());
        let link = self.0.join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(self.0.join(path), link).unwrap();
    }

    fn file(&self, path: &str, content: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{content}\n")).unwrap();
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::new(&self.0)
    }

    fn decide(&self, gpu: &GpuInfo, nic: &str, dma_buf: bool, policy: Policy) -> Decision {
        let nic = NicReach::Rdma { pci: self.sysfs().rdma_device(nic), dma_buf };
        Host::probe(self.sysfs()).decide(gpu, &nic, policy)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

const DEFAULT: Policy = Policy { level: PciDistance::Pxb, dma_buf: true };

#[test]
fn dma_buf_goes_before_the_module_and_the_module_before_staging() {
    let tree = Tree::new();
    let path = |gpu_dma_buf, nic_dma_buf| {
        let gpu = GpuInfo { dma_buf: gpu_dma_buf, ..gpu() };
        tree.decide(&gpu, "mlx5_0", nic_dma_buf, DEFAULT).path
    };
    assert_eq!(path(true, true), Path::DmaBuf);
    assert_eq!([path(false, true), path(true, false)], [Path::Staging; 2]);
    tree.file("module/nvidia_peermem/version", "550.54");
    assert_eq!(path(true, true), Path::DmaBuf);
    assert_eq!([path(false, true), path(true, false)], [Path::Peermem; 2]);
}

#[test]
fn every_module_is_found_where_it_shows_itself() {
    for (module, path) in [
        ("nv_peer_mem", "kernel/mm/memory_peers/nv_mem/version"),
        ("nvidia-peermem", "kernel/mm/memory_peers/nvidia-peermem/version"),
        ("nvidia-peermem", "module/nvidia_peermem/version"),
    ] {
        let tree = Tree::new();
        assert_eq!(tree.sysfs().peermem(), None);
        tree.file(path, "1.3");
        assert_eq!(tree.sysfs().peermem(), Some(Peermem { module, version: "1.3".to_owned() }));
    }
}

#[test]
fn what_is_too_far_apart_is_staged_and_the_level_moves() {
    let tree = Tree::new();
    let decide = |nic, level| tree.decide(&gpu(), nic, true, Policy { level, ..DEFAULT });
    assert_eq!(decide("mlx5_0", PciDistance::Pix).path, Path::DmaBuf);
    assert_eq!(decide("mlx5_0", PciDistance::Loc).path, Path::Staging);
    let far = decide("mlx5_1", PciDistance::Phb);
    let text = "staging: GPU and NIC are SYS apart, beyond NCCL_NET_GDR_LEVEL=PHB";
    assert_eq!(far.to_string(), text);
    assert_eq!(decide("mlx5_1", PciDistance::Sys).path, Path::DmaBuf);
}

#[test]
fn an_unknown_distance_counts_as_too_far_unless_any_is_allowed() {
    let tree = Tree::new();
    let decide = |level| tree.decide(&gpu(), "mlx5_9", true, Policy { level, ..DEFAULT }).path;
    assert_eq!(decide(PciDistance::Phb), Path::Staging);
    assert_eq!(decide(PciDistance::Sys), Path::DmaBuf);
}

#[test]
fn the_reason_says_what_is_missing() {
    let tree = Tree::new();
    let reason =
        |gpu: &GpuInfo, dma_buf, policy| tree.decide(gpu, "mlx5_0", dma_buf, policy).reason;
    let without = GpuInfo { gpudirect: Some(false), ..gpu() };
    assert_eq!(reason(&without, true, DEFAULT), "GPU does not let PCI devices reach its memory");
    for (gpu_dma_buf, nic_dma_buf, enabled, why) in [
        (false, true, true, "the GPU's driver exports no DMA-BUF"),
        (true, false, true, "the NIC's driver or the kernel registers no DMA-BUF"),
        (true, true, false, "NCCL_DMABUF_ENABLE=0"),
    ] {
        let gpu = GpuInfo { dma_buf: gpu_dma_buf, ..gpu() };
        let text = reason(&gpu, nic_dma_buf, Policy { dma_buf: enabled, ..DEFAULT });
        let rest = ", and nvidia-peermem is not loaded (modprobe nvidia-peermem)";
        assert_eq!(text, format!("{why}{rest}"));
    }
}

#[test]
fn a_nic_in_software_is_staged_whatever_the_gpu_can_do() {
    let tree = Tree::new();
    tree.file("module/nvidia_peermem/version", "550.54");
    let policy = Policy { level: PciDistance::Sys, ..DEFAULT };
    let decision = Host::probe(tree.sysfs()).decide(&gpu(), &NicReach::Software, policy);
    assert_eq!(decision.to_string(), "staging: the NIC is software and reaches host memory only");
}
