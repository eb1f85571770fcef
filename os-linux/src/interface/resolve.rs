//! Resolves `HOST:PORT` to addresses.

use std::borrow::Cow;
use std::ffi::CString;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};

/// Returns the addresses that `HOST:PORT` names, at least one. Examples: `10.0.0.1:80`, `[fd00::1]:80`,
/// `[fe80::1%eth0]:80`, or a name. For a name the call asks the resolver, which may take seconds. If the
/// text has no port, the port is `default_port`, if given; an IPv6 address then needs no brackets.
pub fn resolve(host_port: &str, default_port: Option<u16>) -> io::Result<Vec<SocketAddr>> {
    let explain = |error: io::Error| {
        let what = match (error.kind(), default_port) {
            (io::ErrorKind::InvalidInput | io::ErrorKind::NotFound, None) => "is no HOST:PORT",
            (io::ErrorKind::InvalidInput | io::ErrorKind::NotFound, Some(_)) => {
                "is no HOST and no HOST:PORT"
            }
            _ => "is not found",
        };
        io::Error::new(error.kind(), format!("'{host_port}' {what}: {error}"))
    };
    let addrs = match default_port {
        Some(port) => look_up(&with_port(host_port, port)),
        None => look_up(host_port),
    };
    let addrs = addrs.map_err(explain)?;
    if addrs.is_empty() { Err(explain(io::ErrorKind::NotFound.into())) } else { Ok(addrs) }
}

/// Adds `port` if the text has none.
fn with_port(host: &str, port: u16) -> Cow<'_, str> {
    let is_bare_v6 = host.split('%').next().is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok());
    if is_bare_v6 {
        format!("[{host}]:{port}").into()
    } else if host.ends_with(']') || !host.is_empty() && !host.contains(':') {
        format!("{host}:{port}").into()
    } else {
        host.into()
    }
}

fn look_up(host_port: &str) -> io::Result<Vec<SocketAddr>> {
    if host_port.parse::<Ipv6Addr>().is_ok() {
        let text = "an address of IPv6 goes in brackets, as in [::1]:80";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    match scoped(host_port) {
        Some(addr) => Ok(vec![addr?]),
        None => Ok(host_port.to_socket_addrs()?.collect()),
    }
}

/// Parses `[ADDRESS%INTERFACE]:PORT`, which the standard library supports with interface numbers only.
/// Returns `None` for all other forms.
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
    // SAFETY: The string ends in NUL.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("this host has no interface '{scope}'"),
        )),
        index => Ok(index),
    }
}
