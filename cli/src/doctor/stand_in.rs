//! A host that tests make up.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use invar_linux::interface::{Interface, InterfaceAddress};
use invar_testkit::sysfs::Tree;

use super::checks::CHECKS;
use super::chosen;
use super::host::{Host, Libibverbs, Lookup, System};
use super::report::Report;

/// The folder of the first card's root port.
const ROOT_PORT: &str = "sys/devices/pci0000:3a/0000:3a:00.0";

/// A host. Every part is well until a test breaks it.
pub(crate) struct StandIn {
    pub(crate) tree: Tree,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) facts: Facts,
}

/// The system's answers.
#[derive(Clone)]
pub(crate) struct Facts {
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) lookup: Lookup,
    pub(crate) memlock: Option<u64>,
    pub(crate) libibverbs: Libibverbs,
    pub(crate) path_mtus: BTreeMap<(String, u8), u32>,
    pub(crate) relaxed_ordering: bool,
    pub(crate) takes_congestion: bool,
    pub(crate) forces_buffers: bool,
    /// The error of each attempt to open a device's file.
    pub(crate) open_errno: Option<i32>,
    pub(crate) packet_filter: Result<String, String>,
}

impl System for Facts {
    fn interfaces(&self) -> io::Result<Vec<Interface>> {
        Ok(self.interfaces.clone())
    }

    fn hostname(&self) -> String {
        "node7".to_owned()
    }

    fn resolve(&self, name: &str) -> Lookup {
        assert_eq!(name, "node7");
        self.lookup.clone()
    }

    fn memlock_limit_bytes(&self) -> Option<u64> {
        self.memlock
    }

    fn libibverbs(&self) -> Libibverbs {
        self.libibverbs.clone()
    }

    fn path_mtus(&self) -> BTreeMap<(String, u8), u32> {
        self.path_mtus.clone()
    }

    fn has_relaxed_ordering(&self) -> bool {
        self.relaxed_ordering
    }

    fn takes_congestion(&self, _: &str) -> bool {
        self.takes_congestion
    }

    fn forces_buffers(&self) -> bool {
        self.forces_buffers
    }

    fn open(&self, path: &Path) -> io::Result<()> {
        match self.open_errno {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => path.metadata().map(drop),
        }
    }

    fn packet_filter(&self) -> Result<String, String> {
        self.packet_filter.clone()
    }
}

impl StandIn {
    /// A host without RDMA: an interface, loopback, and a kernel with large buffers.
    pub(crate) fn plain() -> StandIn {
        let tree = Tree::empty();
        for (file, text) in [
            ("net/core/rmem_max", "33554432"),
            ("net/core/wmem_max", "33554432"),
            ("net/core/somaxconn", "4096"),
            ("net/ipv4/tcp_rmem", "4096\t131072\t33554432"),
            ("net/ipv4/tcp_wmem", "4096\t16384\t4194304"),
            ("net/ipv4/tcp_allowed_congestion_control", "reno cubic"),
            ("net/ipv4/tcp_available_congestion_control", "reno cubic bbr"),
            ("kernel/osrelease", "6.1.0-18-amd64"),
        ] {
            tree.file(&format!("proc/sys/{file}"), text);
        }
        let facts = Facts {
            interfaces: vec![interface("lo", "127.0.0.1"), interface("eth0", "10.0.0.7")],
            lookup: Lookup::Found(vec!["10.0.0.7".parse().unwrap()]),
            memlock: None,
            libibverbs: Libibverbs::Missing("no libibverbs (libibverbs.so.1: no such file)".into()),
            path_mtus: BTreeMap::new(),
            relaxed_ordering: true,
            takes_congestion: false,
            forces_buffers: false,
            open_errno: None,
            packet_filter: Ok(r#"{"nftables": []}"#.to_owned()),
        };
        StandIn { tree, env: BTreeMap::new(), facts }
    }

    /// A host with two RoCE cards of one model.
    pub(crate) fn rdma() -> StandIn {
        let mut host = StandIn::plain();
        host.facts.libibverbs = Libibverbs::Lists(vec![]);
        host.card(0, "0000:3a:00.0/0000:3b:00.0");
        host.card(1, "0000:3a:01.0/0000:5e:00.0");
        host
    }

    /// Adds `mlx5_NUMBER` at a path below the root complex, with the interface `roceNUMBER`.
    pub(crate) fn card(&mut self, number: u8, path: &str) {
        let (device, netdev) = (format!("mlx5_{number}"), format!("roce{number}"));
        let path = format!("sys/devices/pci0000:3a/{path}");
        let (slot, address) = path.rsplit_once('/').unwrap();
        for (file, text) in [
            ("vendor", "0x15b3"),
            ("device", "0x1017"),
            ("class", "0x020000"),
            ("numa_node", "0"),
            ("current_link_speed", "16.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_speed", "16.0 GT/s PCIe"),
            ("max_link_width", "16"),
            ("iommu_group/type", "identity"),
        ] {
            self.tree.file(&format!("{path}/{file}"), text);
        }
        self.tree.file(&format!("{slot}/max_link_speed"), "16.0 GT/s PCIe");
        self.tree.file(&format!("{slot}/max_link_width"), "16");
        self.tree.file(&format!("{slot}/class"), "0x060400");
        self.tree.link(&format!("sys/bus/pci/devices/{address}"), &path);
        self.tree.link(&format!("sys/class/infiniband/{device}/device"), &path);
        self.tree.link(&format!("{path}/driver"), "sys/bus/pci/drivers/mlx5_core");
        for (file, text) in [
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("link_layer", "Ethernet"),
            ("rate", "100 Gb/sec (4X EDR)"),
        ] {
            self.port(number, file, text);
        }
        self.gid(number, 0, "fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "IB/RoCE v1");
        self.gid(number, 1, "fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "RoCE v2");
        self.gid(
            number,
            2,
            &format!("0000:0000:0000:0000:0000:ffff:0a01:000{}", number + 1),
            "IB/RoCE v1",
        );
        self.gid(
            number,
            3,
            &format!("0000:0000:0000:0000:0000:ffff:0a01:000{}", number + 1),
            "RoCE v2",
        );
        self.tree
            .file(&format!("sys/class/infiniband/{device}/ports/1/gids/4"), &["0000"; 8].join(":"));
        self.tree.file(&format!("sys/class/infiniband_verbs/uverbs{number}/ibdev"), &device);
        self.tree.file(&format!("dev/infiniband/uverbs{number}"), "");
        let mut interface = interface(&netdev, &format!("10.1.0.{}", number + 1));
        interface.mtu = 4200;
        self.facts.interfaces.push(interface);
        self.facts.path_mtus.insert((device.clone(), 1), 4096);
        if let Libibverbs::Lists(names) = &mut self.facts.libibverbs {
            names.push(device);
        }
    }

    /// Writes a file of a card's port.
    pub(crate) fn port(&self, card: u8, file: &str, text: &str) {
        self.tree.file(&format!("sys/class/infiniband/mlx5_{card}/ports/1/{file}"), text);
    }

    /// Writes an entry of a card's GID table.
    pub(crate) fn gid(&self, card: u8, index: u8, gid: &str, kind: &str) {
        self.port(card, &format!("gids/{index}"), gid);
        self.port(card, &format!("gid_attrs/types/{index}"), kind);
        self.port(card, &format!("gid_attrs/ndevs/{index}"), &format!("roce{card}"));
    }

    /// Writes a file of the first card.
    pub(crate) fn pci(&self, file: &str, text: &str) {
        self.tree.file(&format!("{ROOT_PORT}/0000:3b:00.0/{file}"), text);
    }

    /// Adds a GPU of NVIDIA at a path below `/sys/devices`, and its driver.
    pub(crate) fn gpu(&self, path: &str) {
        let (_, address) = path.rsplit_once('/').unwrap();
        let path = format!("sys/devices/{path}");
        for (file, text) in [("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", "0")] {
            self.tree.file(&format!("{path}/{file}"), text);
        }
        self.tree.link(&format!("sys/bus/pci/devices/{address}"), &path);
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15";
        self.tree.file("proc/driver/nvidia/version", version);
        self.tree.file("dev/nvidiactl", "");
    }

    /// Removes a file or a folder.
    pub(crate) fn remove(&self, path: &str) {
        let path = self.tree.root().join(path);
        let removed = match path.is_dir() {
            true => std::fs::remove_dir_all(path),
            false => std::fs::remove_file(path),
        };
        removed.expect("to be there");
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    /// The host as it is now.
    pub(crate) fn host(&self) -> Host {
        Host::at(Some(self.tree.root()), self.env.clone(), Box::new(self.facts.clone()))
    }

    /// Runs all checks.
    pub(crate) fn examine(&self) -> Report {
        let report = super::examine(&self.host(), &chosen(&[]).unwrap());
        assert_eq!(CHECKS.len(), report_checks(&report));
        report
    }

    /// Runs all checks, and returns their findings as `severity id subject`.
    pub(crate) fn findings(&self) -> Vec<String> {
        self.examine().short()
    }

    /// Returns the command that mends a finding.
    pub(crate) fn mend(&self, id: &str) -> String {
        self.examine().finding(id).mend.clone()
    }

    /// Returns the sentence of a finding.
    pub(crate) fn what(&self, id: &str) -> String {
        self.examine().finding(id).what.clone()
    }
}

fn report_checks(report: &Report) -> usize {
    let json = report.as_json("node7").unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    json["checks"].as_array().unwrap().len()
}

/// An interface that is up and has an address.
pub(crate) fn interface(name: &str, ip: &str) -> Interface {
    let ip: IpAddr = ip.parse().expect("an address");
    let prefix_len = if ip.is_loopback() { 8 } else { 24 };
    Interface {
        name: name.to_owned(),
        index: 1,
        up: true,
        loopback: ip.is_loopback(),
        mtu: 1500,
        addresses: vec![InterfaceAddress { ip, prefix_len, scope_id: 0 }],
    }
}
