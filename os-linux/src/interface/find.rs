//! Chooses interfaces as NCCL does (`socket.cc ncclFindInterfaces`, 2.14.3).

use std::fmt;
use std::net::SocketAddr;

use invar_core::device::NameFilter;
use invar_core::param::AddressFamily;

use super::Interface;

/// The user's rules for interfaces.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// `NCCL_SOCKET_IFNAME`; without entries the choice is automatic.
    pub names: NameFilter<'a>,
    /// `NCCL_SOCKET_FAMILY`: the kinds of addresses that may be used.
    pub family: AddressFamily,
    /// `NCCL_COMM_ID`: the address of rank 0.
    pub comm_id: Option<SocketAddr>,
}

/// An interface to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The interface, which the rules allow.
    pub interface: &'a Interface,
    /// The address to use on it, with port 0 and with its scope.
    pub addr: SocketAddr,
}

/// The error that no interface is usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoInterface {
    /// The interfaces of this host, for the message.
    there_is: String,
}

/// Chooses interfaces, the best first.
///
/// If the user lists names, exactly these count. Otherwise the result is the first non-empty set of:
///
/// 1. InfiniBand interfaces (`ib…`)
/// 2. the interface in the subnet of [`comm_id`](Rules::comm_id)
/// 3. all others except `docker…` and `lo…`
/// 4. `docker…`
/// 5. `lo…`
///
/// Unlike NCCL, interfaces that are down do not count, an address in `comm_id`'s subnet must have the
/// requested family, and `::1` is used if nothing else exists.
pub fn find<'a>(
    interfaces: &'a [Interface],
    rules: &Rules<'_>,
) -> Result<Vec<Found<'a>>, NoInterface> {
    let usable = |take: &dyn Fn(&str) -> bool| -> Vec<Found<'a>> {
        let named = interfaces.iter().filter(|interface| take(&interface.name));
        named
            .filter_map(|interface| Some(Found { interface, addr: interface.addr(rules.family)? }))
            .collect()
    };
    let is = |prefix: &'static str| move |name: &str| name.starts_with(prefix);
    let found = if rules.names.entries().next().is_some() {
        usable(&|name| rules.names.matches(name, None))
    } else {
        let choices: [&dyn Fn() -> Vec<Found<'a>>; 5] = [
            &|| usable(&is("ib")),
            &|| in_subnet(interfaces, rules).into_iter().collect(),
            &|| usable(&|name| !is("docker")(name) && !is("lo")(name)),
            &|| usable(&is("docker")),
            &|| usable(&is("lo")),
        ];
        choices.iter().map(|choice| choice()).find(|found| !found.is_empty()).unwrap_or_default()
    };
    if found.is_empty() { Err(NoInterface::among(interfaces)) } else { Ok(found) }
}

/// Returns the address that is in the subnet of `comm_id`.
fn in_subnet<'a>(interfaces: &'a [Interface], rules: &Rules<'_>) -> Option<Found<'a>> {
    let comm_id = rules.comm_id?;
    // Every link has the same link-local subnet; the scope tells which link is meant.
    let scope_id = match comm_id {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    interfaces.iter().filter(|interface| interface.up).find_map(|interface| {
        let mut addresses = interface.addresses.iter();
        let addr = addresses.find(|addr| {
            addr.is_of(rules.family)
                && addr.scope_id == scope_id
                && addr.shares_subnet(comm_id.ip())
        })?;
        Some(Found { interface, addr: addr.socket_addr() })
    })
}

impl NoInterface {
    fn among(interfaces: &[Interface]) -> Self {
        let words = interfaces.iter().map(|interface| {
            let mut facts: Vec<String> =
                interface.addresses.iter().map(|addr| addr.ip.to_string()).collect();
            if !interface.up {
                facts.insert(0, "down".to_owned());
            } else if facts.is_empty() {
                facts.push("no address".to_owned());
            }
            format!("{} ({})", interface.name, facts.join(", "))
        });
        NoInterface { there_is: words.collect::<Vec<_>>().join(", ") }
    }
}

impl fmt::Display for NoInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no network interface is up and has an address that NCCL_SOCKET_IFNAME and \
             NCCL_SOCKET_FAMILY allow; there is: {}",
            if self.there_is.is_empty() { "none at all" } else { &self.there_is }
        )
    }
}

impl std::error::Error for NoInterface {}
