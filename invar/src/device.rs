//! Devices: what a host has, and an open one.

use std::fmt;
use std::fs::File;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Weak};

use invar_core::nic::{Gid, LinkLayer, Mtu, NicError};
use invar_core::param::{AddressFamily, TransportChoice};
use invar_linux::interface::Interface;
use invar_linux::soft::{self, SoftConfig, SoftNic};

use crate::error::Kind;
use crate::raw::{Adapter, Registrations, adapt};
use crate::{Error, Settings};

/// Where RoCEv2 packets go by its specification (IBTA Annex A17), and so where every peer sends
/// that is not told otherwise.
pub const ROCE_UDP_PORT: u16 = 4791;

/// What a device is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The RoCEv2 NIC in software, over UDP.
    Soft,
}

impl DeviceKind {
    /// Whether `INVAR_TRANSPORT` allows it.
    pub(crate) fn is_of(self, transport: TransportChoice) -> bool {
        match (transport, self) {
            (TransportChoice::Auto | TransportChoice::Soft, DeviceKind::Soft) => true,
            (TransportChoice::Ib | TransportChoice::Socket, DeviceKind::Soft) => false,
        }
    }
}

/// As `INVAR_TRANSPORT` names it.
impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::Soft => "soft",
        })
    }
}

/// A device that this host has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name: `soft0`.
    pub name: String,
    /// What it is made of.
    pub kind: DeviceKind,
    /// The network interface that it is on.
    pub netdev: String,
    /// The address that peers reach it by.
    pub address: IpAddr,
    /// All addresses that it could be opened at.
    pub addresses: Vec<IpAddr>,
    /// The global identifier that stands for `address`.
    pub gid: Gid,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Largest path MTU.
    pub mtu: Mtu,
    /// Megabits a second, where the interface tells.
    pub speed_mbps: Option<u32>,
    /// Whether there is a link.
    pub up: bool,
    /// The UDP port where packets come in; `None` before it is open: it takes one that is free.
    pub udp_port: Option<u16>,
    /// Its place on the PCI bus; a device in software has none.
    pub pci_path: Option<String>,
    /// Buffers of a grouped receive.
    pub recvs_max: usize,
}

/// An open device; clones are the same one. It closes with the last of its comms and regions.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    info: DeviceInfo,
    // They end before the adapter.
    registrations: Registrations,
    adapter: Arc<dyn Adapter>,
    /// Where the device is one: only it sees its packets.
    soft: Option<SoftNic>,
}

impl Device {
    /// What this host has, in a stable order, loopback last.
    pub fn list() -> Result<Vec<DeviceInfo>, Error> {
        let interfaces = Interface::list().map_err(listing)?;
        let configs = soft::devices(AddressFamily::Any).map_err(listing)?;
        Ok(configs.iter().filter_map(|config| describe(config, &interfaces)).collect())
    }

    /// Opens a device by its name.
    pub fn open(name: &str) -> Result<Self, Error> {
        let devices = Self::list()?;
        match devices.iter().find(|info| info.name == name) {
            Some(info) => Self::open_soft(info, scoped(info, SocketAddr::new(info.address, 0))?),
            None => Err(no_device(name, &devices)),
        }
    }

    /// Opens the device that has this address, at this address. The port is where packets come in:
    /// 0 for any that is free, which peers learn while they connect; [`ROCE_UDP_PORT`] for peers
    /// that take it for granted.
    pub fn open_at(addr: SocketAddr) -> Result<Self, Error> {
        let address = addr.ip();
        let devices = Self::list()?;
        // Any address of 127.0.0.0/8 is on loopback, though only one is listed.
        let holder = Interface::holding(address).map_err(listing)?;
        let has = |info: &&DeviceInfo| holder.as_ref().is_some_and(|i| i.name == info.netdev);
        match devices.iter().find(has) {
            Some(info) => Self::open_soft(info, scoped(info, addr)?),
            None => Err(no_device(&address.to_string(), &devices)),
        }
    }

    /// Opens a device of [`Choice`](crate::Choice), where peers with these settings find it.
    pub fn open_for(info: &DeviceInfo, settings: &Settings) -> Result<Self, Error> {
        let addr = SocketAddr::new(info.address, settings.udp_port());
        Self::open_soft(info, scoped(info, addr)?)
    }

    fn open_soft(info: &DeviceInfo, addr: SocketAddr) -> Result<Self, Error> {
        let nic = SoftNic::open(&SoftConfig::new(&info.name, addr))
            .map_err(|error| Error::io(format_args!("opening {} at {addr}", info.name), error))?;
        let failed = |source: NicError| Kind::Nic { device: info.name.clone(), source };
        let adapter = adapt(nic.clone()).map_err(failed)?;
        let port = adapter.port().map_err(failed)?;
        let info = DeviceInfo {
            address: addr.ip(),
            gid: port.gid,
            link_layer: port.link_layer,
            mtu: port.active_mtu,
            udp_port: Some(port.udp_port),
            ..info.clone()
        };
        log::info!(
            "{}: {} on {}, {} UDP port {}, path MTU {}",
            info.name,
            info.kind,
            info.netdev,
            info.address,
            port.udp_port,
            info.mtu.bytes()
        );
        let (registrations, soft) = (Registrations::new(), Some(nic));
        Ok(Device(Arc::new(Inner { info, registrations, adapter, soft })))
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Writes the packets of a software NIC from now on into a pcap file, as [`SoftNic::capture`].
    pub fn capture(&self, file: File) -> Result<(), Error> {
        self.soft()?.capture(file).map_err(capturing)
    }

    /// Ends [`Device::capture`], and says whether all packets are in the file.
    pub fn end_capture(&self) -> Result<(), Error> {
        self.soft()?.end_capture().map_err(capturing)
    }

    fn soft(&self) -> Result<&SoftNic, Error> {
        let DeviceInfo { name, kind, .. } = self.info();
        let refused =
            || Kind::Usage(format!("{name}: only a software NIC shows its packets, not {kind}"));
        self.0.soft.as_ref().ok_or_else(|| refused().into())
    }

    pub(crate) fn adapter(&self) -> &dyn Adapter {
        &*self.0.adapter
    }

    pub(crate) fn registrations(&self) -> &Registrations {
        &self.0.registrations
    }

    /// For who opens a device only where it is not open yet.
    pub fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }

    pub(crate) fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn failed(&self, source: NicError) -> Error {
        Kind::Nic { device: self.info().name.clone(), source }.into()
    }

    /// The device's own address, with its scope and port 0.
    pub(crate) fn socket_addr(&self) -> Result<SocketAddr, Error> {
        scoped(self.info(), SocketAddr::new(self.info().address, 0))
    }
}

/// A device that is open as long as somebody else keeps it.
#[derive(Clone, Default)]
pub struct WeakDevice(Weak<Inner>);

impl WeakDevice {
    /// The device, if it still is open.
    pub fn upgrade(&self) -> Option<Device> {
        self.0.upgrade().map(Device)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info().fmt(f)
    }
}

fn describe(config: &SoftConfig, interfaces: &[Interface]) -> Option<DeviceInfo> {
    let address = config.address.ip();
    let has = |interface: &&Interface| interface.addresses.iter().any(|a| a.ip == address);
    let interface = interfaces.iter().find(has)?;
    Some(DeviceInfo {
        name: config.name.clone(),
        kind: DeviceKind::Soft,
        netdev: interface.name.clone(),
        address,
        addresses: interface.addresses.iter().map(|a| a.ip).collect(),
        gid: Gid::from(address),
        link_layer: LinkLayer::Ethernet,
        mtu: interface.path_mtu()?,
        speed_mbps: interface.speed_mbps,
        up: interface.up,
        udp_port: None,
        pci_path: None,
        recvs_max: invar_core::fifo::RECVS_MAX,
    })
}

/// A link-local address is one only together with its interface.
fn scoped(info: &DeviceInfo, addr: SocketAddr) -> Result<SocketAddr, Error> {
    match addr.ip() {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            let interfaces = Interface::list().map_err(listing)?;
            let index = interfaces.iter().find(|i| i.name == info.netdev).map_or(0, |i| i.index);
            Ok(SocketAddrV6::new(v6, addr.port(), 0, index).into())
        }
        _ => Ok(addr),
    }
}

fn listing(error: std::io::Error) -> Error {
    Error::io("listing the network interfaces", error)
}

fn capturing(error: std::io::Error) -> Error {
    Error::io("capturing packets", error)
}

fn no_device(name: &str, devices: &[DeviceInfo]) -> Error {
    let one = |info: &DeviceInfo| format!("{} ({} on {})", info.name, info.address, info.netdev);
    let there_is = match devices {
        [] => "none".to_owned(),
        _ => devices.iter().map(one).collect::<Vec<_>>().join(", "),
    };
    Kind::NoDevice { name: name.to_owned(), there_is }.into()
}
