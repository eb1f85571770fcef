//! The place where a client wants the server's data. The client may be anybody.

use std::net::IpAddr;

use invar_core::nic::Gid;
use invar_linux::interface::Interface;

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

/// Whether a client at `caller`, which has called this host at `local`, may ask for data at `place`.
fn may_lead_to(place: IpAddr, caller: IpAddr, local: IpAddr) -> bool {
    let [place, caller, local] = [place, caller, local].map(|ip| ip.to_canonical());
    let is_own = |ip: IpAddr| ip == local || !matches!(Interface::holding(ip), Ok(None));
    let is_here = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified() || is_own(ip);
    !is_here(place) || is_here(caller)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use invar::raw::{Session, Side, queue_pair};
    use invar::{Device, Settings};

    use super::*;

    fn may(place: &str, caller: &str) -> bool {
        let [place, caller] = [place, caller].map(|ip| ip.parse().expect("an address"));
        may_lead_to(place, caller, "192.0.2.2".parse().expect("an address"))
    }

    #[test]
    fn only_a_client_of_this_host_is_led_back_to_it() {
        for here in ["127.0.0.1", "::1", "::ffff:127.0.0.5", "0.0.0.0", "::", "192.0.2.2"] {
            assert!(!may(here, "192.0.2.1") && !may(here, "2001:db8::1"), "{here}");
            assert!(may(here, "127.0.0.1") && may(here, "192.0.2.2"), "{here}");
        }
        assert!(may("192.0.2.1", "192.0.2.1") && may("198.51.100.1", "192.0.2.1"));
    }

    #[test]
    fn every_address_of_an_interface_is_of_this_host() {
        for address in
            Interface::list().unwrap().into_iter().flat_map(|interface| interface.addresses)
        {
            let here = address.ip.to_string();
            let is_known = !may(&here, "192.0.2.1") && may("::1", &here);
            let has_gone = || Interface::holding(address.ip).unwrap().is_none();
            assert!(is_known || has_gone(), "{here}");
        }
    }

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
