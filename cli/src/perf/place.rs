//! The place where a client wants the server's data. The client may be anybody.

use std::net::IpAddr;

use invar_core::nic::Gid;
use invar_linux::interface::may_lead_to;

use super::control::Control;
use crate::failure::Failure;

/// Bytes of a queue pair's info from its GID to its end.
const FROM_GID_BYTES: usize = 32;

/// Refuses a place on this host if the client is on another host. Such a client reaches no service of this host.
pub(super) fn check(place: IpAddr, control: &Control) -> Result<(), Failure> {
    if may_lead_to(place, control.peer().ip(), control.local_ip()?) {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "the client asks for data at {place}, which is this host and not the client's"
    )))
}

/// The address of the queue pair with this info. `None` if the info is too short or has no GID.
pub(super) fn of_queue_pair(info: &[u8]) -> Option<IpAddr> {
    let (gid, _) = info.last_chunk::<FROM_GID_BYTES>()?.split_first_chunk()?;
    let ip = Gid(*gid).ip();
    (!ip.is_unspecified()).then_some(ip)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use invar::raw::{Session, Side, queue_pair};
    use invar::{Device, Settings};

    use super::*;

    #[test]
    fn the_info_of_a_queue_pair_tells_its_address() {
        let (local, settings) = (Ipv4Addr::LOCALHOST.into(), Settings::default());
        let device = Device::open_at_for(local, &settings).unwrap();
        let us = (Side::Connector, Session::UNKNOWN_PEER);
        let pair = queue_pair(&device, &settings, us, local, 64).unwrap();
        assert_eq!(of_queue_pair(&pair.info()), Some(local));
        assert_eq!(of_queue_pair(&pair.info()[..FROM_GID_BYTES - 1]), None);
        assert_eq!(of_queue_pair(&[0; 64]), None);
    }
}
