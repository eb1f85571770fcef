//! Hosts with GPUs.

use std::fs;

use crate::doctor::stand_in::StandIn;

/// Below the root port of the first RDMA device.
const NEAR: &str = "pci0000:3a/0000:3a:00.0/0000:3d:00.0";
const ROOT_PORT: &str = "sys/devices/pci0000:3a/0000:3a:00.0";
/// A port of a switch below that root port.
const SWITCH_PORT: &str = "pci0000:3a/0000:3a:00.0/0000:3b:01.0/0000:3c:01.0";

#[test]
fn a_kernel_that_lets_no_nic_reach_a_gpu() {
    let mut host = StandIn::rdma();
    host.gpu(NEAR);
    assert_eq!(host.findings(), [""; 0]);
    host.set("NCCL_DMABUF_ENABLE", "0");
    assert_eq!(host.findings(), ["warn gpudirect-none"]);
    host.env.clear();
    host.tree.file("proc/sys/kernel/osrelease", "5.4.0-150-generic");
    assert_eq!(host.findings(), ["warn gpudirect-none"]);
    assert!(host.what("gpudirect-none").contains("Linux 5.4.0-150-generic lets no"));
    host.tree
        .file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550");
    let mend = host.mend("gpudirect-none");
    assert!(mend.starts_with("modprobe nvidia-peermem   # needs MLNX_OFED, "), "{mend}");
    assert!(mend.contains("NVIDIA's open kernel module"), "{mend}");
    host.tree.file("sys/kernel/mm/memory_peers/nvidia-peermem/version", "550");
    assert_eq!(host.findings(), [""; 0]);
}

#[test]
fn a_driver_of_a_card_that_may_register_no_dma_buf() {
    let host = StandIn::rdma();
    host.gpu(NEAR);
    let unseen = |driver: &str, kernel: &str| {
        let link = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/driver";
        host.remove(link);
        host.tree.link(link, &format!("sys/bus/pci/drivers/{driver}"));
        host.tree.file("proc/sys/kernel/osrelease", kernel);
        let report = host.examine();
        assert_eq!(report.short(), [""; 0]);
        report.lines()[1].iter().any(|line| line.starts_with("mlx5_0: "))
    };
    assert!(!unseen("bnxt_en", "6.6.0"));
    // Red Hat's kernel may have a newer driver.
    assert!(unseen("bnxt_en", "5.14.0-427.el9"));
    assert!(!unseen("mlx5_core", "5.14.0-427.el9"));
    assert!(unseen("hns3", "6.6.0"));
}

#[test]
fn a_gpu_without_its_driver_or_its_file() {
    let host = StandIn::plain();
    host.gpu("pci0000:00/0000:01:00.0");
    assert_eq!(host.findings(), [""; 0]);
    host.remove("dev/nvidiactl");
    assert_eq!(host.findings(), ["note gpu-no-file /dev/nvidiactl"]);
    host.remove("proc/driver");
    assert_eq!(host.findings(), ["warn gpu-no-driver nvidia"]);
}

#[test]
fn a_gpu_far_from_all_nics() {
    let mut host = StandIn::rdma();
    host.gpu("pci0000:d7/0000:d7:00.0/0000:d8:00.0");
    assert_eq!(host.findings(), ["note gpu-far 0000:d8:00.0"]);
    host.set("NCCL_NET_GDR_LEVEL", "SYS");
    assert_eq!(host.findings(), [""; 0]);
}

#[test]
fn a_switch_that_redirects_transfers_to_the_cpu() {
    let host = StandIn::rdma();
    host.gpu(&format!("{SWITCH_PORT}/0000:3d:00.0"));
    let config = |control: u8| {
        let mut bytes = vec![0; 4096];
        bytes[0x100..0x102].copy_from_slice(&[0x0d, 0]);
        bytes[0x106] = control;
        bytes
    };
    let port = host.tree.root().join("sys/devices").join(SWITCH_PORT);
    let write = |control| fs::write(port.join("config"), config(control)).unwrap();
    fs::write(port.parent().unwrap().join("config"), config(0)).unwrap();
    // Transfers within the switch do not reach the root port.
    fs::write(host.tree.root().join(ROOT_PORT).join("config"), config(0x1d)).unwrap();
    write(0);
    assert_eq!(host.findings(), [""; 0]);
    write(0x1d);
    let report = host.examine();
    assert_eq!(report.short(), ["warn acs-redirects 0000:3c:01.0"]);
    let mend = &report.finding("acs-redirects").mend;
    assert!(mend.starts_with("setpci -s 0000:3c:01.0 ECAP_ACS+6.w=0000"), "{mend}");
    assert!(report.lines()[1].is_empty());
    fs::write(port.join("config"), [0; 64]).unwrap();
    assert_eq!(host.findings(), [""; 0]);
    assert_eq!(host.examine().lines()[1].len(), 1);
}

#[test]
fn an_iommu_weighs_more_with_a_gpu() {
    let host = StandIn::rdma();
    host.gpu(NEAR);
    host.pci("iommu_group/type", "DMA");
    assert_eq!(host.findings(), ["warn iommu-translates mlx5_0"]);
}
