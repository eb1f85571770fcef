//! The ports of this host's RDMA devices (`net_ib.cc ncclIbInit`).

mod absent;

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use invar_core::device::{NameFilter, PciPath, real_port};
use invar_core::nic::{LinkLayer, PortAttr, PortState};
use invar_linux::interface::Interface;

use crate::OpenError;
use crate::device::{DeviceList, Opened};
use crate::gid::{ChosenGid, GidEntry, GidRules};
use crate::library::Library;
use crate::port::{Port, PortError};
use crate::sysfs;
use absent::Absence;

/// Maximum number of listed ports; the list keeps the first ones. NCCL 2.14.3 takes 16, later versions
/// 32.
pub const PORTS_MAX: usize = 32;

/// Rules that decide which ports to list.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// `NCCL_IB_HCA`: the filter of devices and ports.
    pub hca: NameFilter<'a>,
    /// Rules for choosing each port's GID.
    pub gid: GidRules,
    /// `NCCL_IB_MERGE_VFS`: whether virtual functions are part of their card.
    pub merge_vfs: bool,
    /// The kernel's sysfs tree (`INVAR_SYSFS`).
    pub sysfs: &'a Path,
}

/// Rules that list every port and choose the best GID for each.
impl Default for Rules<'_> {
    fn default() -> Self {
        Rules {
            hca: NameFilter::default(),
            gid: GidRules::default(),
            merge_vfs: true,
            sysfs: Path::new("/sys"),
        }
    }
}

/// An active port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Name of the port: `mlx5_0` for the first port of a device, `mlx5_0:2` for the second.
    pub name: String,
    /// Name of the device in libibverbs.
    pub device: String,
    /// Attributes of the port for the protocol, including the port number.
    pub attr: PortAttr,
    /// The chosen GID and the reason for the choice.
    pub gid: ChosenGid,
    /// The network interface of that GID, if an interface is visible.
    pub netdev: Option<String>,
    /// GUID of the device (`sys_image_guid`), in host byte order.
    pub guid: u64,
    /// PCI path of the device, equal for all ports of a card; a software device has none.
    pub pci_path: Option<String>,
    /// Number of the port on its card, from 1 (NCCL's `port`).
    pub card_port: u32,
    /// Maximum number of queue pairs of the device.
    pub qps_max: u32,
    /// The port's rail in the network, if `NCCL_IB_HCA` tells it.
    pub rail_id: Option<i16>,
    /// The port's plane in the network, if `NCCL_IB_HCA` tells it.
    pub plane_id: Option<i16>,
}

impl PortInfo {
    /// Returns the address that RoCE peers send to; a port of InfiniBand has none.
    pub fn address(&self) -> Option<IpAddr> {
        let ip = self.attr.gid.ip();
        (self.attr.link_layer == LinkLayer::Ethernet).then_some(ip)
    }
}

/// The listed ports and the omitted ones.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The ports, by PCI address.
    pub ports: Vec<PortInfo>,
    /// The omitted devices and ports, with the reasons.
    pub omitted: Vec<Omission>,
}

/// An omitted device or port; its `Display` is a line for messages.
#[derive(Clone, Debug)]
pub struct Omission {
    /// Name of the device with its port; empty if the omission concerns all devices.
    pub name: String,
    /// The reason for the omission.
    pub why: String,
    /// Whether a setting of the user causes the omission.
    pub by_setting: bool,
}

impl fmt::Display for Omission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => f.write_str(&self.why),
            name => write!(f, "{name}: {}", self.why),
        }
    }
}

impl Listing {
    fn omit_all(&mut self, absence: &Absence<'_>, rules: &Rules<'_>) {
        self.omit("", absence.explain(rules.sysfs, Path::new("/dev")), false);
    }

    fn omit(&mut self, name: &str, why: impl fmt::Display, by_setting: bool) {
        let (name, why) = (name.to_owned(), why.to_string());
        self.omitted.push(Omission { name, why, by_setting });
    }
}

/// Lists the active ports that the rules accept. [`Listing::omitted`] explains the rest.
pub fn list(rules: &Rules<'_>) -> Listing {
    match Library::get() {
        Ok(library) => list_with(library, rules, &|device| sysfs::pci_path(rules.sysfs, device)),
        Err(error) => {
            let mut listing = Listing::default();
            listing.omit_all(&Absence::Library(&error), rules);
            listing
        }
    }
}

/// Returns the names of the devices that libibverbs lists, without opening any.
///
/// # Errors
/// libibverbs cannot be loaded, or cannot list the devices of the kernel.
pub fn device_names() -> Result<Vec<String>, OpenError> {
    let devices = DeviceList::get(Library::get()?).map_err(OpenError::List)?;
    Ok(devices.names().collect())
}

/// Lists the ports of `library`; `pci_path` returns the PCI path of a device.
fn list_with(
    library: &'static Library,
    rules: &Rules<'_>,
    pci_path: &dyn Fn(&str) -> Option<String>,
) -> Listing {
    let mut listing = Listing::default();
    let devices = match DeviceList::get(library) {
        Ok(devices) => devices,
        Err(error) => {
            listing.omit_all(&Absence::Failed(&error), rules);
            return listing;
        }
    };
    let interfaces = Interface::list().unwrap_or_default();
    let mut found = Vec::new();
    let mut names: Vec<(String, Option<String>)> = devices
        .names()
        .map(|name| {
            let path = pci_path(&name);
            (name, path)
        })
        .collect();
    names.sort_by(|(_, one), (_, other)| on_bus(one.as_deref()).cmp(&on_bus(other.as_deref())));
    for (name, path) in names {
        match devices.open(&name) {
            Ok(opened) => {
                list_device(&opened, path, rules, &interfaces, &mut found, &mut listing);
            }
            Err(error) => {
                listing.omit(&name, error, false);
                // The ports of a device that does not open are unknown.
                found.push((name, None));
            }
        }
    }
    if found.is_empty() {
        listing.omit_all(&Absence::Empty, rules);
        return listing;
    }
    let names: Vec<String> =
        found.iter().map(|(name, port)| port_name(name, port.unwrap_or(1))).collect();
    let names = names.join(", ");
    let is_left_out = |(name, port): &(String, Option<u8>)| !rules.hca.matches(name, *port);
    if rules.hca.is_exclusion() && found.iter().all(is_left_out) {
        listing.omit("", format_args!("NCCL_IB_HCA leaves out all RDMA devices: {names}"), false);
    }
    for entry in rules.hca.entries() {
        if found.iter().any(|(name, port)| rules.hca.names(&entry, name, *port)) {
            continue;
        }
        let text = format_args!("NCCL_IB_HCA: {entry} is none of the RDMA devices {names}");
        listing.omit("", text, !rules.hca.is_exclusion());
    }
    listing
}

/// Adds the accepted ports of a device to `listing`, and all its ports to `found`.
fn list_device(
    opened: &Opened,
    pci_path: Option<String>,
    rules: &Rules<'_>,
    interfaces: &[Interface],
    found: &mut Vec<(String, Option<u8>)>,
    listing: &mut Listing,
) {
    let device = opened.name();
    let attr = match opened.query() {
        Ok(attr) => attr,
        Err(error) => {
            found.push((device.to_owned(), None));
            return listing.omit(device, error, false);
        }
    };
    for port_num in 1..=attr.phys_port_cnt {
        found.push((device.to_owned(), Some(port_num)));
        let name = port_name(device, port_num);
        if let Some(entry) = rules.hca.cut_number(device, Some(port_num)) {
            let (sign, does) =
                if rules.hca.is_exclusion() { ("^", "leaves out") } else { ("", "takes") };
            log::warn!(
                "NCCL_IB_HCA: {sign}{entry} also {does} {name}; {sign}={entry} is that one alone"
            );
        }
        if !rules.hca.matches(device, Some(port_num)) {
            continue;
        }
        if sysfs::is_iwarp(rules.sysfs, device) {
            let why = "it speaks iWARP, and neither InfiniBand nor RoCE";
            listing.omit(&name, why, false);
            continue;
        }
        let port = match Port::read(opened, port_num, &rules.gid, None) {
            Ok(port) => port,
            Err(error @ PortError::Gid { .. }) => {
                let by_setting = rules.gid != GidRules::default();
                listing.omit(&name, error, by_setting);
                continue;
            }
            Err(error) => {
                listing.omit(&name, error, false);
                continue;
            }
        };
        if port.attr.state != PortState::Active {
            listing.omit(&name, format_args!("port {port_num} is down"), false);
            continue;
        }
        if listing.ports.len() == PORTS_MAX {
            listing.omit(&name, format_args!("there are {PORTS_MAX} ports before it"), false);
            continue;
        }
        // All ports of one device are on one card, and each has its own number there.
        let others = listing.ports.iter().filter(|other| other.device != device);
        let card = |path| PciPath::new(path, rules.merge_vfs);
        let others = others.filter_map(|other| other.pci_path.as_deref().map(card));
        let before = pci_path.as_deref().map_or(0, |path| real_port(card(path), others));
        let taker = rules.hca.taker(device, Some(port_num));
        listing.ports.push(PortInfo {
            netdev: netdev(&port.gid.entry, interfaces).map(|interface| interface.name.clone()),
            name,
            device: device.to_owned(),
            attr: port.attr,
            gid: port.gid,
            guid: u64::from_be(attr.sys_image_guid),
            pci_path: pci_path.as_deref().map(|path| card(path).to_string()),
            card_port: u32::from(port_num) + before as u32,
            qps_max: u32::try_from(attr.max_qp).unwrap_or(0),
            rail_id: taker.and_then(|entry| entry.rail),
            plane_id: taker.and_then(|entry| entry.plane),
        });
    }
}

/// The place of a device in the order of NCCL (`net_ib/init.cc ncclIbCompareDevs`): by its PCI address, so that
/// the hosts agree whatever their kernels call the devices. Devices without one come last.
fn on_bus(path: Option<&str>) -> (bool, usize, &str) {
    let address = path.and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    (path.is_none(), address.len(), address)
}

/// Returns the name of a port, as in [`PortInfo::name`].
fn port_name(device: &str, port_num: u8) -> String {
    if port_num == 1 { device.to_owned() } else { format!("{device}:{port_num}") }
}

/// Returns the interface that has the address of a GID. If several interfaces have it, the entry's index
/// decides. The index alone does not suffice: it may come from another network namespace, where it names
/// another interface.
fn netdev<'a>(entry: &GidEntry, interfaces: &'a [Interface]) -> Option<&'a Interface> {
    let ip = entry.gid.ip();
    let has_address = |i: &&Interface| i.addresses.iter().any(|addr| addr.ip == ip);
    let mut holders = interfaces.iter().filter(has_address);
    let first = holders.clone().next();
    holders.find(|holder| holder.index == entry.ifindex).or(first)
}

#[cfg(test)]
mod tests;
