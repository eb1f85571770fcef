use invar_linux::interface::InterfaceAddress;

use super::*;
use crate::fake::{Fake, LIBRARY};

/// Lists all ports, with each device on the PCI device that `pci_path` returns.
fn list_all(pci_path: fn(&str) -> Option<String>) -> Listing {
    list_with(&LIBRARY, &Rules::default(), &pci_path)
}

/// Lists the ports of the fake's device, which has two, and the messages about the setting.
fn listed(hca: &str) -> (Vec<String>, Vec<String>) {
    let _fake = Fake::new();
    let hca = NameFilter::parse(hca).unwrap();
    let listing = list_with(&LIBRARY, &Rules { hca, ..Rules::default() }, &|_| None);
    let by_setting = listing.omitted.iter().filter(|omission| omission.by_setting);
    let said = by_setting.map(ToString::to_string).collect();
    (listing.ports.into_iter().map(|port| port.name).collect(), said)
}

#[test]
fn what_the_setting_names_in_vain_is_said_entry_by_entry() {
    let none = |entry| format!("NCCL_IB_HCA: {entry} is none of the RDMA devices fake0, fake0:2");
    for (hca, ports, in_vain) in [
        ("", vec!["fake0", "fake0:2"], vec![]),
        ("fake", vec!["fake0", "fake0:2"], vec![]),
        ("fake0:2", vec!["fake0:2"], vec![]),
        ("fake0:3", vec![], vec!["fake0:3"]),
        ("=fake", vec![], vec!["fake"]),
        ("=fake0:1,mlx5_9", vec!["fake0"], vec!["mlx5_9"]),
        ("^fake0:1", vec!["fake0:2"], vec![]),
        ("^mlx5_9", vec!["fake0", "fake0:2"], vec![]),
    ] {
        let in_vain: Vec<String> = in_vain.into_iter().map(none).collect();
        let (listed, said) = listed(hca);
        assert_eq!(
            (listed, said),
            (ports.into_iter().map(String::from).collect(), in_vain),
            "{hca}"
        );
    }
}

#[test]
fn who_leaves_out_all_devices_is_told_which_there_are() {
    let _fake = Fake::new();
    let hca = NameFilter::parse("^fake").unwrap();
    let listing = list_with(&LIBRARY, &Rules { hca, ..Rules::default() }, &|_| None);
    let said: Vec<String> = listing.omitted.iter().map(ToString::to_string).collect();
    assert_eq!(said, ["NCCL_IB_HCA leaves out all RDMA devices: fake0, fake0:2"]);
}

/// Returns the name of each port and its number on the card.
fn on_cards(listing: &Listing) -> Vec<(&str, u32)> {
    listing.ports.iter().map(|port| (port.name.as_str(), port.card_port)).collect()
}

#[test]
fn ports_of_one_device_are_of_one_card_and_numbered() {
    let _fake = Fake::with_ports(1, 2);
    let listing = list_all(|_| Some("/sys/devices/pci0000:3a/0000:3b:00.1".to_owned()));
    assert_eq!(on_cards(&listing), [("fake0", 1), ("fake0:2", 2)]);
    let [first, second] = &listing.ports[..] else { panic!("{listing:?}") };
    assert_eq!((first.device.as_str(), first.attr.port_num), ("fake0", 1));
    assert_eq!((second.device.as_str(), second.attr.port_num), ("fake0", 2));
    assert_eq!(first.pci_path.as_deref(), Some("/sys/devices/pci0000:3a/0000:3b:00.0"));
    assert_eq!(first.pci_path, second.pci_path);
    assert_eq!(first.attr.speed_mbps, 100_000);
}

#[test]
fn devices_that_speak_iwarp_are_left_out() {
    let _fake = Fake::with_ports(1, 1);
    let sysfs = tempfile::tempdir().unwrap();
    let device = sysfs.path().join("class/infiniband/fake0");
    std::fs::create_dir_all(&device).unwrap();
    for (node_type, ports) in [("1: CA\n", 1), ("4: RNIC\n", 0)] {
        std::fs::write(device.join("node_type"), node_type).unwrap();
        let rules = Rules { sysfs: sysfs.path(), ..Rules::default() };
        let listing = list_with(&LIBRARY, &rules, &|_| None);
        assert_eq!(listing.ports.len(), ports, "{node_type}");
        let said: Vec<String> = listing.omitted.iter().map(ToString::to_string).collect();
        assert_eq!(said.iter().any(|said| said.contains("iWARP")), ports == 0, "{said:?}");
    }
}

#[test]
fn a_speed_that_only_all_attributes_tell_is_found_where_the_context_has_them() {
    let speed = |fake: Fake| {
        let listing = list_all(|_| None);
        drop(fake);
        listing.ports[0].attr.speed_mbps
    };
    let known = size_of::<crate::sys::verbs_context>();
    assert_eq!(speed(Fake::new()), 100_000);
    // An older library's context is too short to contain the call.
    assert_eq!(speed(Fake::with_extended_context(known - 8)), 100_000);
    assert_eq!(speed(Fake::with_extended_context(known)), 800_000);
    assert_eq!(speed(Fake::with_extended_context(known + 8)), 800_000);
}

#[test]
fn functions_of_one_card_share_its_path_and_have_numbers_of_their_own() {
    let _fake = Fake::with_ports(3, 1);
    let listing = list_all(|device| {
        let function = match device {
            "fake0" => "3b:00.0",
            "fake1" => "3b:00.1",
            _ => "86:00.0",
        };
        Some(format!("/sys/devices/pci0000:00/0000:{function}"))
    });
    assert_eq!(on_cards(&listing), [("fake0", 1), ("fake1", 2), ("fake2", 1)]);
    let paths: Vec<_> = listing.ports.iter().map(|port| port.pci_path.as_deref()).collect();
    assert_eq!(paths[0], paths[1]);
    assert_ne!(paths[0], paths[2]);
}

#[test]
fn devices_are_in_the_order_of_their_bus() {
    let _fake = Fake::with_ports(3, 1);
    let listing = list_all(|device| {
        let address = match device {
            "fake0" => return None,
            "fake1" => "0000:40/0000:c1:00.0",
            _ => "0000:80/0000:81:00.0/0000:83:00.0",
        };
        Some(format!("/sys/devices/pci{address}"))
    });
    assert_eq!(on_cards(&listing), [("fake2", 1), ("fake1", 1), ("fake0", 1)]);
}

#[test]
fn devices_on_no_bus_are_cards_of_their_own() {
    let _fake = Fake::with_ports(3, 1);
    let listing = list_all(|_| None);
    assert_eq!(on_cards(&listing), [("fake0", 1), ("fake1", 1), ("fake2", 1)]);
}

#[test]
fn ports_beyond_the_most_that_are_listed_are_named() {
    let _fake = Fake::with_ports(3, 11);
    let listing = list_all(|_| None);
    assert_eq!(listing.ports.len(), PORTS_MAX);
    let left_out: Vec<String> = listing.omitted.iter().map(ToString::to_string).collect();
    assert_eq!(left_out, ["fake2:11: there are 32 ports before it"]);
}

#[test]
fn an_interface_is_that_of_a_gid_by_its_address_and_of_several_by_its_number() {
    let interface = |name: &str, index, ip: &str| {
        let ip = ip.parse().unwrap();
        let address = InterfaceAddress { ip, prefix_len: 64, scope_id: 0 };
        let (name, addresses) = (name.to_owned(), vec![address]);
        let (up, loopback, mtu) = (true, false, 1500);
        Interface { name, index, up, loopback, mtu, addresses }
    };
    let interfaces = [
        interface("lo", 1, "127.0.0.1"),
        interface("eth0", 2, "fe80::1"),
        interface("eth1", 3, "fe80::1"),
        interface("eth2", 4, "10.0.0.1"),
    ];
    let found = |ip: &str, ifindex| {
        let ip: IpAddr = ip.parse().unwrap();
        let (gid, roce_version, prefix_len) = (ip.into(), Some(2), None);
        let entry = GidEntry { index: 3, gid, roce_version, ifindex, prefix_len };
        netdev(&entry, &interfaces).map(|interface| interface.name.as_str())
    };
    assert_eq!(found("10.0.0.1", 4), Some("eth2"));
    assert_eq!(found("fe80::1", 2), Some("eth0"));
    assert_eq!(found("fe80::1", 3), Some("eth1"));
    assert_eq!(found("fe80::1", 0), Some("eth0"));
    // In another network namespace the index 3 names another interface than here.
    assert_eq!(found("10.0.0.1", 3), Some("eth2"));
    assert_eq!(found("10.9.9.9", 3), None);
}
