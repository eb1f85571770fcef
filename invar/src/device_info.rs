//! Descriptions of this host's devices, whether they are open or not.

use std::fmt;
use std::net::IpAddr;

use invar_core::nic::{Gid, LinkLayer, Mtu};

/// The UDP port of RoCEv2 (IBTA Annex A17). A peer that learns no other port sends its packets there.
pub const ROCE_UDP_PORT: u16 = 4791;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A port of an RDMA device, through libibverbs.
    Verbs,
    /// TCP on a network interface.
    Socket,
    /// The software NIC on a network interface: RoCEv2 over UDP.
    Soft,
    /// A NIC that the program brings ([`Device::on`](crate::Device::on), [`provide`](crate::provide)).
    Custom,
}

/// The name of the kind in `INVAR_TRANSPORT`.
impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::Verbs => "ib",
            DeviceKind::Socket => "socket",
            DeviceKind::Soft => "soft",
            DeviceKind::Custom => "custom",
        })
    }
}

/// A device that this host has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name: `mlx5_0`, `mlx5_0:2` for a second port, `soft0`.
    pub name: String,
    /// The kind of device.
    pub kind: DeviceKind,
    /// The network interface of the device; empty if an RDMA device does not name one.
    pub netdev: String,
    /// The address at which peers connect to the device over TCP. An RDMA device without an address
    /// has that of the interface which NCCL would take.
    pub address: IpAddr,
    /// All addresses at which the device can be opened.
    pub addresses: Vec<IpAddr>,
    /// The global identifier to which packets for the device are sent.
    pub gid: Gid,
    /// The index of the GID in the port's table; 0 for a device in software.
    pub gid_index: u8,
    /// The reason why this GID of the table was chosen; empty for a device in software.
    pub gid_why: String,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// The largest path MTU.
    pub mtu: Mtu,
    /// Payload bytes of the longer packets that two software NICs may agree on; 0 if there are none.
    pub long_mtu_bytes: usize,
    /// Megabits a second; `None` if the interface does not tell.
    pub speed_mbps: Option<u32>,
    /// Whether the port has a link.
    pub up: bool,
    /// The UDP port at which packets arrive; `None` before the device is open.
    pub udp_port: Option<u16>,
    /// The place of the device on the PCI bus; `None` if it has no PCI device.
    pub pci_path: Option<String>,
    /// The global identifier of the card; `None` for a device in software.
    pub guid: Option<u64>,
    /// The number of the port on the card, from 1.
    pub card_port: u32,
    /// The most queue pairs of the device; `None` if there is no limit.
    pub qps_max: Option<u32>,
    /// The rail of an RDMA port in the network, if `NCCL_IB_HCA` tells it; at least 0. Devices that work together
    /// have one if all have the same.
    pub rail_id: Option<i16>,
    /// The plane of an RDMA port in the network, as for the rail.
    pub plane_id: Option<i16>,
    /// The most buffers of one grouped receive.
    pub recvs_max: usize,
    /// Whether the device registers memory with PCIe relaxed ordering.
    pub relaxed_ordering: bool,
    /// The devices whose ports carry each connection together (`INVAR_RAILS`), the standby ones last; empty for
    /// a single device.
    pub rails: Vec<DeviceInfo>,
    /// Whether the device carries data only while no other rail works.
    pub standby: bool,
}

/// The devices of a host, and the devices that cannot be used.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Survey {
    /// All devices, in the order of [`Device::list`](crate::Device::list).
    pub devices: Vec<DeviceInfo>,
    /// One line for each provided NIC or RDMA device that is left out, or for the reason why there are no
    /// RDMA devices.
    pub left_out: Vec<String>,
}
