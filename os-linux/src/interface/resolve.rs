//! From `HOST:PORT` to an address.

use std::ffi::CString;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};

/// The address that `HOST:PORT` means: `10.0.0.1:80`, `[fd00::1]:80`, `[fe80::1%eth0]:80`, or a
/// name, for which the resolver is asked. That may take seconds.
pub fn resolve(host_port: &str) -> io::Result<SocketAddr> {
    let explain = |error: io::Error| {
        let what = match error.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::NotFound => "is no HOST:PORT",
            _ => "is not found",
        };
        io::Error::new(error.kind(), format!("'{host_port}' {what}: {error}"))
    };
    if host_port.parse::<Ipv6Addr>().is_ok() {
        let text = "an address of IPv6 goes in brackets, as in [::1]:80";
        return Err(explain(io::Error::new(io::ErrorKind::InvalidInput, text)));
    }
    match scoped(host_port) {
        Some(addr) => addr.map_err(explain),
        None => {
            let mut addrs = host_port.to_socket_addrs().map_err(explain)?;
            addrs.next().ok_or_else(|| explain(io::ErrorKind::NotFound.into()))
        }
    }
}

/// `[ADDRESS%INTERFACE]:PORT`, which the standard library knows with numbers only; `None` for all
/// other forms.
fn scoped(host_port: &str) -> Option<io::Result<SocketAddr>> {
    let (host, port) = host_port.strip_prefix('[')?.split_once("]:")?;
    let (ip, scope) = host.split_once('%')?;
    let ip: Ipv6Addr = ip.parse().ok()?;
    let port = port.parse().ok()?;
    Some(scope_id(scope).map(|scope_id| SocketAddrV6::new(ip, port, 0, scope_id).into()))
}

fn scope_id(scope: &str) -> io::Result<u32> {
    if let Ok(number) = scope.parse() {
        return Ok(number);
    }
    let name = CString::new(scope)?;
    // SAFETY: a string that ends in NUL.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("this host has no interface '{scope}'"),
        )),
        index => Ok(index),
    }
}
