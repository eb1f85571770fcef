//! RDMA devices of this host.

use std::net::IpAddr;
use std::sync::Arc;

use invar_core::device::{self, NameFilter};
use invar_core::fifo::RECVS_MAX;
use invar_core::nic::{Access, Nic};
use invar_core::param::AddressFamily;
use invar_linux::interface::{self, Interface};
use invar_verbs::{Listing, PortInfo, Rules, VerbsConfig, VerbsNic};

use super::interfaces;
use crate::device_info::{DeviceInfo, DeviceKind, ROCE_UDP_PORT, Survey};
use crate::error::Kind;
use crate::raw::{Adapter, NicKind, adapt};
use crate::settings::RdmaRules;
use crate::{Error, Settings};

/// Lists the RDMA ports that the settings allow.
pub(super) fn survey(settings: &Settings) -> Result<Survey, Error> {
    let rules = &settings.rdma;
    if rules.disabled {
        let left_out = vec!["no RDMA devices: NCCL_IB_DISABLE=1".to_owned()];
        return Ok(Survey { left_out, ..Survey::default() });
    }
    let hca = NameFilter::parse(&rules.hca)
        .map_err(|error| Kind::Setting(format!("NCCL_IB_HCA: {error}")))?;
    let sysfs = settings.gpu.sysfs.root();
    let listed =
        invar_verbs::list(&Rules { hca, gid: rules.gid, merge_vfs: rules.merge_vfs, sysfs });
    if listed.ports.is_empty() && settings.takes(DeviceKind::Verbs) {
        refuse_without(&listed, hca, rules)?;
    }
    let interfaces = interfaces()?;
    let relaxed_ordering = data_access(rules).contains(Access::RELAXED_ORDERING);
    Ok(Survey {
        devices: listed
            .ports
            .iter()
            .filter_map(|port| describe(port, &interfaces))
            .map(|info| DeviceInfo { relaxed_ordering, ..info })
            .collect(),
        left_out: listed.omitted.iter().map(ToString::to_string).collect(),
    })
}

/// Fails if a setting is the reason why there is no usable port. A host without ports is no error.
fn refuse_without(listed: &Listing, hca: NameFilter<'_>, rules: &RdmaRules) -> Result<(), Error> {
    let mut by_setting = listed.omitted.iter().filter(|omission| omission.by_setting);
    if let Some(omission) = by_setting.next() {
        return Err(Kind::Setting(omission.to_string()).into());
    }
    if hca.entries().next().is_none() || hca.is_exclusion() {
        return Ok(());
    }
    let whys: Vec<String> = listed.omitted.iter().map(ToString::to_string).collect();
    Err(Kind::Setting(format!("NCCL_IB_HCA={}: {}", rules.hca, whys.join("; "))).into())
}

/// The access of an RDMA device to the user's memory.
pub(super) fn data_access(rules: &RdmaRules) -> Access {
    device::data_access(rules.relaxed_ordering, invar_verbs::has_relaxed_ordering())
}

/// The settings of a port that was listed.
pub(super) fn config(name: &str, settings: &Settings) -> VerbsConfig {
    let sysfs = settings.gpu.sysfs.root().to_owned();
    let (gid, channels) = (settings.rdma.gid, settings.sleeps);
    VerbsConfig { gid, sysfs, channels, ..VerbsConfig::new(name) }
}

/// Opens a port that was listed.
pub(super) fn open(info: &DeviceInfo, settings: &Settings) -> Result<Arc<dyn Adapter>, Error> {
    let nic = VerbsNic::open(&config(&info.name, settings)).map_err(Kind::Rdma)?;
    let failed = |source| Kind::Nic { device: info.name.clone(), source };
    let pd = nic.alloc_pd().map_err(failed)?;
    Ok(adapt(nic, pd, NicKind::VERBS))
}

/// Describes a port. Returns `None` if the host has no address, because then no peer can connect.
fn describe(port: &PortInfo, interfaces: &[Interface]) -> Option<DeviceInfo> {
    let holder = |ip: IpAddr| interfaces.iter().find(|i| i.addresses.iter().any(|a| a.ip == ip));
    let own = port.address().and_then(|ip| Some((ip, holder(ip)?)));
    let (address, interface) = own.or_else(|| {
        let names = NameFilter::default();
        let rules = interface::Rules { names, family: AddressFamily::Any, comm_id: None };
        let found = interface::find(interfaces, &rules).ok()?;
        found.first().map(|first| (first.addr.ip(), first.interface))
    })?;
    let attr = &port.attr;
    Some(DeviceInfo {
        name: port.name.clone(),
        kind: DeviceKind::Verbs,
        netdev: port.netdev.clone().unwrap_or_default(),
        address,
        addresses: interface.addresses.iter().map(|a| a.ip).collect(),
        gid: attr.gid,
        gid_index: attr.gid_index,
        gid_why: port.gid.why.clone(),
        link_layer: attr.link_layer,
        mtu: attr.active_mtu,
        long_mtu_bytes: attr.long_mtu_bytes as usize,
        speed_mbps: (attr.speed_mbps > 0).then_some(attr.speed_mbps),
        up: true,
        udp_port: Some(ROCE_UDP_PORT),
        pci_path: port.pci_path.clone(),
        guid: Some(port.guid),
        card_port: port.card_port,
        qps_max: Some(port.qps_max),
        rail_id: port.rail_id,
        plane_id: port.plane_id,
        recvs_max: RECVS_MAX,
        relaxed_ordering: false,
        rails: Vec::new(),
        standby: false,
    })
}
