//! RDMA devices as the kernel's files show them.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use invar_core::device::NameFilter;

use super::host::Host;

/// A device of the kernel.
pub(crate) struct RdmaDevice {
    pub(crate) name: String,
    pub(crate) ports: Vec<RdmaPort>,
}

/// A port of a device.
pub(crate) struct RdmaPort {
    pub(crate) number: u8,
    /// `mlx5_0 port 1`.
    pub(crate) title: String,
    /// `DOWN`, `INIT`, `ARMED`, `ACTIVE`; empty if it is unknown.
    pub(crate) state: String,
    /// `LinkUp`, `Disabled`, `Polling`; empty if it is unknown.
    pub(crate) phys_state: String,
    pub(crate) fabric: Fabric,
    /// `100 Gb/sec (4X EDR)`.
    pub(crate) rate: String,
    /// The entries of the GID table that are in use.
    pub(crate) gids: Vec<Gid>,
}

/// The network of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fabric {
    InfiniBand,
    Roce,
    Iwarp,
    /// A network of a vendor's own, such as Amazon's EFA.
    Other,
}

/// An entry of a GID table.
pub(crate) struct Gid {
    pub(crate) index: u8,
    pub(crate) address: Ipv6Addr,
    pub(crate) is_roce_v2: bool,
    /// The network interface; empty if the kernel does not tell.
    pub(crate) netdev: String,
}

impl RdmaDevice {
    /// All devices of the kernel.
    pub(crate) fn all(host: &Host) -> Vec<RdmaDevice> {
        host.rdma_devices().into_iter().map(|name| RdmaDevice::read(host, name)).collect()
    }

    /// The devices that Invar and NCCL should use, with their ports: all that fit. A container sees the devices of
    /// its host in `/sys`. If the container has files of some devices, only those devices are used.
    pub(crate) fn used(host: &Host) -> Vec<RdmaDevice> {
        let mut devices = RdmaDevice::fitting(host);
        if !host.is_container() {
            return devices;
        }
        let files = RdmaDevice::files(host);
        let has_file = |device: &RdmaDevice| {
            files.get(&device.name).is_some_and(|file| host.dev.has(&format!("infiniband/{file}")))
        };
        if devices.iter().any(has_file) {
            devices.retain(|device| !files.contains_key(&device.name) || has_file(device));
        }
        devices
    }

    /// The devices with ports of a network that Invar and NCCL know, if `NCCL_IB_HCA` takes them.
    pub(crate) fn fitting(host: &Host) -> Vec<RdmaDevice> {
        let mut devices = RdmaDevice::taken(host);
        for device in &mut devices {
            device.ports.retain(|port| port.is_infiniband() || port.is_roce());
        }
        devices.retain(|device| !device.ports.is_empty());
        devices
    }

    /// The names of the files in `/dev/infiniband` by which programs reach the devices, by device.
    pub(crate) fn files(host: &Host) -> BTreeMap<String, String> {
        let names = host.sys.names("class/infiniband_verbs").into_iter();
        let device = |name: &str| host.sys.known(&format!("class/infiniband_verbs/{name}/ibdev"));
        names.filter_map(|name| Some((device(&name)?, name))).collect()
    }

    /// The kernel's driver of the device with this name.
    pub(crate) fn driver(host: &Host, name: &str) -> Option<String> {
        host.sys.link_name(&format!("class/infiniband/{name}/device/driver"))
    }

    /// The names of [`RdmaDevice::used`].
    pub(crate) fn names_used(host: &Host) -> Vec<String> {
        RdmaDevice::used(host).into_iter().map(|device| device.name).collect()
    }

    /// The devices and ports that `NCCL_IB_HCA` takes. It takes all if it has no meaning, which the check
    /// `settings` reports.
    pub(crate) fn taken(host: &Host) -> Vec<RdmaDevice> {
        let filter = host.var("NCCL_IB_HCA").unwrap_or_default();
        let filter = NameFilter::parse(filter).unwrap_or_default();
        let mut devices = RdmaDevice::all(host);
        for RdmaDevice { name, ports } in &mut devices {
            ports.retain(|port| filter.matches(name, Some(port.number)));
        }
        devices.retain(|device| !device.ports.is_empty());
        devices
    }

    /// The command after which Invar and NCCL use the devices `names` no more. It keeps what `NCCL_IB_HCA` says of
    /// other devices.
    pub(crate) fn leave_out(host: &Host, names: &[&str]) -> String {
        let out = names.join(",");
        let list = match host.var("NCCL_IB_HCA") {
            Some(list) if list.starts_with('^') => format!("{list},{out}"),
            Some(_) => {
                let mut used = RdmaDevice::names_used(host);
                used.retain(|name| !names.contains(&name.as_str()));
                if used.is_empty() {
                    return "export NCCL_IB_DISABLE=1".to_owned();
                }
                format!("={}", used.join(","))
            }
            None => format!("^={out}"),
        };
        format!("export NCCL_IB_HCA={list}")
    }

    fn read(host: &Host, name: String) -> RdmaDevice {
        let numbers = host.sys.names(&format!("class/infiniband/{name}/ports"));
        let numbers = numbers.iter().filter_map(|number| number.parse().ok());
        let ports = numbers.map(|number| RdmaPort::read(host, &name, number)).collect();
        RdmaDevice { name, ports }
    }

    /// Whether the device is software of the kernel, such as rdma_rxe.
    pub(crate) fn is_software(&self, host: &Host) -> bool {
        !host.sys.has(&self.pci_file(""))
    }

    /// The path of a file of the device's PCI device, below `/sys`.
    pub(crate) fn pci_file(&self, file: &str) -> String {
        format!("class/infiniband/{}/device/{file}", self.name)
    }
}

impl Fabric {
    /// The kernel writes the type as `1: CA` for InfiniBand and RoCE, as `4: RNIC` for iWARP, and as
    /// another number for vendors' own networks.
    fn of(link_layer: &str, node_type: &str) -> Fabric {
        let node_type = node_type.split_once(": ").map_or(node_type, |(_, name)| name);
        match (node_type, link_layer) {
            ("RNIC", _) => Fabric::Iwarp,
            ("" | "CA", "InfiniBand") => Fabric::InfiniBand,
            ("" | "CA", "" | "Ethernet") => Fabric::Roce,
            _ => Fabric::Other,
        }
    }
}

impl RdmaPort {
    fn read(host: &Host, device: &str, number: u8) -> RdmaPort {
        let path = format!("class/infiniband/{device}/ports/{number}");
        let text = |file: &str| host.sys.known(&format!("{path}/{file}")).unwrap_or_default();
        // The kernel writes `4: ACTIVE`.
        let word = |file: &str| {
            let text = text(file);
            text.split_once(": ").map_or(text.clone(), |(_, word)| word.to_owned())
        };
        let gid = |index: String| {
            let address: Ipv6Addr = text(&format!("gids/{index}")).parse().ok()?;
            let kind = text(&format!("gid_attrs/types/{index}"));
            let is_used = !address.is_unspecified();
            is_used.then_some(Gid {
                index: index.parse().ok()?,
                address,
                is_roce_v2: kind == "RoCE v2",
                netdev: text(&format!("gid_attrs/ndevs/{index}")),
            })
        };
        let node_type = host.sys.known(&format!("class/infiniband/{device}/node_type"));
        let node_type = node_type.unwrap_or_default();
        RdmaPort {
            number,
            title: format!("{device} port {number}"),
            state: word("state"),
            phys_state: word("phys_state"),
            fabric: Fabric::of(&text("link_layer"), &node_type),
            rate: text("rate"),
            gids: host.sys.names(&format!("{path}/gids")).into_iter().filter_map(gid).collect(),
        }
    }

    /// The name of the port's device.
    pub(crate) fn device(&self) -> &str {
        self.title.split(' ').next().unwrap_or_default()
    }

    pub(crate) fn is_infiniband(&self) -> bool {
        self.fabric == Fabric::InfiniBand
    }

    pub(crate) fn is_roce(&self) -> bool {
        self.fabric == Fabric::Roce
    }

    pub(crate) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// The network interface of a RoCE port.
    pub(crate) fn netdev(&self) -> Option<&str> {
        self.gids.iter().map(|gid| gid.netdev.as_str()).find(|netdev| !netdev.is_empty())
    }

    /// Gigabits a second of all lanes together.
    pub(crate) fn gbps(&self) -> Option<f64> {
        self.rate.split_whitespace().next()?.parse().ok()
    }
}
