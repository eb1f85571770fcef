//! The devices that an application should use.

use std::net::SocketAddr;

use invar_core::nic::Gid;
use invar_core::param::{AddressFamily, TransportChoice};

use crate::device::interfaces;
use crate::error::Kind;
use crate::{Device, DeviceInfo, DeviceKind, Error, Settings, Survey};

/// The devices that an application should use on this host, and the reason.
#[derive(Clone, Debug)]
pub struct Choice {
    /// One or more devices of one kind, the best first.
    pub devices: Vec<DeviceInfo>,
    /// The reason for these devices, as one line for a log.
    pub reason: String,
    /// The interface at which listeners of the first device listen on TCP, and its address with port 0.
    pub oob: (String, SocketAddr),
}

impl Choice {
    /// Chooses the devices of the transport that `INVAR_TRANSPORT` names. By default the choice is the first
    /// of these that the host has: NICs that the program [provides](crate::provide), RDMA devices, TCP, and
    /// the software NIC.
    ///
    /// Devices in software must be on an interface that `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY`
    /// allow. Loopback is the last resort.
    ///
    /// # Errors
    /// The host has no such device, or no such interface.
    pub fn make(settings: &Settings) -> Result<Self, Error> {
        let interfaces = interfaces()?;
        let allowed = settings.allowed_interfaces(&interfaces)?;
        let Survey { mut devices, left_out } = Device::survey(settings)?;
        devices.retain_mut(|device| {
            let on = allowed.iter().find(|found| found.interface.name == device.netdev);
            match (device.kind, on) {
                (DeviceKind::Verbs | DeviceKind::Custom, _) => true,
                (DeviceKind::Socket | DeviceKind::Soft, None) => false,
                (DeviceKind::Socket, Some(_)) => true,
                (DeviceKind::Soft, Some(on)) => {
                    if settings.socket_family != AddressFamily::Any {
                        device.address = on.addr.ip();
                        device.gid = Gid::from(device.address);
                    }
                    true
                }
            }
        });
        let transport = settings.transport();
        let first = devices.iter().find(|device| settings.takes(device.kind));
        let (Some(first), Some(best)) = (first, allowed.first()) else {
            let asked = transport.as_str();
            let mut text =
                format!("INVAR_TRANSPORT={asked}: this host has no device of that transport");
            for line in left_out {
                text += "; ";
                text += &line;
            }
            return Err(Kind::Setting(text).into());
        };
        let oob = match settings.listens_on(first) {
            true => (first.netdev.clone(), SocketAddr::new(first.address, 0)),
            false => (best.interface.name.clone(), best.addr),
        };
        let kind = first.kind;
        devices.retain(|device| device.kind == kind);
        let why = match transport {
            TransportChoice::Auto => "the best that this host has".to_owned(),
            asked => format!("INVAR_TRANSPORT={}", asked.as_str()),
        };
        Ok(Choice {
            reason: format!("transport {kind}, {} device(s): {why}", devices.len()),
            devices,
            oob,
        })
    }
}
