//! Lists the software NICs that a host can have.

use std::cmp::Reverse;
use std::io;
use std::net::IpAddr;

use invar_core::param::AddressFamily;

use super::nic::SoftConfig;
use crate::interface::{Interface, InterfaceAddress};

/// A software NIC that this host can have, and its interface.
#[derive(Clone, Debug)]
pub struct HostDevice {
    /// How to open the NIC.
    pub config: SoftConfig,
    /// The interface that has the NIC's address.
    pub interface: Interface,
}

/// A list of devices names one that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is none of the devices {there_is}")]
pub struct UnknownDevice {
    name: String,
    there_is: String,
}

/// Returns one software NIC for each interface that has an address of `family`. The names are `soft0`,
/// `soft1`, … in the order of interface indices, with loopback last. An interface that is down counts too,
/// so that the names of the other NICs stay when a cable is pulled.
///
/// If an interface has several addresses, the NIC prefers a global IPv6 address, because the ICRC of
/// every packet can be verified over it. IPv4 comes second, and link-local IPv6 last.
pub fn devices(family: AddressFamily) -> io::Result<Vec<HostDevice>> {
    Ok(devices_on(Interface::list()?, family))
}

/// Returns the devices that `list` names, in the order of the list (`INVAR_SOFT_DEVICES`). The names are
/// those of interfaces or of devices, with commas between them. An empty list takes all devices. A second
/// name of a device has no effect.
///
/// # Errors
/// A name is that of no device.
pub fn choose(devices: Vec<HostDevice>, list: &str) -> Result<Vec<HostDevice>, UnknownDevice> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    let places = names.map(|name| {
        let is_named =
            |device: &HostDevice| device.config.name == name || device.interface.name == name;
        devices.iter().position(is_named).ok_or_else(|| {
            let there_is = devices
                .iter()
                .map(|HostDevice { config, interface }| {
                    format!("{} ({})", config.name, interface.name)
                })
                .collect::<Vec<_>>()
                .join(", ");
            UnknownDevice { name: name.to_owned(), there_is }
        })
    });
    let places = places.collect::<Result<Vec<_>, _>>()?;
    if places.is_empty() {
        return Ok(devices);
    }
    let first = |&(at, place): &(usize, &usize)| !places[..at].contains(place);
    Ok(places.iter().enumerate().filter(first).map(|(_, &place)| devices[place].clone()).collect())
}

fn devices_on(mut interfaces: Vec<Interface>, family: AddressFamily) -> Vec<HostDevice> {
    interfaces.retain(|interface| interface.path_mtu().is_some());
    interfaces.sort_by_key(|interface| (interface.loopback, interface.index));
    let found = interfaces.into_iter().filter_map(|interface| {
        let of_family = interface.addresses.iter().filter(|address| family.takes(address.ip));
        // `min_by_key` returns the first of equally good addresses.
        let address = of_family.min_by_key(|address| Reverse(preference(address)))?.socket_addr();
        Some((address, interface))
    });
    found
        .zip(0..)
        .map(|((address, interface), i)| HostDevice {
            config: SoftConfig::new(format!("soft{i}"), address),
            interface,
        })
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
            let shown = |HostDevice { config, .. }: &HostDevice| {
                format!("{} {}", config.name, config.address)
            };
            devices.iter().map(shown).collect()
        };
        let any = [
            "soft0 [2001:db8::3]:0",
            "soft1 10.0.0.4:0",
            "soft2 [fe80::5%5]:0",
            "soft3 10.0.0.7:0",
            "soft4 [::1]:0",
        ];
        assert_eq!(names(AddressFamily::Any), any);
        assert_eq!(
            names(AddressFamily::Inet),
            ["soft0 10.0.0.3:0", "soft1 10.0.0.4:0", "soft2 10.0.0.7:0", "soft3 127.0.0.1:0"]
        );
    }

    #[test]
    fn a_pulled_cable_renames_no_device() {
        let interfaces = [3, 4].map(|index| interface(index, &[&format!("10.0.0.{index}:0")]));
        let names = |interfaces: [Interface; 2]| -> Vec<String> {
            let devices = devices_on(interfaces.into(), AddressFamily::Any);
            devices.into_iter().map(|one| one.config.name + " " + &one.interface.name).collect()
        };
        let [first, second] = interfaces.clone();
        let pulled = [Interface { up: false, ..first }, second];
        assert_eq!(names(pulled), names(interfaces));
    }

    #[test]
    fn this_host_has_loopback_at_least() {
        let devices = devices(AddressFamily::Any).unwrap();
        let last = &devices.last().unwrap().config;
        assert!(last.address.ip().is_loopback());
        assert_eq!(last.name, format!("soft{}", devices.len() - 1));
    }

    #[test]
    fn a_list_chooses_devices_by_the_name_of_interface_or_device_in_its_own_order() {
        let interfaces = [3, 4, 5].map(|index| interface(index, &["10.0.0.3:0"]));
        let devices = devices_on(interfaces.into(), AddressFamily::Any);
        let chosen = |list| {
            let chosen = choose(devices.clone(), list)?;
            Ok::<_, UnknownDevice>(
                chosen.into_iter().map(|one| one.config.name).collect::<Vec<_>>(),
            )
        };
        assert_eq!(chosen("eth5,soft0").unwrap(), ["soft2", "soft0"]);
        assert_eq!(chosen(" soft1 , eth4,").unwrap(), ["soft1"]);
        assert_eq!(chosen(",").unwrap(), ["soft0", "soft1", "soft2"]);
        assert_eq!(
            chosen("eth4,eth").unwrap_err().to_string(),
            "eth is none of the devices soft0 (eth3), soft1 (eth4), soft2 (eth5)"
        );
    }
}
