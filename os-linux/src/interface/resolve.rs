//! Resolves `HOST:PORT` to addresses.

use std::borrow::Cow;
use std::ffi::CString;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};

/// Returns the addresses that `HOST:PORT` names, at least one. Examples: `10.0.0.1:80`, `[fd00::1]:80`,
/// `[fe80::1%eth0]:80`, or a name. For a name the call asks the resolver, which may take seconds. If the
/// text has no port, the port is `default_port`, if given; an IPv6 address then needs no brackets.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidInput`] if [`check_host_port`] fails, or the resolver's error.
pub fn resolve(host_port: &str, default_port: Option<u16>) -> io::Result<Vec<SocketAddr>> {
    let explain = |error| explained(host_port, default_port, error);
    let addrs = match parse(&with_port(host_port, default_port)).map_err(explain)? {
        Parsed::Address(addr) => vec![addr],
        Parsed::Name(host, port) => (host, port).to_socket_addrs().map_err(explain)?.collect(),
    };
    if addrs.is_empty() { Err(explain(io::ErrorKind::NotFound.into())) } else { Ok(addrs) }
}

/// Checks that a text has the form that [`resolve`] takes, and does not ask the resolver.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidInput`] if the form is wrong. [`io::ErrorKind::NotFound`] if the text names an
/// interface that this host does not have.
pub fn check_host_port(host_port: &str, default_port: Option<u16>) -> io::Result<()> {
    let parsed = parse(&with_port(host_port, default_port)).map(drop);
    parsed.map_err(|error| explained(host_port, default_port, error))
}

fn explained(host_port: &str, default_port: Option<u16>, error: io::Error) -> io::Error {
    let what = match (error.kind(), default_port) {
        (io::ErrorKind::InvalidInput | io::ErrorKind::NotFound, None) => "is no HOST:PORT",
        (io::ErrorKind::InvalidInput | io::ErrorKind::NotFound, Some(_)) => {
            "is no HOST and no HOST:PORT"
        }
        _ => "is not found",
    };
    io::Error::new(error.kind(), format!("'{host_port}' {what}: {error}"))
}

/// Adds `port`, if there is one and the text has none.
fn with_port(host: &str, port: Option<u16>) -> Cow<'_, str> {
    let Some(port) = port else { return host.into() };
    let is_bare_v6 = host.split('%').next().is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok());
    if is_bare_v6 {
        format!("[{host}]:{port}").into()
    } else if host.ends_with(']') || !host.is_empty() && !host.contains(':') {
        format!("{host}:{port}").into()
    } else {
        host.into()
    }
}

/// A parsed `HOST:PORT`.
enum Parsed<'a> {
    Address(SocketAddr),
    /// A name, for the resolver, and a port.
    Name(&'a str, u16),
}

fn parse(host_port: &str) -> io::Result<Parsed<'_>> {
    let invalid = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
    if host_port.parse::<Ipv6Addr>().is_ok() {
        return Err(invalid("an address of IPv6 goes in brackets, as in [::1]:80"));
    }
    if let Some(addr) = scoped(host_port) {
        return addr.map(Parsed::Address);
    }
    if let Ok(addr) = host_port.parse() {
        return Ok(Parsed::Address(addr));
    }
    let (host, port) =
        host_port.rsplit_once(':').ok_or_else(|| invalid("invalid socket address"))?;
    let port = port.parse().map_err(|_| invalid("invalid port value"))?;
    Ok(Parsed::Name(host, port))
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
