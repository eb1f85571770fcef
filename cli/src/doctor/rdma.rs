//! RDMA devices as the kernel's files show them.

use std::net::Ipv6Addr;

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
    pub(crate) is_infiniband: bool,
    /// `100 Gb/sec (4X EDR)`.
    pub(crate) rate: String,
    /// The entries of the GID table that are in use.
    pub(crate) gids: Vec<Gid>,
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

    fn read(host: &Host, name: String) -> RdmaDevice {
        let numbers = host.sys.names(&format!("class/infiniband/{name}/ports"));
        let numbers = numbers.iter().filter_map(|number| number.parse().ok());
        let ports = numbers.map(|number| RdmaPort::read(host, &name, number)).collect();
        RdmaDevice { name, ports }
    }

    /// The path of a file of the device's PCI device, below `/sys`.
    pub(crate) fn pci_file(&self, file: &str) -> String {
        format!("class/infiniband/{}/device/{file}", self.name)
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
        RdmaPort {
            number,
            title: format!("{device} port {number}"),
            state: word("state"),
            phys_state: word("phys_state"),
            is_infiniband: text("link_layer") == "InfiniBand",
            rate: text("rate"),
            gids: host.sys.names(&format!("{path}/gids")).into_iter().filter_map(gid).collect(),
        }
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
