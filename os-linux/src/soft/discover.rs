//! Lists the software NICs that a host can have.

use std::cmp::Reverse;
use std::io;
use std::net::IpAddr;

use invar_core::param::AddressFamily;

use super::nic::SoftConfig;
use crate::interface::{Interface, InterfaceAddress};

/// Returns one software NIC for each interface that is up and has an address of `family`. The names are
/// `soft0`, `soft1`, … in the order of interface indices, with loopback last.
///
/// If an interface has several addresses, the NIC prefers a global IPv6 address, because the ICRC of
/// every packet can be verified over it. IPv4 comes second, and link-local IPv6 last.
pub fn devices(family: AddressFamily) -> io::Result<Vec<SoftConfig>> {
    Ok(devices_on(Interface::list()?, family))
}

fn devices_on(mut interfaces: Vec<Interface>, family: AddressFamily) -> Vec<SoftConfig> {
    interfaces.retain(|interface| interface.up && interface.path_mtu().is_some());
    interfaces.sort_by_key(|interface| (interface.loopback, interface.index));
    let addresses = interfaces.iter().filter_map(|interface| {
        let of_family = interface.addresses.iter().filter(|address| family.takes(address.ip));
        // `min_by_key` returns the first of equally good addresses.
        of_family.min_by_key(|address| Reverse(preference(address)))
    });
    addresses
        .zip(0..)
        .map(|(address, i)| SoftConfig::new(format!("soft{i}"), address.socket_addr()))
        .collect()
}

fn preference(address: &InterfaceAddress) -> u8 {
    match address.ip {
        IpAddr::V6(_) if address.scope_id == 0 => 2,
        IpAddr::V4(_) => 1,
        IpAddr::V6(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn interface(index: u32, addresses: &[&str]) -> Interface {
        let address = |text: &&str| {
            let addr: SocketAddr = text.parse().unwrap();
            let scope_id = if let SocketAddr::V6(v6) = addr { v6.scope_id() } else { 0 };
            InterfaceAddress { ip: addr.ip(), prefix_len: 64, scope_id }
        };
        Interface {
            name: format!("eth{index}"),
            index,
            up: true,
            loopback: false,
            mtu: 1500,
            addresses: addresses.iter().map(address).collect(),
        }
    }

    #[test]
    fn each_interface_is_a_device_with_its_best_address_and_loopback_is_the_last() {
        let interfaces = vec![
            Interface { loopback: true, ..interface(1, &["127.0.0.1:0", "[::1]:0"]) },
            interface(4, &["10.0.0.4:0", "10.0.0.5:0", "[fe80::4%4]:0"]),
            interface(3, &["10.0.0.3:0", "[2001:db8::3]:0", "[2001:db8::4]:0", "[fe80::3%3]:0"]),
            interface(5, &["[fe80::5%5]:0"]),
            interface(6, &[]),
            Interface { up: false, ..interface(7, &["10.0.0.7:0"]) },
            Interface { mtu: 300, ..interface(8, &["10.0.0.8:0"]) },
        ];
        let names = |family| -> Vec<String> {
            let devices = devices_on(interfaces.clone(), family);
            devices.iter().map(|device| format!("{} {}", device.name, device.address)).collect()
        };
        let any = ["soft0 [2001:db8::3]:0", "soft1 10.0.0.4:0", "soft2 [fe80::5%5]:0"];
        assert_eq!(names(AddressFamily::Any), [&any[..], &["soft3 [::1]:0"]].concat());
        assert_eq!(
            names(AddressFamily::Inet),
            ["soft0 10.0.0.3:0", "soft1 10.0.0.4:0", "soft2 127.0.0.1:0"]
        );
    }

    #[test]
    fn this_host_has_loopback_at_least() {
        let devices = devices(AddressFamily::Any).unwrap();
        let last = devices.last().unwrap();
        assert!(last.address.ip().is_loopback());
        assert_eq!(last.name, format!("soft{}", devices.len() - 1));
    }
}
