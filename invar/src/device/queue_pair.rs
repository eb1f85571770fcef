//! Queue pairs without a comm, on a device of any kind.

use std::net::IpAddr;

use invar_core::conn::stage::Side;

use super::Device;
use crate::error::Kind;
use crate::raw::{QueuePair, Session};
use crate::{DeviceKind, Error, Settings};

/// Creates a queue pair with `bytes` bytes of memory, towards the peer at the address `peer`. `us` says
/// whether this end is the connector or the acceptor, and has the session in which both ends proved
/// themselves.
///
/// # Errors
/// The device has no queue pairs or several rails, a setting is out of its range, or the device refuses.
pub fn queue_pair(
    device: &Device,
    settings: &Settings,
    us: (Side, Session),
    peer: IpAddr,
    bytes: usize,
) -> Result<Box<dyn QueuePair>, Error> {
    let info = device.info();
    if info.kind == DeviceKind::Socket || !info.rails.is_empty() || bytes == 0 {
        let why = format!("{}: a queue pair needs a NIC of one port, and memory", info.name);
        return Err(Kind::Usage(why).into());
    }
    let settings = settings.for_device(info, || false);
    device.adapter().queue_pair(us, peer, settings, bytes)
}
