//! Devices: what a host has, and an open one.

mod rdma;

use std::fmt;
use std::fs::File;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::Path;
use std::sync::{Arc, Weak};

use invar_core::device::data_access;
use invar_core::nic::{Access, Gid, LinkLayer, Mtu, Nic, NicError, PortState};
use invar_core::param::{AddressFamily, PortRange};
use invar_linux::interface::{Found, Interface};
use invar_linux::socket::SocketDevice;
use invar_linux::soft::{self, SoftConfig, SoftNic};

use crate::connect::interfaces_for;
use crate::error::Kind;
use crate::raw::{Adapter, HostNic, OverTcp, Registrations, adapt, adapt_in};
use crate::settings::RdmaRules;
use crate::{Error, Settings};

/// Where RoCEv2 packets go by its specification (IBTA Annex A17), and so where every peer sends
/// that is not told otherwise.
pub const ROCE_UDP_PORT: u16 = 4791;

/// What a device is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A port of an RDMA device, through libibverbs.
    Verbs,
    /// A network interface, over TCP.
    Socket,
    /// The RoCEv2 NIC in software, over UDP.
    Soft,
    /// One that the caller brought ([`Device::on`]).
    Custom,
}

/// As `INVAR_TRANSPORT` names it.
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
    /// Its name: `mlx5_0`, `mlx5_0:2` for a second port, `soft0`.
    pub name: String,
    /// What it is made of.
    pub kind: DeviceKind,
    /// The network interface that it is on; empty where an RDMA device does not tell.
    pub netdev: String,
    /// The address by which peers reach this host to connect to the device: its own, or where an
    /// RDMA device has none, that of the interface which NCCL would take.
    pub address: IpAddr,
    /// All addresses that it could be opened at.
    pub addresses: Vec<IpAddr>,
    /// The global identifier by which packets find it.
    pub gid: Gid,
    /// Its place in the port's table; a device in software has one at a time, 0.
    pub gid_index: u8,
    /// Why this one of the table; empty for a device in software.
    pub gid_why: String,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Largest path MTU.
    pub mtu: Mtu,
    /// Payload bytes of the longer packets that software NICs may agree on; 0 for none.
    pub long_mtu_bytes: u32,
    /// Megabits a second, where the interface tells.
    pub speed_mbps: Option<u32>,
    /// Whether there is a link.
    pub up: bool,
    /// The UDP port where packets come in; `None` before it is open: it takes one that is free.
    pub udp_port: Option<u16>,
    /// Its place on the PCI bus; a device in software has none.
    pub pci_path: Option<String>,
    /// Global identifier of its card; a device in software has none.
    pub guid: Option<u64>,
    /// Number of the port on its card, from 1.
    pub card_port: u32,
    /// Queue pairs that it can have, where there is a limit.
    pub qps_max: Option<u32>,
    /// Buffers of a grouped receive.
    pub recvs_max: usize,
    /// Whether memory is registered with PCIe relaxed ordering.
    pub relaxed_ordering: bool,
}

/// What a host has, and what of it cannot be used.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Survey {
    /// As [`Device::list`] gives them.
    pub devices: Vec<DeviceInfo>,
    /// RDMA devices that are left out, or why there are none: a line for each.
    pub left_out: Vec<String>,
}

/// An open device; clones are the same one. It closes with the last of its comms and regions.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    info: DeviceInfo,
    data_access: Access,
    // They end before the adapter.
    registrations: Registrations,
    adapter: Arc<dyn Adapter>,
    /// Where the device is one: only it sees its packets.
    soft: Option<SoftNic>,
}

impl Device {
    /// What this host has and the environment allows, in a stable order: RDMA devices, then those
    /// in software, loopback last.
    pub fn list() -> Result<Vec<DeviceInfo>, Error> {
        Ok(Self::survey(&Settings::from_env()?)?.devices)
    }

    /// The same by these settings (`NCCL_IB_DISABLE`, `NCCL_IB_HCA`, `NCCL_IB_GID_INDEX`, …), and
    /// what is left out.
    ///
    /// # Errors
    /// A setting that cannot be; or one that leaves no RDMA device where otherwise there are some.
    pub fn survey(settings: &Settings) -> Result<Survey, Error> {
        settings.usable()?;
        let Survey { mut devices, left_out } = rdma::survey(settings)?;
        let interfaces = Interface::list().map_err(listing)?;
        let configs = soft::devices(AddressFamily::Any).map_err(listing)?;
        let found = interfaces_for(settings, &interfaces).unwrap_or_default();
        let sysfs = settings.gpu.sysfs.root();
        devices.extend(found.into_iter().map(|found| describe_socket(found, sysfs)));
        devices.extend(configs.iter().filter_map(|config| describe(config, &interfaces, sysfs)));
        Ok(Survey { devices, left_out })
    }

    /// Opens a device by its name, as [`Device::open_for`] does.
    pub fn open(name: &str) -> Result<Self, Error> {
        let settings = Settings::from_env()?;
        let survey = Self::survey(&settings)?;
        match survey.devices.iter().find(|info| info.name == name) {
            Some(info) => Self::open_for(info, &settings),
            None => Err(no_device(name, &survey)),
        }
    }

    /// Opens the device in software that has this address, at this address. The port is where
    /// packets come in: 0 for one of `INVAR_SOFT_PORT`, which peers learn while they connect;
    /// [`ROCE_UDP_PORT`] for peers that take it for granted.
    pub fn open_at(addr: SocketAddr) -> Result<Self, Error> {
        Self::open_soft_at(addr, &Settings::from_env()?)
    }

    /// Opens the device in software that has this address where peers with these settings find it.
    pub fn open_at_for(address: IpAddr, settings: &Settings) -> Result<Self, Error> {
        Self::open_soft_at(SocketAddr::new(address, 0), settings)
    }

    fn open_soft_at(addr: SocketAddr, settings: &Settings) -> Result<Self, Error> {
        let address = addr.ip();
        let mut survey = Self::survey(settings)?;
        survey.devices.retain(|info| info.kind == DeviceKind::Soft);
        // Any address of 127.0.0.0/8 is on loopback, though only one is listed.
        let holder = Interface::holding(address).map_err(listing)?;
        let has = |info: &&DeviceInfo| holder.as_ref().is_some_and(|i| i.name == info.netdev);
        match survey.devices.iter().find(has) {
            Some(info) => Self::open_soft(info, scoped(info, addr)?, settings.udp_ports()),
            None => Err(no_device(&address.to_string(), &survey)),
        }
    }

    /// Opens a device that was listed, where peers with these settings find it.
    pub fn open_for(info: &DeviceInfo, settings: &Settings) -> Result<Self, Error> {
        match info.kind {
            DeviceKind::Verbs => return Self::open_rdma(info, &settings.rdma),
            DeviceKind::Socket => return Self::open_socket(info, settings),
            DeviceKind::Soft => {}
            DeviceKind::Custom => return Err(no_device(&info.name, &Survey::default())),
        }
        let addr = SocketAddr::new(info.address, 0);
        Self::open_soft(info, scoped(info, addr)?, settings.udp_ports())
    }

    /// A device on a NIC and in a protection domain that the caller brings. It listens at `address`.
    ///
    /// # Errors
    /// What the NIC says.
    pub fn on<N: HostNic>(nic: N, pd: N::Pd, address: IpAddr) -> Result<Self, Error> {
        let name = nic.name().to_owned();
        let failed = |source: NicError| Kind::Nic { device: name.clone(), source };
        let port = nic.query_port().map_err(failed)?;
        let info = DeviceInfo {
            name: name.clone(),
            kind: DeviceKind::Custom,
            netdev: String::new(),
            address,
            addresses: vec![address],
            gid: port.gid,
            gid_index: port.gid_index,
            gid_why: String::new(),
            link_layer: port.link_layer,
            mtu: port.active_mtu,
            long_mtu_bytes: port.long_mtu_bytes,
            speed_mbps: Some(port.speed_mbps),
            up: port.state == PortState::Active,
            udp_port: Some(port.udp_port).filter(|udp_port| *udp_port != 0),
            pci_path: None,
            guid: None,
            card_port: port.port_num.into(),
            qps_max: None,
            recvs_max: invar_core::fifo::RECVS_MAX,
            relaxed_ordering: false,
        };
        let adapter = adapt_in(nic, pd);
        let (registrations, data_access) = (Registrations::new(), data_access(0, false));
        Ok(Device(Arc::new(Inner { info, data_access, registrations, adapter, soft: None })))
    }

    fn open_rdma(info: &DeviceInfo, rules: &RdmaRules) -> Result<Self, Error> {
        let adapter = rdma::open(info, rules)?;
        let data_access = rdma::data_access(rules);
        let (info, registrations) = (info.clone(), Registrations::new());
        let inner = Inner { info, data_access, registrations, adapter, soft: None };
        Ok(Device(Arc::new(inner)))
    }

    /// Opens the device that is TCP on an interface, at this address.
    pub(crate) fn open_socket_on(found: Found<'_>, settings: &Settings) -> Result<Self, Error> {
        Self::open_for(&describe_socket(found, settings.gpu.sysfs.root()), settings)
    }

    fn open_socket(info: &DeviceInfo, settings: &Settings) -> Result<Self, Error> {
        let interface = Interface::list().map_err(listing)?;
        let interface = interface.into_iter().find(|interface| interface.name == info.netdev);
        let gone = || no_device(&info.name, &Survey::default());
        let interface = interface.ok_or_else(gone)?;
        let address = scoped(info, SocketAddr::new(info.address, 0))?;
        let device = SocketDevice { interface, address };
        let layout = device.layout(
            settings.socket_nthreads,
            settings.nsocks_perthread,
            settings.gpu.sysfs.root(),
        );
        let congestion = settings.socket_congestion()?;
        let adapter = Arc::new(OverTcp::new(device, layout, congestion));
        let (info, registrations) = (info.clone(), Registrations::new());
        let data_access = data_access(0, false);
        Ok(Device(Arc::new(Inner { info, data_access, registrations, adapter, soft: None })))
    }

    /// At the port of `addr`, or where it has none, at one of `ports`.
    fn open_soft(info: &DeviceInfo, addr: SocketAddr, ports: PortRange) -> Result<Self, Error> {
        let nic = SoftNic::open(&SoftConfig { ports, ..SoftConfig::new(&info.name, addr) })
            .map_err(|error| {
                Error::io(format_args!("opening {} at {}", info.name, addr.ip()), error)
            })?;
        let failed = |source: NicError| Kind::Nic { device: info.name.clone(), source };
        let adapter = adapt(nic.clone()).map_err(failed)?;
        let port = nic.query_port().map_err(failed)?;
        let info = DeviceInfo {
            address: addr.ip(),
            gid: port.gid,
            link_layer: port.link_layer,
            mtu: port.active_mtu,
            long_mtu_bytes: port.long_mtu_bytes,
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
        let data_access = data_access(0, false);
        Ok(Device(Arc::new(Inner { info, data_access, registrations, adapter, soft })))
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

    /// What the device may do with memory of the user's.
    pub(crate) fn data_access(&self) -> Access {
        self.0.data_access
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

fn describe_socket(found: Found<'_>, sysfs: &Path) -> DeviceInfo {
    let Found { interface, addr } = found;
    let device = SocketDevice { interface: interface.clone(), address: addr };
    let pci_path = device.pci_path(sysfs).map(|path| path.to_string_lossy().into_owned());
    DeviceInfo {
        name: interface.name.clone(),
        kind: DeviceKind::Socket,
        netdev: interface.name.clone(),
        address: addr.ip(),
        addresses: interface.addresses.iter().map(|a| a.ip).collect(),
        gid: Gid::from(addr.ip()),
        gid_index: 0,
        gid_why: String::new(),
        link_layer: LinkLayer::Ethernet,
        mtu: interface.path_mtu().unwrap_or_default(),
        long_mtu_bytes: 0,
        speed_mbps: interface.speed_mbps(sysfs),
        up: interface.up,
        udp_port: None,
        pci_path,
        guid: None,
        card_port: 1,
        qps_max: None,
        recvs_max: invar_core::fifo::RECVS_MAX,
        relaxed_ordering: false,
    }
}

fn describe(config: &SoftConfig, interfaces: &[Interface], sysfs: &Path) -> Option<DeviceInfo> {
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
        gid_index: 0,
        gid_why: String::new(),
        link_layer: LinkLayer::Ethernet,
        mtu: interface.path_mtu()?,
        long_mtu_bytes: interface.long_mtu_bytes(address),
        speed_mbps: interface.speed_mbps(sysfs),
        up: interface.up,
        udp_port: None,
        pci_path: None,
        guid: None,
        card_port: 1,
        qps_max: None,
        recvs_max: invar_core::fifo::RECVS_MAX,
        relaxed_ordering: false,
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

/// No device has this name, or address.
pub(crate) fn no_device(name: &str, survey: &Survey) -> Error {
    let one = |info: &DeviceInfo| format!("{} ({} on {})", info.name, info.address, info.netdev);
    let mut there_is = match survey.devices.as_slice() {
        [] => "none".to_owned(),
        devices => devices.iter().map(one).collect::<Vec<_>>().join(", "),
    };
    for line in &survey.left_out {
        there_is += "; left out: ";
        there_is += line;
    }
    Kind::NoDevice { name: name.to_owned(), there_is }.into()
}
