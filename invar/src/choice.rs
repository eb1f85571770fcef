//! Which devices an application should use.

use std::net::SocketAddr;

use invar_core::nic::Gid;
use invar_core::param::{AddressFamily, TransportChoice};
use invar_linux::interface::Interface;

use crate::connect::interfaces_for;
use crate::error::Kind;
use crate::{Device, DeviceInfo, DeviceKind, Error, Settings, Survey};

/// What to use on this host, and why.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Devices of one kind, at least one, the best first.
    pub devices: Vec<DeviceInfo>,
    /// Why these, in a line for the log.
    pub reason: String,
    /// Where connections are arranged: the interface, and its address with port 0.
    pub oob: (String, SocketAddr),
}

impl Choice {
    /// By `INVAR_TRANSPORT`; and of devices in software those on the interfaces that
    /// `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY` allow, by which loopback is the last resort.
    ///
    /// # Errors
    /// There is no such device, or no such interface.
    pub fn make(settings: &Settings) -> Result<Self, Error> {
        let interfaces = Interface::list()
            .map_err(|error| Error::io("listing the network interfaces", error))?;
        let allowed = interfaces_for(settings, &interfaces)?;
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
        let (Some(kind), Some(oob)) = (first.map(|first| first.kind), allowed.first()) else {
            let asked = transport.as_str();
            let mut text =
                format!("INVAR_TRANSPORT={asked}: this host has no device of that transport");
            for line in left_out {
                text += "; ";
                text += &line;
            }
            return Err(Kind::Setting(text).into());
        };
        devices.retain(|device| device.kind == kind);
        let why = match transport {
            TransportChoice::Auto => "the best that this host has".to_owned(),
            asked => format!("INVAR_TRANSPORT={}", asked.as_str()),
        };
        Ok(Choice {
            reason: format!("transport {kind}, {} device(s): {why}", devices.len()),
            oob: (oob.interface.name.clone(), oob.addr),
            devices,
        })
    }
}
