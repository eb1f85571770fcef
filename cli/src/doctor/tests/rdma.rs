//! Hosts with RDMA devices.

use crate::doctor::host::Libibverbs;
use crate::doctor::stand_in::StandIn;

const V4: &str = "0000:0000:0000:0000:0000:ffff";

#[test]
fn a_host_without_libibverbs() {
    let mut host = StandIn::rdma();
    host.facts.libibverbs =
        Libibverbs::Missing("no libibverbs (libibverbs.so.1: no such file)".into());
    assert_eq!(host.findings(), ["bad libibverbs-missing"]);
    let report = host.examine();
    let finding = report.finding("libibverbs-missing");
    assert!(finding.what.starts_with("the kernel has mlx5_0, mlx5_1, but no libibverbs ("));
    assert!(finding.mend.starts_with("apt-get install libibverbs1 ibverbs-providers"));
}

#[test]
fn a_device_without_its_provider() {
    let mut host = StandIn::rdma();
    host.facts.libibverbs = Libibverbs::Lists(vec!["mlx5_1".to_owned()]);
    assert_eq!(host.findings(), ["bad provider-missing mlx5_0"]);
    assert!(host.what("provider-missing").contains(" of the driver mlx5_core: "));
}

#[test]
fn a_kernel_without_ib_uverbs() {
    let mut host = StandIn::rdma();
    host.remove("sys/class/infiniband_verbs");
    host.facts.libibverbs = Libibverbs::Failed("ibv_get_device_list: ENOSYS".to_owned());
    assert_eq!(host.findings(), ["bad uverbs-missing"]);
    assert_eq!(host.mend("uverbs-missing"), "modprobe ib_uverbs");
}

#[test]
fn a_container_without_the_files_of_rdma_devices() {
    let mut host = StandIn::rdma();
    host.remove("dev/infiniband");
    host.tree.file(".dockerenv", "");
    host.facts.libibverbs = Libibverbs::Lists(Vec::new());
    assert_eq!(host.findings(), ["bad dev-infiniband-missing /dev/infiniband"]);
    assert!(host.mend("dev-infiniband-missing").starts_with("docker run --device=/dev/infiniband"));
    host.remove(".dockerenv");
    assert_eq!(host.mend("dev-infiniband-missing"), "modprobe ib_uverbs");
}

#[test]
fn a_file_that_is_missing_or_refused() {
    let mut host = StandIn::rdma();
    host.remove("dev/infiniband/uverbs1");
    host.port(1, "state", "1: DOWN");
    let one = "uverbs-file-missing /dev/infiniband/uverbs1";
    assert_eq!(host.findings(), [format!("bad {one}"), "warn port-down mlx5_1 port 1".to_owned()]);
    let mend = host.mend("uverbs-file-missing");
    assert!(mend.starts_with("for f in uverbs1; do mknod -m 666 /dev/infiniband/$f c "), "{mend}");
    // A container may have some devices of its host on purpose.
    host.tree.file(".dockerenv", "");
    assert_eq!(host.findings(), [format!("note {one}")]);
    host.remove(".dockerenv");
    host.port(1, "state", "4: ACTIVE");
    host.remove("dev/infiniband/uverbs0");
    let both = "bad uverbs-file-missing /dev/infiniband/uverbs0 and 1 more";
    assert_eq!(host.findings(), [both]);
    let what = "there is no file by which programs reach mlx5_0 and 1 more";
    assert_eq!(host.what("uverbs-file-missing"), what);
    host.tree.file("dev/infiniband/uverbs0", "");
    host.tree.file("dev/infiniband/uverbs1", "");
    host.facts.open_errno = Some(13);
    assert_eq!(
        host.findings(),
        [
            "bad uverbs-refused /dev/infiniband/uverbs0",
            "bad uverbs-refused /dev/infiniband/uverbs1"
        ]
    );
    assert!(host.mend("uverbs-refused").starts_with("chmod a+rw /dev/infiniband/uverbs0"));
    assert!(host.what("uverbs-refused").contains("may not open mlx5_0: Permission denied"));
}

#[test]
fn a_pod_is_judged_by_the_devices_whose_files_it_has() {
    let mut host = StandIn::rdma();
    host.card(2, "0000:3a:02.0/0000:5f:00.0");
    // A login over ssh has none of the pod's variables.
    host.tree.file("var/run/secrets/kubernetes.io/serviceaccount/namespace", "default");
    for card in [1, 2] {
        host.remove(&format!("dev/infiniband/uverbs{card}"));
        host.port(card, "state", "1: DOWN");
    }
    host.facts.interfaces.retain(|interface| !["roce1", "roce2"].contains(&&*interface.name));
    host.facts.libibverbs = Libibverbs::Lists(vec!["mlx5_0".to_owned()]);
    assert_eq!(host.findings(), ["note uverbs-file-missing /dev/infiniband/uverbs1 and 1 more"]);
    host.facts.memlock = Some(64 << 10);
    let mend = host.mend("memlock-limit");
    assert!(mend.starts_with("systemctl edit containerd "), "{mend}");
    host.set("SLURM_JOB_ID", "7");
    let mend = host.mend("memlock-limit");
    assert!(mend.contains("PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"), "{mend}");
}

#[test]
fn a_card_without_its_driver() {
    let host = StandIn::rdma();
    host.remove("sys/class/infiniband");
    let found = |word| {
        ["0000:3b:00.0", "0000:5e:00.0"].map(|at| format!("{word} rdma-driver-missing {at}"))
    };
    assert_eq!(host.findings(), found("warn"));
    assert_eq!(host.mend("rdma-driver-missing"), "modprobe mlx5_ib");
    host.pci("class", "0x020700");
    let [first, _] = found("bad");
    assert_eq!(host.findings()[0], first);
}

#[test]
fn a_small_limit_on_locked_memory() {
    let mut host = StandIn::rdma();
    host.facts.memlock = Some(64 << 10);
    assert_eq!(host.findings(), ["bad memlock-limit RLIMIT_MEMLOCK"]);
    host.facts.memlock = Some(8 << 30);
    assert_eq!(host.findings(), ["warn memlock-limit RLIMIT_MEMLOCK"]);
    assert!(host.what("memlock-limit").ends_with("may lock 8192 MiB of memory"));
    let mut host = StandIn::plain();
    host.facts.memlock = Some(64 << 10);
    assert_eq!(host.findings(), [""; 0]);
}

#[test]
fn ports_that_are_down_are_worse_if_no_other_is_up() {
    let host = StandIn::rdma();
    host.port(1, "state", "1: DOWN");
    host.port(1, "phys_state", "3: Disabled");
    assert_eq!(host.findings(), ["warn port-down mlx5_1 port 1"]);
    assert_eq!(host.mend("port-down"), "ip link set roce1 up");
    host.port(0, "state", "1: DOWN");
    host.port(0, "phys_state", "2: Polling");
    assert_eq!(host.findings(), ["bad port-down mlx5_0 port 1", "bad port-down mlx5_1 port 1"]);
    assert!(host.what("port-down").contains("no link (Polling): look at cable and switch"));
}

#[test]
fn the_second_port_of_a_card_may_be_down_unless_the_user_has_asked_for_it() {
    let mut host = StandIn::plain();
    host.facts.libibverbs = Libibverbs::Lists(vec![]);
    host.card(0, "0000:3a:00.0/0000:3b:00.0");
    host.card(1, "0000:3a:00.0/0000:3b:00.1");
    host.port(1, "state", "1: DOWN");
    host.port(1, "phys_state", "3: Disabled");
    assert_eq!(host.findings(), ["note port-down mlx5_1 port 1"]);
    host.set("NCCL_IB_HCA", "mlx5");
    assert_eq!(host.findings(), ["warn port-down mlx5_1 port 1"]);
}

#[test]
fn an_infiniband_port_without_a_subnet_manager() {
    let host = StandIn::rdma();
    host.port(0, "link_layer", "InfiniBand");
    host.port(0, "state", "2: INIT");
    assert_eq!(host.findings(), ["warn port-down mlx5_0 port 1"]);
    assert!(host.mend("port-down").starts_with("systemctl start opensm"));
}

#[test]
fn an_infiniband_port_that_is_switched_off_is_named_in_the_command() {
    let host = StandIn::rdma();
    host.port(1, "link_layer", "InfiniBand");
    host.port(1, "state", "1: DOWN");
    host.port(1, "phys_state", "3: Disabled");
    let mend = host.mend("port-down");
    assert_eq!(mend, "ibportstate -C mlx5_1 -P 1 -D 0 1 enable");
}

#[test]
fn links_that_are_slower_than_they_could_be() {
    let host = StandIn::rdma();
    host.port(0, "rate", "25 Gb/sec (1X EDR)");
    assert_eq!(host.findings(), ["warn port-slow mlx5_0 port 1"]);
    assert!(host.what("port-slow").starts_with("25 Gb/s, while mlx5_1 port 1, "));
    host.port(0, "link_layer", "InfiniBand");
    assert_eq!(host.findings(), ["warn link-narrow mlx5_0 port 1"]);
    // Another model may be slower.
    host.pci("device", "0x1015");
    host.port(0, "link_layer", "Ethernet");
    assert_eq!(host.findings(), [""; 0]);
}

#[test]
fn a_setting_that_names_no_device() {
    let mut host = StandIn::rdma();
    host.set("NCCL_IB_HCA", "mlx5_0,mlx5_7");
    assert_eq!(host.findings(), ["bad hca-unknown NCCL_IB_HCA"]);
    assert_eq!(host.what("hca-unknown"), "mlx5_7 is none of mlx5_0, mlx5_1");
    host.set("NCCL_IB_HCA", "^mlx5");
    assert_eq!(host.findings(), ["bad hca-unknown NCCL_IB_HCA"]);
    host.set("NCCL_IB_HCA", "ib");
    assert_eq!(host.what("hca-unknown"), "ib is none of mlx5_0, mlx5_1");
    host.set("NCCL_IB_HCA", "=mlx5_1:1");
    assert_eq!(host.findings(), [""; 0]);
}

#[test]
fn a_card_whose_pcie_link_came_up_badly() {
    let host = StandIn::rdma();
    host.pci("current_link_width", "4");
    assert_eq!(host.findings(), ["warn pcie-degraded mlx5_0"]);
    let report = host.examine();
    let finding = report.finding("pcie-degraded");
    let what = "its PCIe link runs x4 at 16 GT/s (63 Gb/s); card and slot can do x16 at 16 GT/s (252 Gb/s)";
    assert_eq!(finding.what, what);
    assert_eq!(finding.costs, "at most 63 Gb/s each way, of the 100 Gb/s of its ports");
    assert!(finding.mend.starts_with("lspci -vv -s 0000:3b:00.0 "));
    host.pci("current_link_width", "16");
    host.pci("current_link_speed", "8.0 GT/s PCIe");
    assert_eq!(host.findings(), ["warn pcie-degraded mlx5_0"]);
}

#[test]
fn a_card_in_a_slot_that_is_slower_than_its_port() {
    let host = StandIn::rdma();
    let slot = "sys/devices/pci0000:3a/0000:3a:00.0";
    host.tree.file(&format!("{slot}/max_link_width"), "4");
    host.pci("current_link_width", "4");
    assert_eq!(host.findings(), ["warn pcie-slot-slow mlx5_0"]);
    // The slot limits the card, and the port is slower still.
    host.port(0, "rate", "50 Gb/sec (2X EDR)");
    host.port(1, "rate", "50 Gb/sec (2X EDR)");
    assert_eq!(host.findings(), [""; 0]);
}

#[test]
fn a_virtual_function_shows_no_pcie_link() {
    let host = StandIn::rdma();
    host.pci("current_link_speed", "Unknown");
    let report = host.examine();
    assert_eq!(report.short(), [""; 0]);
    assert!(report.lines()[1][0].starts_with("mlx5_0: /sys shows no PCIe link"));
}

#[test]
fn path_mtus_below_what_the_network_allows() {
    let mut host = StandIn::rdma();
    host.facts.path_mtus.insert(("mlx5_0".to_owned(), 1), 1024);
    assert_eq!(host.findings(), ["warn path-mtu-low mlx5_0 port 1"]);
    assert_eq!(host.examine().finding("path-mtu-low").costs, "4 times as many packets as needed");
    host.facts.interfaces.iter_mut().for_each(|interface| interface.mtu = 1500);
    host.facts.path_mtus.insert(("mlx5_1".to_owned(), 1), 1024);
    assert_eq!(host.findings(), ["note mtu-small mlx5_0 port 1", "note mtu-small mlx5_1 port 1"]);
    let mend = host.mend("mtu-small");
    assert!(mend.starts_with("ip link set roce0 mtu 4200 "), "{mend}");
    assert!(mend.contains("nmcli connection modify CONNECTION 802-3-ethernet.mtu 4200"), "{mend}");
    host.facts.interfaces.iter_mut().for_each(|interface| interface.mtu = 300);
    assert_eq!(host.findings(), ["bad mtu-tiny mlx5_0 port 1", "bad mtu-tiny mlx5_1 port 1"]);
}

#[test]
fn a_port_without_roce_v2() {
    let mut host = StandIn::rdma();
    for index in [1, 3] {
        host.port(0, &format!("gid_attrs/types/{index}"), "IB/RoCE v1");
    }
    assert_eq!(host.findings(), ["bad gid-no-roce-v2 mlx5_0 port 1"]);
    // The kernel has made GIDs of the address, as its driver allows.
    let mend = |host: &StandIn| host.mend("gid-no-roce-v2");
    let lists = [("^mlx4", "^mlx4,mlx5_0"), ("mlx5", "=mlx5_1"), ("", "^=mlx5_0")];
    for (list, then) in lists {
        host.set("NCCL_IB_HCA", list);
        let mend = mend(&host);
        assert!(mend.starts_with(&format!("export NCCL_IB_HCA={then} ")), "{list}: {mend}");
    }
    for index in [1, 3] {
        host.port(1, &format!("gid_attrs/types/{index}"), "IB/RoCE v1");
    }
    let both = ["bad gid-no-roce-v2 mlx5_0 port 1", "bad gid-no-roce-v2 mlx5_1 port 1"];
    assert_eq!(host.findings(), both);
    assert!(mend(&host).starts_with("export NCCL_IB_HCA=^=mlx5_0,mlx5_1 "), "{}", mend(&host));
    host.set("NCCL_IB_HCA", "mlx5");
    assert!(mend(&host).starts_with("export NCCL_IB_DISABLE=1 "), "{}", mend(&host));
    for index in [2, 3] {
        host.gid(0, index, &["0000"; 8].join(":"), "IB/RoCE v1");
    }
    assert!(mend(&host).starts_with("ip address add ADDRESS/LENGTH dev roce0 "), "{}", mend(&host));
}

#[test]
fn a_port_with_link_local_gids_only() {
    let host = StandIn::rdma();
    for index in [2, 3] {
        host.gid(0, index, &["0000"; 8].join(":"), "RoCE v2");
    }
    assert_eq!(host.findings(), ["warn gid-link-local mlx5_0 port 1"]);
    assert_eq!(host.mend("gid-link-local"), "ip address add ADDRESS/LENGTH dev roce0");
}

#[test]
fn a_port_without_gids() {
    let host = StandIn::rdma();
    host.remove("sys/class/infiniband/mlx5_1/ports/1/gids");
    let found = host.findings();
    assert!(found.contains(&"bad gid-none mlx5_1 port 1".to_owned()), "{found:?}");
}

#[test]
fn a_gid_whose_address_is_gone() {
    let host = StandIn::rdma();
    host.gid(0, 4, &format!("{V4}:0a01:00c8"), "RoCE v2");
    assert_eq!(host.findings(), ["warn gid-stale mlx5_0 port 1"]);
    assert_eq!(
        host.what("gid-stale"),
        "it has GIDs [4] 10.1.0.200, but roce0 no longer has these addresses"
    );
}

#[test]
fn gids_of_other_namespaces_matter_less_beside_a_good_one() {
    let mut host = StandIn::rdma();
    host.gid(0, 4, &format!("{V4}:0a01:00c8"), "RoCE v2");
    host.port(0, "gid_attrs/ndevs/4", "macvlan3");
    assert_eq!(host.findings(), ["note gid-foreign mlx5_0 port 1"]);
    host.set("NCCL_IB_GID_INDEX", "4");
    let found = host.findings();
    assert_eq!(found[0], "bad gid-index-stray NCCL_IB_GID_INDEX");
    // The other card has no entry 4.
    assert_eq!(
        found[1..],
        ["bad gid-index-empty NCCL_IB_GID_INDEX", "note gid-foreign mlx5_0 port 1"]
    );
}

#[test]
fn a_gid_of_another_network_namespace() {
    let mut host = StandIn::rdma();
    host.facts.interfaces.retain(|interface| interface.name != "roce0");
    assert_eq!(host.findings(), ["bad gid-foreign mlx5_0 port 1"]);
    assert_eq!(
        host.what("gid-foreign"),
        "it has GIDs [3] 10.1.0.1, but roce0 is not in this network namespace"
    );
}

#[test]
fn a_gid_index_that_is_a_bad_choice() {
    let mut host = StandIn::rdma();
    for (index, found) in [
        ("0", "warn gid-index-v1 NCCL_IB_GID_INDEX"),
        ("1", "warn gid-index-link-local NCCL_IB_GID_INDEX"),
        ("9", "bad gid-index-empty NCCL_IB_GID_INDEX"),
    ] {
        host.set("NCCL_IB_GID_INDEX", index);
        assert_eq!(host.findings(), [found, found]);
    }
    host.set("NCCL_IB_GID_INDEX", "3");
    assert_eq!(host.findings(), [""; 0]);
}

#[test]
fn strict_ordering_and_an_iommu_that_translates() {
    let mut host = StandIn::rdma();
    host.facts.relaxed_ordering = false;
    host.pci("iommu_group/type", "DMA-FQ");
    assert_eq!(host.findings(), ["note ordering-absent", "note iommu-translates mlx5_0"]);
    let parameter = if cfg!(target_arch = "aarch64") { "iommu.passthrough=1" } else { "iommu=pt" };
    let mend = host.mend("iommu-translates");
    assert!(mend.starts_with(&format!("grubby --update-kernel=ALL --args={parameter} ")), "{mend}");
    host.set("NCCL_IB_PCI_RELAXED_ORDERING", "0");
    let found = "note ordering-strict NCCL_IB_PCI_RELAXED_ORDERING";
    assert_eq!(host.findings(), [found, "note iommu-translates mlx5_0"]);
}

#[test]
fn rdma_devices_that_a_setting_hides() {
    let mut host = StandIn::rdma();
    host.set("NCCL_IB_DISABLE", "1");
    assert_eq!(host.findings(), ["note rdma-disabled NCCL_IB_DISABLE"]);
}

#[test]
fn devices_that_a_list_leaves_out_are_not_judged() {
    let mut host = StandIn::rdma();
    host.port(1, "state", "1: DOWN");
    host.tree.file("sys/class/infiniband/mlx5_1/device/iommu_group/type", "DMA");
    host.facts.libibverbs = Libibverbs::Lists(vec!["mlx5_0".to_owned()]);
    assert_eq!(host.findings().len(), 3);
    host.set("NCCL_IB_HCA", "^=mlx5_1");
    assert_eq!(host.findings(), [""; 0]);
    let report = host.examine();
    assert!(report.lines()[0].contains(&"mlx5_1 port 1: NCCL_IB_HCA leaves it out"));
    host.set("NCCL_IB_HCA", "mlx5_1");
    assert!(host.findings().contains(&"bad port-down mlx5_1 port 1".to_owned()));
}

#[test]
fn networks_that_are_neither_infiniband_nor_roce() {
    let host = StandIn::rdma();
    host.tree.file("sys/class/infiniband/mlx5_0/node_type", "4: RNIC");
    host.tree.file("sys/class/infiniband/mlx5_1/node_type", "7: <unknown>");
    host.port(1, "link_layer", "Unknown");
    // Neither is judged by the rules of RoCE.
    for card in [0, 1] {
        host.remove(&format!("sys/class/infiniband/mlx5_{card}/ports/1/gids"));
        host.remove(&format!("dev/infiniband/uverbs{card}"));
    }
    let found = ["note fabric-foreign mlx5_0 port 1", "note fabric-foreign mlx5_1 port 1"];
    assert_eq!(host.findings(), found);
    let report = host.examine();
    let finding = report.finding("fabric-foreign");
    assert!(finding.what.starts_with("it speaks iWARP, "), "{}", finding.what);
    assert!(finding.mend.starts_with("export NCCL_IB_HCA=^=mlx5_0 "), "{}", finding.mend);
}

#[test]
fn two_cards_in_a_subnet_where_the_kernel_answers_for_both_on_either() {
    let mut host = StandIn::rdma();
    let conf = "proc/sys/net/ipv4/conf";
    for name in ["all", "roce0", "roce1"] {
        host.tree.file(&format!("{conf}/{name}/arp_ignore"), "0");
    }
    assert_eq!(host.findings(), ["warn gid-shared-subnet mlx5_1 port 1"]);
    let report = host.examine();
    let finding = report.finding("gid-shared-subnet");
    assert!(finding.what.contains("it and mlx5_0 port 1 have"));
    assert!(finding.mend.contains("/etc/sysctl.d"), "{}", finding.mend);
    host.tree.file(&format!("{conf}/all/arp_ignore"), "1");
    assert_eq!(host.findings(), [""; 0]);
    host.tree.file(&format!("{conf}/all/arp_ignore"), "0");
    let last = host.facts.interfaces.len() - 1;
    host.facts.interfaces[last].addresses[0].prefix_len = 32;
    host.facts.interfaces[last - 1].addresses[0].prefix_len = 32;
    assert_eq!(host.findings(), [""; 0]);
}
