//! Congestion control of the connections that carry data.

use std::net::IpAddr;
use std::{fs, io};

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use super::OobStream;

/// The congestion control of data connections. The default between hosts is the system's. The default
/// within a host is reno, because there is no network that could be congested. A control that paces,
/// such as BBR, has half the throughput there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Congestion(Option<String>);

/// The kernel refuses a congestion control to this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel refuses this TCP congestion control ({errno}); it allows: {allowed}")]
pub struct CongestionRefused {
    errno: Errno,
    allowed: String,
}

impl Congestion {
    /// The default within a host. The kernel has reno without any module.
    pub const WITHIN_A_HOST: &str = "reno";

    /// Uses the named congestion control for all connections.
    ///
    /// # Errors
    /// The kernel does not know the name, or lets only root choose it.
    pub fn named(name: &str) -> Result<Self, CongestionRefused> {
        let refused = |errno| {
            let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
            let allowed = allowed.map_or("unknown".to_owned(), |list| list.trim_end().to_owned());
            CongestionRefused { errno, allowed }
        };
        let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
        let probe = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP));
        probe.and_then(|probe| set_tcp_congestion(&probe, name)).map_err(refused)?;
        Ok(Congestion(Some(name.to_owned())))
    }

    /// Applies this congestion control to a connection, which may still be connecting.
    pub(crate) fn control(&self, stream: &OobStream) -> io::Result<()> {
        match &self.0 {
            Some(name) => set_tcp_congestion(stream, name)?,
            None if is_one_host(stream.peer.ip(), stream.local_addr()?.ip()) => {
                // If the kernel refuses, the connection keeps its control, which works more slowly.
                if let Err(errno) = set_tcp_congestion(stream, Self::WITHIN_A_HOST) {
                    let name = Self::WITHIN_A_HOST;
                    log::trace!("no {name} for a connection within this host: {errno}");
                }
            }
            None => {}
        }
        Ok(())
    }
}

/// Whether both ends of a connection are on this host. For such a connection the kernel uses the peer's
/// address as the source, unless somebody chose another one. Loopback leads to no other host.
fn is_one_host(peer: IpAddr, local: IpAddr) -> bool {
    peer.to_canonical().is_loopback() || peer == local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_at_one_address_or_at_loopback_are_on_one_host() {
        for (peer, local, one) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.2", "127.0.0.1", true),
            ("::1", "::1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("fe80::1", "fe80::1", true),
            ("10.0.0.2", "10.0.0.1", false),
            ("fe80::2", "fe80::1", false),
        ] {
            assert_eq!(is_one_host(peer.parse().unwrap(), local.parse().unwrap()), one, "{peer}");
        }
    }

    #[test]
    fn one_that_the_kernel_does_not_have_is_refused_with_those_that_it_has() {
        let refused = Congestion::named("nonesuch").unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("(No such file or directory (os error 2))"), "{text}");
        assert!(text.contains("it allows: ") && text.contains("reno"), "{text}");
    }
}
