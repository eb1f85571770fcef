//! Lists of device names, as in `NCCL_IB_HCA` and `NCCL_SOCKET_IFNAME`.
//!
//! ```text
//!   list  = ["^"] ["="] [entry {"," entry}]
//!   entry = name [":" [port] [":" [rail] [":" [plane]]]]
//! ```
//!
//! With `^` the list matches all devices but the listed ones. Without `=` a name matches every device
//! whose name begins with it. An empty list matches all devices. Rail and plane say nothing about which devices
//! match: NCCL takes them for the place of the port in the network. Blanks around the list and its entries
//! are ignored. (In NCCL's `parseStringList` and `matchIfList` blanks are part of a name.)

use core::fmt;

/// A parsed list. The list borrows its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameFilter<'a> {
    exclude: bool,
    exact: bool,
    list: &'a str,
}

/// An entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEntry<'a> {
    /// A device name, or the beginning of device names.
    pub name: &'a str,
    /// The port; `None` means every port.
    pub port: Option<u8>,
    /// The user's number of the rail, at least 0.
    pub rail: Option<i16>,
    /// The user's number of the plane, at least 0.
    pub plane: Option<i16>,
}

/// The reason why a list has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameFilterError<'a> {
    /// The port is not a number. NCCL reads such a port as 0, which no port has.
    #[error("'{entry}': the port must be a number from 0 to 255")]
    Port {
        /// The entry as written.
        entry: &'a str,
    },
    /// The rail or the plane is not a number, or more follows. NCCL ignores what follows.
    #[error("'{entry}': rail and plane must be numbers from 0 to 32767, with nothing behind them")]
    Place {
        /// The entry as written.
        entry: &'a str,
    },
    /// The entry has no device name. NCCL skips such an entry.
    #[error("'{entry}': a port without a device name")]
    NoName {
        /// The entry as written.
        entry: &'a str,
    },
    /// The list names no device. In NCCL `^` without names excludes all devices.
    #[error("'{list}' lists no device")]
    Empty {
        /// The list as written.
        list: &'a str,
    },
}

impl fmt::Display for NameEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(self.name),
            Some(port) => write!(f, "{}:{port}", self.name),
        }
    }
}

impl<'a> NameFilter<'a> {
    /// Parses a list.
    pub fn parse(text: &'a str) -> Result<Self, NameFilterError<'a>> {
        let (exclude, list) = strip(text.trim_ascii(), '^');
        let (exact, list) = strip(list, '=');
        for entry in entries(list) {
            parse_entry(entry)?;
        }
        if (exclude || exact) && entries(list).next().is_none() {
            return Err(NameFilterError::Empty { list: text });
        }
        Ok(NameFilter { exclude, exact, list })
    }

    /// Returns whether the list matches this device. `port` is `None` if devices have no ports.
    pub fn matches(&self, name: &str, port: Option<u8>) -> bool {
        self.entries().next().is_none()
            || self.exclude != self.matching(name, port).next().is_some()
    }

    /// The entry that matches this device only because it is the beginning of a longer number, as
    /// `mlx5_1` is of `mlx5_10`. The user probably did not mean this device, so a warning is useful.
    ///
    /// With `^` this is a device that the list excludes.
    pub fn cut_number(&self, name: &str, port: Option<u8>) -> Option<NameEntry<'a>> {
        let cuts = |entry: &NameEntry<'_>| {
            let rest = name.as_bytes().get(entry.name.len());
            entry.name.ends_with(|c: char| c.is_ascii_digit())
                && rest.is_some_and(u8::is_ascii_digit)
        };
        let mut matching = self.matching(name, port).peekable();
        let first = matching.peek().copied();
        first.filter(|_| matching.all(|entry| cuts(&entry)))
    }

    /// The entry that takes this device: the first that matches, if the list does not exclude its entries.
    pub fn taker(&self, name: &str, port: Option<u8>) -> Option<NameEntry<'a>> {
        self.matching(name, port).next().filter(|_| !self.exclude)
    }

    /// Returns whether the list excludes its entries.
    pub fn is_exclusion(&self) -> bool {
        self.exclude
    }

    /// The entries, in order.
    pub fn entries(&self) -> impl Iterator<Item = NameEntry<'a>> + use<'a> {
        entries(self.list).filter_map(|entry| parse_entry(entry).ok())
    }

    /// Returns whether the entry matches this device.
    pub fn names(&self, entry: &NameEntry<'_>, name: &str, port: Option<u8>) -> bool {
        let same = if self.exact { name == entry.name } else { name.starts_with(entry.name) };
        same && (port.is_none() || entry.port.is_none() || port == entry.port)
    }

    /// The entries that match this device.
    fn matching<'s>(
        &'s self,
        name: &'s str,
        port: Option<u8>,
    ) -> impl Iterator<Item = NameEntry<'a>> + 's {
        self.entries().filter(move |entry| self.names(entry, name, port))
    }
}

fn strip(text: &str, prefix: char) -> (bool, &str) {
    text.strip_prefix(prefix).map_or((false, text), |rest| (true, rest))
}

fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim_ascii).filter(|entry| !entry.is_empty())
}

fn parse_entry(entry: &str) -> Result<NameEntry<'_>, NameFilterError<'_>> {
    let mut parts = entry.split(':');
    let name = parts.next().unwrap_or_default();
    let mut next = || parts.next().filter(|part| !part.is_empty());
    let port =
        next().map(str::parse::<u8>).transpose().map_err(|_| NameFilterError::Port { entry })?;
    let place = |part: Option<&str>| match part.map(str::parse::<i16>) {
        None => Ok(None),
        Some(Ok(number @ 0..)) => Ok(Some(number)),
        Some(_) => Err(NameFilterError::Place { entry }),
    };
    let (rail, plane) = (place(next())?, place(next())?);
    if parts.next().is_some() {
        return Err(NameFilterError::Place { entry });
    }
    if name.is_empty() {
        return Err(NameFilterError::NoName { entry });
    }
    Ok(NameEntry { name, port, rail, plane })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    fn takes(list: &str, name: &str, port: u8) -> bool {
        NameFilter::parse(list).unwrap().matches(name, Some(port))
    }

    #[test]
    fn names_are_prefixes_unless_exact_and_excluded_after_a_caret() {
        for (list, name, port, taken) in [
            ("", "mlx5_0", 1, true),
            (",", "mlx5_0", 1, true),
            ("mlx5", "mlx5_0", 1, true),
            ("mlx5", "mlx4_0", 1, false),
            ("mlx5_1", "mlx5_10", 1, true),
            ("=mlx5_1", "mlx5_10", 1, false),
            ("=mlx5_1", "mlx5_1", 1, true),
            ("=mlx5_1", "mlx5", 1, false),
            ("^mlx5_1", "mlx5_10", 1, false),
            ("^mlx5_1", "mlx5_2", 1, true),
            ("^=mlx5_1", "mlx5_10", 1, true),
            ("^=mlx5_1", "mlx5_1", 1, false),
            ("mlx5_0:1,mlx5_1:2", "mlx5_0", 1, true),
            ("mlx5_0:1,mlx5_1:2", "mlx5_0", 2, false),
            ("mlx5_0:1,mlx5_1:2", "mlx5_1", 2, true),
            ("^mlx5_0:1", "mlx5_0", 2, true),
            ("mlx5_0,,mlx5_1", "mlx5_1", 9, true),
            (" ^mlx5_0, mlx5_1:2 ", "mlx5_1", 2, false),
            ("mlx5_0, mlx5_1:2 ", "mlx5_1", 2, true),
            (" , ", "mlx5_0", 1, true),
            // The parser reads only one of each sign, in this order.
            ("=^mlx5", "mlx5_0", 1, false),
            ("=^mlx5", "^mlx5", 1, true),
        ] {
            assert_eq!(takes(list, name, port), taken, "{list} on {name}:{port}");
        }
    }

    #[test]
    fn interfaces_have_no_port() {
        let filter = NameFilter::parse("eth0:3,ib").unwrap();
        assert!(filter.matches("eth0", None));
        assert!(filter.matches("ib1", None));
        assert!(!filter.matches("lo", None));
    }

    #[test]
    fn a_number_cut_short_is_found() {
        let cut = |list: &'static str, name| {
            NameFilter::parse(list).unwrap().cut_number(name, Some(1)).map(|entry| entry.name)
        };
        assert_eq!(cut("mlx5_1", "mlx5_10"), Some("mlx5_1"));
        assert_eq!(cut("^mlx5_1", "mlx5_11"), Some("mlx5_1"));
        assert_eq!(cut("mlx5_0,mlx5_1:1", "mlx5_17"), Some("mlx5_1"));
        assert_eq!(cut("mlx5_1", "mlx5_1"), None);
        assert_eq!(cut("mlx5_1,mlx5_10", "mlx5_10"), None);
        assert_eq!(cut("=mlx5_1", "mlx5_10"), None);
        assert_eq!(cut("mlx5_", "mlx5_10"), None);
        assert_eq!(cut("mlx", "mlx5_10"), None);
        assert_eq!(cut("mlx5_1:2", "mlx5_10"), None);
        assert_eq!(cut("", "mlx5_10"), None);
    }

    #[test]
    fn the_entry_that_takes_a_device_tells_its_rail_and_plane() {
        let place = |list: &'static str, name, port| {
            let taker = NameFilter::parse(list).unwrap().taker(name, Some(port));
            taker.map(|entry| (entry.rail, entry.plane))
        };
        assert_eq!(place("a:1:3:7", "a", 1), Some((Some(3), Some(7))));
        assert_eq!(place("a::3", "a", 2), Some((Some(3), None)));
        assert_eq!(place("b:1:2,a:::32767,a:1:5", "a", 1), Some((None, Some(32767))));
        assert_eq!(place("a:2:3,a:1:4:5", "a", 1), Some((Some(4), Some(5))));
        assert_eq!(place("a,b:", "b", 9), Some((None, None)));
        assert_eq!(place("^b:1:2", "a", 1), None);
        assert_eq!(place("", "a", 1), None);
    }

    #[test]
    fn lists_that_mean_nothing_are_errors() {
        for (list, message) in [
            ("mlx5_0:x", "'mlx5_0:x': the port must be a number from 0 to 255"),
            ("a,mlx5_0:256", "'mlx5_0:256': the port must be a number from 0 to 255"),
            (
                "a:1:x",
                "'a:1:x': rail and plane must be numbers from 0 to 32767, with nothing behind them",
            ),
            (
                "a:1:2:-1",
                "'a:1:2:-1': rail and plane must be numbers from 0 to 32767, with nothing behind them",
            ),
            (
                "a:1:2:3:",
                "'a:1:2:3:': rail and plane must be numbers from 0 to 32767, with nothing behind them",
            ),
            (":1", "':1': a port without a device name"),
            ("^", "'^' lists no device"),
            ("^=,", "'^=,' lists no device"),
        ] {
            assert_eq!(NameFilter::parse(list).unwrap_err().to_string(), message);
        }
    }
}
