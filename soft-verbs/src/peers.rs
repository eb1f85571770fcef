//! The UDP ports of peers.
//!
//! Without a setting, queue pair numbers tell the ports ([`shared_ports`]), and peers run on this library too.
//! With `INVAR_SOFT_PORT=4791` peers are what speaks RoCEv2: hardware, Linux's rdma_rxe, or this library with
//! the same setting. Then one process has an address.

use std::sync::LazyLock;
use std::{env, io};

use invar_core::nic::QpOptions;
use invar_core::param::PortRange;
use invar_linux::soft::{SoftConfig, shared_ports};

const SETTING: &str = "INVAR_SOFT_PORT";

/// The port of all ends if the setting names one, or why the setting makes no sense.
static PORT: LazyLock<Result<Option<u16>, String>> = LazyLock::new(|| {
    let value = env::var_os(SETTING).unwrap_or_default();
    parse(&value.to_string_lossy()).ok_or_else(|| {
        format!(
            "{SETTING}={}: programs of invar run take one port, such as 4791, or 0",
            value.display()
        )
    })
});

/// Reads the setting. `Some(None)` leaves it to queue pair numbers.
fn parse(value: &str) -> Option<Option<u16>> {
    if value.trim().is_empty() {
        return Some(None);
    }
    let range = PortRange::parse(value.trim())?;
    if range.is_any() { Some(None) } else { range.single().map(Some) }
}

fn one_port() -> Option<u16> {
    PORT.as_ref().ok().copied().flatten()
}

/// The port to which packets for a queue pair go.
pub(crate) fn port(qpn: u32) -> u16 {
    one_port().unwrap_or_else(|| shared_ports::port(qpn))
}

/// What a peer is known to do.
pub(crate) fn options() -> QpOptions {
    if one_port().is_some() { QpOptions::empty() } else { QpOptions::ICRC_MASKS_IP_ID }
}

/// Gives a device the ports where its peers look for it.
///
/// # Errors
/// The setting is wrong.
pub(crate) fn listen(config: &mut SoftConfig) -> io::Result<()> {
    let port = PORT.as_ref().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, &**why))?;
    (config.ports, config.numbers_tell_port) = match port {
        Some(port) => (PortRange::only(*port), false),
        None => (shared_ports::ports(), true),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_names_one_port_or_leaves_it_to_queue_pair_numbers() {
        for (value, port) in [
            ("", Some(None)),
            ("0", Some(None)),
            ("4791", Some(Some(4791))),
            (" 4791 ", Some(Some(4791))),
            ("4791-4800", None),
            ("x", None),
            ("70000", None),
        ] {
            assert_eq!(parse(value), port, "{value}");
        }
    }
}
