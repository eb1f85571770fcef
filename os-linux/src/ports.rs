//! Listening on the first free port of a range.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use invar_core::param::PortRange;

/// Binds at `addr`; if `addr` has port 0, binds at the first free port of `range`.
///
/// # Errors
/// If no port of the range is free, the error names the range and the `variable` that sets it.
pub fn bind_in_range<T>(
    mut addr: SocketAddr,
    range: PortRange,
    variable: &str,
    mut bind: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    if addr.port() != 0 || range.is_any() {
        return bind(addr);
    }
    let failed = |port, error: io::Error| {
        io::Error::new(error.kind(), format!("{variable}={range}: port {port}: {error}"))
    };
    for port in range.ports() {
        addr.set_port(port);
        match bind(addr) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound.map_err(|error| failed(port, error)),
        }
    }
    let (ip, ports) = (addr.ip(), range.ports().len());
    let text = match range.single() {
        Some(port) => {
            format!("port {port} is taken at {ip}; a range, as FIRST-LAST, has room for more")
        }
        None => format!("all {ports} ports are taken at {ip}; allow more"),
    };
    let text = format!("{variable}={range}: {text}");
    Err(io::Error::new(ErrorKind::AddrInUse, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};

    use crate::tcp::OobListener;

    /// Finds two adjacent ports that are free for TCP and UDP, and holds them.
    fn two_ports() -> (PortRange, Vec<(OobListener, UdpSocket)>) {
        let held = |port| {
            let addr = (Ipv4Addr::LOCALHOST, port);
            let tcp = OobListener::bind(addr.into(), PortRange::ANY).ok()?;
            let udp = UdpSocket::bind((addr.0, tcp.local_addr().unwrap().port())).ok()?;
            Some((tcp, udp))
        };
        let pair = || {
            let first = held(0)?;
            let port = first.1.local_addr().unwrap().port();
            let second = held(port.checked_add(1)?)?;
            Some((PortRange::parse(&format!("{port}-{}", port + 1))?, vec![first, second]))
        };
        (0..1000).find_map(|_| pair()).expect("two free ports side by side")
    }

    #[test]
    fn listeners_take_the_free_ports_of_a_range_until_none_is_left() {
        let (range, mut held) = two_ports();
        let bind = || OobListener::bind((Ipv4Addr::LOCALHOST, 0).into(), range);
        let text = bind().unwrap_err().to_string();
        let says = "all 2 ports are taken at 127.0.0.1; allow more";
        assert_eq!(text, format!("INVAR_PORT_RANGE={range}: {says}"));
        let first = *range.ports().start();
        let addr = (Ipv4Addr::LOCALHOST, 0).into();
        let text = OobListener::bind(addr, PortRange::only(first)).unwrap_err().to_string();
        let says = format!("INVAR_PORT_RANGE={first}: port {first} is taken at 127.0.0.1; a range");
        assert!(text.starts_with(&says), "{text}");
        // The second port is free now.
        drop(held.pop());
        let port = bind().unwrap().local_addr().unwrap().port();
        assert_eq!(port, *range.ports().end());
    }

    #[test]
    fn a_port_of_its_own_goes_before_the_range() {
        let (range, held) = two_ports();
        let addr = held[0].0.local_addr().unwrap();
        drop(held);
        let bound = OobListener::bind(addr, PortRange::only(1)).unwrap();
        assert_eq!(bound.local_addr().unwrap(), addr);
        assert!(range.ports().contains(&addr.port()));
    }

    #[test]
    fn an_address_of_another_host_is_an_error_at_once() {
        let addr = (Ipv4Addr::new(203, 0, 113, 7), 0).into();
        let text = OobListener::bind(addr, PortRange::only(20_000)).unwrap_err().to_string();
        assert!(text.starts_with("INVAR_PORT_RANGE=20000: port 20000: "), "{text}");
    }
}
