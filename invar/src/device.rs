//! Lists and opens the devices of a host.

mod custom;
mod gpu_buffers;
mod provided;
mod queue_pair;
mod rails;
mod rdma;
mod registration;

use std::fmt;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Weak};

use invar_core::device::data_access;
use invar_core::nic::{Access, Gid, LinkLayer, Nic, NicError};
use invar_core::param::{AddressFamily, PortRange};
use invar_linux::interface::{Found, Interface, has_scope};
use invar_linux::socket::SocketDevice;
use invar_linux::soft::{self, HostDevice, SoftConfig, SoftNic};

use crate::device_info::{DeviceInfo, DeviceKind, Survey};
use crate::error::Kind;
use crate::raw::{Adapter, NicKind, OverTcp, adapt};
use crate::{Error, Settings};
use registration::Registrations;

pub(crate) use gpu_buffers::gpu_allocation;
pub use provided::provide;
pub use queue_pair::queue_pair;
pub use registration::{Keys, deregister, register, register_gpu};

/// An open device. Clones are handles of the same device, which closes with the last of its handles,
/// comms and regions.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    info: DeviceInfo,
    data_access: Access,
    // Registrations end before the adapter.
    registrations: Registrations,
    adapter: Arc<dyn Adapter>,
    /// The software NIC, if the device is one. Only a software NIC sees its packets.
    soft: Option<SoftNic>,
}

impl Device {
    /// Lists the devices of this host that the environment allows, in a stable order: the NICs that the
    /// program [provides](crate::provide), RDMA devices, then devices in software, those on loopback last.
    ///
    /// A program with settings of its own calls [`Device::survey`] instead.
    ///
    /// # Errors
    /// See [`Device::survey`].
    pub fn list() -> Result<Vec<DeviceInfo>, Error> {
        Ok(Self::survey(&Settings::from_env()?)?.devices)
    }

    /// Lists the devices that `settings` allow (`NCCL_IB_DISABLE`, `NCCL_IB_HCA`, `NCCL_IB_GID_INDEX`,
    /// …), and those that are left out.
    ///
    /// # Errors
    /// A setting has a value that is not allowed, or leaves out every RDMA device of the host.
    pub fn survey(settings: &Settings) -> Result<Survey, Error> {
        let mut survey = Self::survey_ports(settings)?;
        rails::join(&mut survey, &settings.rails)?;
        Ok(survey)
    }

    /// Lists the devices, without those of several rails.
    fn survey_ports(settings: &Settings) -> Result<Survey, Error> {
        settings.usable()?;
        let Survey { mut devices, mut left_out } = Survey::default();
        for provided in provided::survey() {
            match provided {
                Ok(info) => devices.push(info),
                Err(error) => left_out.push(error.to_string()),
            }
        }
        let rdma = rdma::survey(settings)?;
        devices.extend(rdma.devices);
        left_out.extend(rdma.left_out);
        let interfaces = interfaces()?;
        let hosted = soft::devices(AddressFamily::Any).map_err(listing)?;
        let hosted = soft::choose(hosted, &settings.soft_devices)
            .map_err(|unknown| Kind::Setting(format!("INVAR_SOFT_DEVICES: {unknown}")))?;
        let found = settings.allowed_interfaces(&interfaces).unwrap_or_default();
        let sysfs = settings.gpu.sysfs.root();
        devices.extend(found.into_iter().map(|found| describe_socket(found, sysfs)));
        devices.extend(hosted.iter().filter_map(|device| describe(device, sysfs)));
        Ok(Survey { devices, left_out })
    }

    /// Opens the device of that name, with the settings of the environment. Names that are joined by `+`
    /// open one device whose connections run over all of these ports. Ports after a `/` are standby, as in
    /// `INVAR_RAILS`.
    ///
    /// A program with settings of its own calls [`Device::find`] and [`Device::open_for`] instead.
    ///
    /// # Errors
    /// No device has the name, or opening fails.
    pub fn open(name: &str) -> Result<Self, Error> {
        let settings = Settings::from_env()?;
        Self::open_for(&Self::find(name, &settings)?, &settings)
    }

    /// Describes the device of a name as [`Device::open`] takes it.
    ///
    /// # Errors
    /// No device has the name.
    pub fn find(name: &str, settings: &Settings) -> Result<DeviceInfo, Error> {
        let survey = Self::survey(settings)?;
        let found = survey.devices.iter().find(|info| info.name == name);
        match found {
            Some(info) => Ok(info.clone()),
            None if rails::is_of_rails(name) => {
                rails::describe(name, &Self::survey_ports(settings)?)
            }
            None => Err(no_device(name, &survey)),
        }
    }

    /// Opens a software NIC at `addr`, an address of this host. Packets arrive at its UDP port.
    ///
    /// With port 0 the NIC takes a free port of `INVAR_SOFT_PORT`, which peers learn while they connect.
    /// A peer that is no Invar sends to [`ROCE_UDP_PORT`](crate::ROCE_UDP_PORT).
    ///
    /// # Errors
    /// This host does not have the address, or the port is taken.
    pub fn open_at(addr: SocketAddr) -> Result<Self, Error> {
        Self::open_soft_at(addr, &Settings::from_env()?)
    }

    /// Opens a software NIC at `address`, on a free UDP port of [`Settings::udp_ports`].
    ///
    /// # Errors
    /// This host does not have the address, or no such port is free.
    pub fn open_at_for(address: IpAddr, settings: &Settings) -> Result<Self, Error> {
        Self::open_soft_at(SocketAddr::new(address, 0), settings)
    }

    fn open_soft_at(addr: SocketAddr, settings: &Settings) -> Result<Self, Error> {
        let address = addr.ip();
        let mut survey = Self::survey_ports(settings)?;
        survey.devices.retain(|info| info.kind == DeviceKind::Soft);
        // Any address of 127.0.0.0/8 is on loopback, though only one is listed.
        let holder = Interface::holding(address).map_err(listing)?;
        let has = |info: &&DeviceInfo| holder.as_ref().is_some_and(|i| i.name == info.netdev);
        match survey.devices.iter().find(has) {
            Some(info) => Self::open_soft(info, scoped(info, addr)?, settings.udp_ports()),
            None => Err(no_device(&address.to_string(), &survey)),
        }
    }

    /// Opens a device that [`Device::list`] or [`Device::find`] describes, at an address and port where peers
    /// with these settings find the device.
    ///
    /// # Errors
    /// The device is gone, its driver refuses, or no port of [`Settings::udp_ports`] is free.
    pub fn open_for(info: &DeviceInfo, settings: &Settings) -> Result<Self, Error> {
        if !info.rails.is_empty() {
            return rails::open(info, settings);
        }
        match info.kind {
            DeviceKind::Verbs => return Self::open_rdma(info, settings),
            DeviceKind::Socket => return Self::open_socket(info, settings),
            DeviceKind::Soft => {}
            DeviceKind::Custom => {
                let gone = || Err(no_device(&info.name, &Survey::default()));
                return provided::open(&info.name).unwrap_or_else(gone);
            }
        }
        let addr = SocketAddr::new(info.address, 0);
        Self::open_soft(info, scoped(info, addr)?, settings.udp_ports())
    }

    fn open_rdma(info: &DeviceInfo, settings: &Settings) -> Result<Self, Error> {
        let adapter = rdma::open(info, settings)?;
        let data_access = rdma::data_access(&settings.rdma);
        let (info, registrations) = (info.clone(), Registrations::new());
        let inner = Inner { info, data_access, registrations, adapter, soft: None };
        Ok(Device(Arc::new(inner)))
    }

    /// Opens TCP on an interface, at the address that was found.
    pub(crate) fn open_socket_on(found: Found<'_>, settings: &Settings) -> Result<Self, Error> {
        Self::open_for(&describe_socket(found, settings.gpu.sysfs.root()), settings)
    }

    fn open_socket(info: &DeviceInfo, settings: &Settings) -> Result<Self, Error> {
        let mut interfaces = interfaces()?.into_iter();
        let interface = interfaces.find(|interface| interface.name == info.netdev);
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

    /// Opens a software NIC at the port of `addr`, or with port 0 at one of `ports`.
    fn open_soft(info: &DeviceInfo, addr: SocketAddr, ports: PortRange) -> Result<Self, Error> {
        let nic = SoftNic::open(&SoftConfig { ports, ..SoftConfig::new(&info.name, addr) })
            .map_err(|error| {
                Error::io(format_args!("opening {} at {}", info.name, addr.ip()), error)
            })?;
        let failed = |source: NicError| Kind::Nic { device: info.name.clone(), source };
        let pd = nic.alloc_pd().map_err(failed)?;
        let adapter = adapt(nic.clone(), pd, NicKind::SOFT);
        let port = nic.query_port().map_err(failed)?;
        let info = DeviceInfo {
            address: addr.ip(),
            gid: port.gid,
            link_layer: port.link_layer,
            mtu: port.active_mtu,
            long_mtu_bytes: port.long_mtu_bytes as usize,
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

    /// The properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Starts to write the packets of a software NIC into `file`, in the format pcap.
    ///
    /// # Errors
    /// The device is no software NIC, or the file cannot be written.
    pub fn capture(&self, file: File) -> Result<(), Error> {
        self.soft()?.capture(file).map_err(capturing)
    }

    /// Ends a [`Device::capture`].
    ///
    /// # Errors
    /// The device is no software NIC, or some packets are not in the file.
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

    /// The access of the device to the user's memory.
    pub(crate) fn data_access(&self) -> Access {
        self.0.data_access
    }

    pub(crate) fn registrations(&self) -> &Registrations {
        &self.0.registrations
    }

    /// A handle that does not keep the device open.
    pub fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }

    pub(crate) fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn failed(&self, source: NicError) -> Error {
        Kind::Nic { device: self.info().name.clone(), source }.into()
    }

    /// The address of the device, with its scope and port 0.
    pub(crate) fn socket_addr(&self) -> Result<SocketAddr, Error> {
        self.on_its_link(SocketAddr::new(self.info().address, 0))
    }

    /// The address of a peer as the device's interface reaches it; see [`Interface::on_its_link`].
    pub(crate) fn on_its_link(&self, peer: SocketAddr) -> Result<SocketAddr, Error> {
        scoped(self.info(), peer)
    }
}

/// A handle that does not keep its device open; [`Device::downgrade`] makes it.
#[derive(Clone, Default)]
pub struct WeakDevice(Weak<Inner>);

impl WeakDevice {
    /// The device, if it is still open.
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
    DeviceInfo { pci_path, ..describe_on(interface, addr.ip(), sysfs) }
}

fn describe(device: &HostDevice, sysfs: &Path) -> Option<DeviceInfo> {
    let HostDevice { config, interface } = device;
    let address = config.address.ip();
    Some(DeviceInfo {
        name: config.name.clone(),
        kind: DeviceKind::Soft,
        mtu: interface.path_mtu()?,
        long_mtu_bytes: interface.long_mtu_bytes(address) as usize,
        ..describe_on(interface, address, sysfs)
    })
}

/// Describes an interface as a device for TCP that is no PCI device.
fn describe_on(interface: &Interface, address: IpAddr, sysfs: &Path) -> DeviceInfo {
    DeviceInfo {
        name: interface.name.clone(),
        kind: DeviceKind::Socket,
        netdev: interface.name.clone(),
        address,
        addresses: interface.addresses.iter().map(|a| a.ip).collect(),
        gid: Gid::from(address),
        gid_index: 0,
        gid_why: String::new(),
        link_layer: LinkLayer::Ethernet,
        mtu: interface.path_mtu().unwrap_or_default(),
        long_mtu_bytes: 0,
        speed_mbps: interface.speed_mbps(sysfs),
        up: interface.up,
        udp_port: None,
        pci_path: None,
        guid: None,
        card_port: 1,
        qps_max: None,
        rail_id: None,
        plane_id: None,
        recvs_max: invar_core::fifo::RECVS_MAX,
        relaxed_ordering: false,
        rails: Vec::new(),
        standby: false,
    }
}

/// Gives a link-local IPv6 address the index of the interface, because such an address is valid on one link only.
fn scoped(info: &DeviceInfo, addr: SocketAddr) -> Result<SocketAddr, Error> {
    if !has_scope(addr) {
        return Ok(addr);
    }
    let interfaces = interfaces()?;
    let own = interfaces.iter().find(|interface| interface.name == info.netdev);
    Ok(own.map_or(addr, |own| own.on_its_link(addr)))
}

/// Lists the network interfaces of this host.
pub(crate) fn interfaces() -> Result<Vec<Interface>, Error> {
    Interface::list().map_err(listing)
}

fn listing(error: std::io::Error) -> Error {
    Error::io("listing the network interfaces", error)
}

fn capturing(error: std::io::Error) -> Error {
    Error::io("capturing packets", error)
}

/// Returns the error for a name or an address that no device has. The error lists the devices of `survey`.
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
