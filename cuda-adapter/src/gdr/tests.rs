use invar_testkit::sysfs::Tree;

use super::*;

/// A GPU below the same switch as `mlx5_0`, with a driver that supports everything.
pub(crate) fn gpu() -> GpuInfo {
    GpuInfo {
        ordinal: 0,
        name: "GPU".to_owned(),
        pci_bus_id: Tree::GPU.to_owned(),
        compute_capability: (8, 0),
        gpudirect: Some(true),
        dma_buf: true,
        writes_ordering: None,
        host_flush: false,
    }
}

/// A machine that contains the GPU of `gpu`.
struct Machine(Tree);

impl Machine {
    fn new() -> Self {
        Machine(Tree::new("mlx5_0", "mlx5_1"))
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::new(self.0.root())
    }

    fn decide(&self, gpu: &GpuInfo, nic: &str, dma_buf: bool, policy: Policy) -> Decision {
        let nic = NicReach::Rdma { devices: vec![nic.to_owned()], dma_buf };
        Host::probe(self.sysfs()).decide(gpu, &nic, policy)
    }
}

const DEFAULT: Policy = Policy { level: PciDistance::Pxb, dma_buf: true };

#[test]
fn dma_buf_goes_before_the_module_and_the_module_before_staging() {
    let machine = Machine::new();
    let path = |gpu_dma_buf, nic_dma_buf| {
        let gpu = GpuInfo { dma_buf: gpu_dma_buf, ..gpu() };
        machine.decide(&gpu, "mlx5_0", nic_dma_buf, DEFAULT).path
    };
    assert_eq!(path(true, true), Path::DmaBuf);
    assert_eq!([path(false, true), path(true, false)], [Path::Staging; 2]);
    machine.0.file("module/nvidia_peermem/version", "550.54");
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
        let machine = Machine::new();
        assert_eq!(machine.sysfs().peermem(), None);
        machine.0.file(path, "1.3");
        assert_eq!(machine.sysfs().peermem(), Some(Peermem { module, version: "1.3".to_owned() }));
    }
}

#[test]
fn what_is_too_far_apart_is_staged_and_the_level_moves() {
    let machine = Machine::new();
    let decide = |nic, level| machine.decide(&gpu(), nic, true, Policy { level, ..DEFAULT });
    assert_eq!(decide("mlx5_0", PciDistance::Pix).path, Path::DmaBuf);
    assert_eq!(decide("mlx5_0", PciDistance::Loc).path, Path::Staging);
    let far = decide("mlx5_1", PciDistance::Phb);
    let text = "staging: GPU and NIC are SYS apart, beyond NCCL_NET_GDR_LEVEL=PHB";
    assert_eq!(far.to_string(), text);
    assert_eq!(decide("mlx5_1", PciDistance::Sys).path, Path::DmaBuf);
    // Of ports that work together, the farthest decides.
    let devices = ["mlx5_0", "mlx5_1"].map(str::to_owned).to_vec();
    let both = NicReach::Rdma { devices, dma_buf: true };
    let policy = Policy { level: PciDistance::Phb, dma_buf: true };
    assert_eq!(Host::probe(machine.sysfs()).decide(&gpu(), &both, policy).path, Path::Staging);
}

#[test]
fn an_unknown_distance_counts_as_too_far_unless_any_is_allowed() {
    let machine = Machine::new();
    let decide = |level| machine.decide(&gpu(), "mlx5_9", true, Policy { level, ..DEFAULT }).path;
    assert_eq!(decide(PciDistance::Phb), Path::Staging);
    assert_eq!(decide(PciDistance::Sys), Path::DmaBuf);
}

#[test]
fn the_reason_says_what_is_missing() {
    let machine = Machine::new();
    let reason =
        |gpu: &GpuInfo, dma_buf, policy| machine.decide(gpu, "mlx5_0", dma_buf, policy).reason;
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
    let machine = Machine::new();
    machine.0.file("module/nvidia_peermem/version", "550.54");
    let policy = Policy { level: PciDistance::Sys, ..DEFAULT };
    let decision = Host::probe(machine.sysfs()).decide(&gpu(), &NicReach::Software, policy);
    assert_eq!(decision.to_string(), "staging: the NIC is software and reaches host memory only");
}

/// NICs with their distance from the GPU, and whether each level of `NCCL_NET_GDR_LEVEL` allows that
/// distance.
const DISTANCES: [(&str, Option<&str>, [bool; 5]); 7] = [
    ("same_card", Some("LOC"), [true, true, true, true, true]),
    ("same_switch", Some("PIX"), [false, true, true, true, true]),
    ("same_port", Some("PXB"), [false, false, true, true, true]),
    ("same_root", Some("PHB"), [false, false, false, true, true]),
    ("same_node", Some("PHB"), [false, false, false, true, true]),
    ("other_node", Some("SYS"), [false, false, false, false, true]),
    ("nowhere", None, [false, false, false, false, true]),
];
const LEVELS: [PciDistance; 5] =
    [PciDistance::Loc, PciDistance::Pix, PciDistance::Pxb, PciDistance::Phb, PciDistance::Sys];

/// `NCCL_DMABUF_ENABLE`, support by the GPU's driver, support by the NIC's driver and the kernel, and
/// the missing part.
const DMA_BUF: [(bool, bool, bool, &str); 8] = [
    (true, true, true, ""),
    (true, true, false, "the NIC's driver or the kernel registers no DMA-BUF"),
    (true, false, true, "the GPU's driver exports no DMA-BUF"),
    (true, false, false, "the GPU's driver exports no DMA-BUF"),
    (false, true, true, "NCCL_DMABUF_ENABLE=0"),
    (false, true, false, "NCCL_DMABUF_ENABLE=0"),
    (false, false, true, "NCCL_DMABUF_ENABLE=0"),
    (false, false, false, "NCCL_DMABUF_ENABLE=0"),
];

/// The file that shows a module, and the module's name; earlier entries win.
const MODULES: [(&str, &str); 4] = [
    ("kernel/mm/memory_peers/nvidia-peermem/version", "nvidia-peermem 1"),
    ("kernel/mm/memory_peers/nv_mem/version", "nv_peer_mem 2"),
    ("kernel/mm/memory_peers/nv_mem_nc/version", "nv_peer_mem (nc) 3"),
    ("module/nvidia_peermem/version", "nvidia-peermem 4"),
];

/// Makes a machine with a NIC at each distance.
fn machine_of_all_distances() -> Tree {
    let tree = Tree::empty();
    let switch = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
    tree.gpu(&format!("{switch}/0000:3c:08.0/{}", Tree::GPU), 0);
    for (nic, path, numa_node) in [
        ("same_card", &*format!("{switch}/0000:3c:08.0/0000:3d:00.1"), 0),
        ("same_switch", &*format!("{switch}/0000:3c:10.0/0000:3e:00.0"), 0),
        ("same_port", "devices/pci0000:3a/0000:3a:00.0/0000:3f:00.0/0000:40:00.0", 0),
        ("same_root", "devices/pci0000:3a/0000:3a:01.0/0000:50:00.0", 0),
        ("same_node", "devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0", 0),
        ("other_node", "devices/pci0000:d7/0000:d7:00.0/0000:d8:00.0", 1),
    ] {
        tree.rdma_device(nic, path, numa_node);
    }
    tree
}

/// The expected decision if the distance is allowed and the GPU supports GPUDirect.
fn among_near(distance: &str, missing: &str, module: Option<&str>) -> String {
    match (missing, module) {
        ("", _) => format!("GPUDirect by DMA-BUF: {distance}, and both have it"),
        (_, Some(module)) => {
            format!("GPUDirect by peer memory: {distance}, {module} is loaded, {missing}")
        }
        (_, None) => {
            format!(
                "staging: {missing}, and nvidia-peermem is not loaded (modprobe nvidia-peermem)"
            )
        }
    }
}

#[test]
fn every_combination_of_what_is_found_is_decided_as_a_table_says() {
    let mut decisions = 0;
    for loaded in 0..1 << MODULES.len() {
        let tree = machine_of_all_distances();
        let here = (0..MODULES.len()).filter(|i| loaded & 1 << i != 0);
        here.clone().for_each(|i| tree.file(MODULES[i].0, &(i + 1).to_string()));
        let module = here.clone().next().map(|i| MODULES[i].1);
        let host = Host::probe(Sysfs::new(tree.root()));
        for (nic, apart, allowed) in DISTANCES {
            for (level, allowed) in LEVELS.into_iter().zip(allowed) {
                for (enabled, of_gpu, of_nic, missing) in DMA_BUF {
                    for gpudirect in [None, Some(true), Some(false)] {
                        let distance = match apart {
                            Some(apart) => format!("GPU and NIC are {apart} apart"),
                            None => "NCCL_NET_GDR_LEVEL=SYS".to_owned(),
                        };
                        let expected = match (gpudirect, allowed, apart) {
                            (Some(false), ..) => {
                                "staging: GPU does not let PCI devices reach its memory".to_owned()
                            }
                            (_, true, _) => among_near(&distance, missing, module),
                            (_, false, Some(_)) => {
                                format!("staging: {distance}, beyond NCCL_NET_GDR_LEVEL={level}")
                            }
                            (_, false, None) => "staging: sysfs does not tell how far apart GPU \
                                                 and NIC are; NCCL_NET_GDR_LEVEL=SYS allows any \
                                                 distance"
                                .to_owned(),
                        };
                        let gpu = GpuInfo { gpudirect, dma_buf: of_gpu, ..gpu() };
                        let reach =
                            NicReach::Rdma { devices: vec![nic.to_owned()], dma_buf: of_nic };
                        let policy = Policy { level, dma_buf: enabled };
                        let decision = host.decide(&gpu, &reach, policy);
                        let case = (loaded, nic, level, enabled, of_gpu, of_nic, gpudirect);
                        assert_eq!(decision.to_string(), expected, "{case:?}");
                        let software = host.decide(&gpu, &NicReach::Software, policy);
                        assert_eq!(software.path, Path::Staging, "{case:?}");
                        decisions += 1;
                    }
                }
            }
        }
    }
    assert_eq!(decisions, 16 * 7 * 5 * 8 * 3);
}
