//! Devices of NICs that the program brings.

use std::net::IpAddr;
use std::sync::Arc;

use invar_core::device::data_access;
use invar_core::nic::{NicError, PortState};

use super::registration::Registrations;
use super::{Device, DeviceInfo, DeviceKind, Inner};
use crate::Error;
use crate::error::Kind;
use crate::raw::{GpuNic, NicKind, SharedNic, adapt};

impl Device {
    /// Makes a device of a NIC and a protection domain that the program brings. Its listeners listen at
    /// `address`.
    ///
    /// # Errors
    /// The NIC cannot tell the state of its port.
    pub fn on<N: SharedNic>(nic: N, pd: N::Pd, address: IpAddr) -> Result<Self, Error> {
        Self::of_kind(NicKind::CUSTOM, nic, pd, address)
    }

    /// Makes a device as [`Device::on`] does, of a NIC that can access GPU memory.
    ///
    /// # Errors
    /// The NIC cannot tell the state of its port.
    pub fn on_gpu_nic<N: GpuNic>(nic: N, pd: N::Pd, address: IpAddr) -> Result<Self, Error> {
        Self::of_kind(NicKind::CUSTOM_WITH_GPU, nic, pd, address)
    }

    fn of_kind<N: SharedNic>(
        kind: NicKind<N>,
        nic: N,
        pd: N::Pd,
        address: IpAddr,
    ) -> Result<Self, Error> {
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
            long_mtu_bytes: port.long_mtu_bytes as usize,
            speed_mbps: Some(port.speed_mbps),
            up: port.state == PortState::Active,
            udp_port: Some(port.udp_port).filter(|udp_port| *udp_port != 0),
            pci_path: None,
            guid: None,
            card_port: port.port_num.into(),
            qps_max: None,
            rail_id: None,
            plane_id: None,
            recvs_max: invar_core::fifo::RECVS_MAX,
            relaxed_ordering: false,
            rails: Vec::new(),
            standby: false,
        };
        let adapter = adapt(nic, pd, kind);
        let (registrations, data_access) = (Registrations::new(), data_access(0, false));
        Ok(Device(Arc::new(Inner { info, data_access, registrations, adapter, soft: None })))
    }
}
