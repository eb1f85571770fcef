//! Where metrics are shown.

use core::fmt;
use core::net::SocketAddr;

use super::value::{Allowed, Value};

/// Where metrics are shown, as `INVAR_METRICS` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsPlace<'a> {
    /// Over HTTP at a loopback address.
    Tcp(SocketAddr),
    /// Over HTTP at the Unix socket of this path.
    Unix(&'a str),
    /// In the file of this path.
    File(&'a str),
}

impl fmt::Display for MetricsPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsPlace::Tcp(addr) => write!(f, "{addr}"),
            MetricsPlace::Unix(path) => write!(f, "unix:{path}"),
            MetricsPlace::File(path) => write!(f, "file:{path}"),
        }
    }
}

impl<'a> Value<'a> for MetricsPlace<'a> {
    fn from_text(text: &'a str, _: &Allowed) -> Option<Self> {
        let path = |path: &&str| path.starts_with('/') && path.len() > 1;
        if let Some(file) = text.strip_prefix("file:") {
            return Some(MetricsPlace::File(file)).filter(|_| path(&file));
        }
        if let Some(socket) = text.strip_prefix("unix:") {
            return Some(MetricsPlace::Unix(socket)).filter(|_| path(&socket));
        }
        let addr = text.parse::<SocketAddr>().ok()?;
        (addr.ip().is_loopback() && addr.port() != 0).then_some(MetricsPlace::Tcp(addr))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn only_paths_and_loopback_addresses_are_places() {
        let parse = |text| MetricsPlace::from_text(text, &Allowed::Metrics);
        assert_eq!(parse("unix:/run/a.sock"), Some(MetricsPlace::Unix("/run/a.sock")));
        assert_eq!(parse("file:/var/a.prom"), Some(MetricsPlace::File("/var/a.prom")));
        let tcp = |text: &str| Some(MetricsPlace::Tcp(text.parse().unwrap()));
        assert_eq!(parse("127.0.0.1:9400"), tcp("127.0.0.1:9400"));
        assert_eq!(parse("[::1]:9400"), tcp("[::1]:9400"));
        for text in ["unix:/run/a.sock", "file:/var/a.prom", "[::1]:9400"] {
            assert_eq!(parse(text).map(|place| place.to_string()).as_deref(), Some(text));
        }
        for refused in ["0.0.0.0:9400", "10.0.0.1:1", "127.0.0.1:0", "9400", "unix:a", "file:", "a"]
        {
            assert_eq!(parse(refused), None, "{refused}");
        }
    }
}
