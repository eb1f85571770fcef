use super::*;
use invar_core::device::NameFilter;
use std::path::Path;

fn interface(name: &str, index: u32, addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|text| {
        let (ip, prefix_len) = text.split_once('/').unwrap();
        let ip: IpAddr = ip.parse().unwrap();
        let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let scope_id = if link_local { index } else { 0 };
        InterfaceAddress { ip, prefix_len: prefix_len.parse().unwrap(), scope_id }
    });
    Interface {
        name: name.to_owned(),
        index,
        up: true,
        loopback: name.starts_with("lo"),
        mtu: 1500,
        addresses: addresses.collect(),
    }
}

fn host() -> Vec<Interface> {
    vec![
        interface("lo", 1, &["127.0.0.1/8", "::1/128"]),
        interface("docker0", 2, &["172.17.0.1/16"]),
        interface("eth0", 3, &["10.0.0.5/24", "fd00::5/64", "fe80::5/64"]),
        interface("eth1", 4, &["10.0.1.5/24", "fe80::6/64"]),
        interface("ib0", 5, &["fd01::5/64", "fe80::7/64"]),
    ]
}

/// Returns the interfaces that `find` chooses among `interfaces`, as `name address`.
fn found(interfaces: &[Interface], names: &str, family: AddressFamily, id: &str) -> Vec<String> {
    let rules = Rules {
        names: NameFilter::parse(names).unwrap(),
        family,
        comm_id: (!id.is_empty()).then(|| id.parse().unwrap()),
    };
    let found = find(interfaces, &rules).unwrap_or_default();
    found.iter().map(|found| format!("{} {}", found.interface.name, found.addr)).collect()
}

#[test]
fn without_a_list_the_best_kind_of_interface_is_taken() {
    use AddressFamily::{Any, Inet, Inet6};
    let mut host = host();
    assert_eq!(found(&host, "", Any, ""), ["ib0 [fd01::5]:0"]);
    assert_eq!(found(&host, "", Inet, ""), ["eth0 10.0.0.5:0", "eth1 10.0.1.5:0"]);
    host.pop();
    assert_eq!(found(&host, "", Any, ""), ["eth0 10.0.0.5:0", "eth1 10.0.1.5:0"]);
    assert_eq!(found(&host, "", Inet6, ""), ["eth0 [fd00::5]:0", "eth1 [fe80::6%4]:0"]);
    assert_eq!(found(&host, "", Any, "10.0.1.9:1"), ["eth1 10.0.1.5:0"]);
    assert_eq!(found(&host, "", Any, "10.0.0.200:1"), ["eth0 10.0.0.5:0"]);
    assert_eq!(found(&host, "", Any, "172.17.3.4:1"), ["docker0 172.17.0.1:0"]);
    assert_eq!(found(&host, "", Any, "10.0.2.9:1").len(), 2, "no subnet has it");
    assert_eq!(found(&host, "", Inet6, "10.0.1.9:1").len(), 2, "the family rules it out");
    assert_eq!(found(&host, "", Any, "[fe80::9%4]:1"), ["eth1 [fe80::6%4]:0"]);
    assert_eq!(found(&host, "", Any, "[fe80::9%3]:1"), ["eth0 [fe80::5%3]:0"]);
    host.truncate(2);
    assert_eq!(found(&host, "", Any, ""), ["docker0 172.17.0.1:0"]);
    host.pop();
    assert_eq!(found(&host, "", Any, ""), ["lo 127.0.0.1:0"]);
    assert_eq!(found(&host, "", Inet6, ""), ["lo [::1]:0"]);
}

#[test]
fn a_list_of_names_is_taken_at_its_word() {
    use AddressFamily::{Any, Inet};
    let host = host();
    assert_eq!(found(&host, "eth", Any, ""), ["eth0 10.0.0.5:0", "eth1 10.0.1.5:0"]);
    assert_eq!(found(&host, "=eth1,lo", Any, ""), ["lo 127.0.0.1:0", "eth1 10.0.1.5:0"]);
    assert_eq!(found(&host, "^eth,ib", Any, ""), ["lo 127.0.0.1:0", "docker0 172.17.0.1:0"]);
    assert_eq!(found(&host, "^=eth0,lo", Inet, ""), ["docker0 172.17.0.1:0", "eth1 10.0.1.5:0"]);
    assert_eq!(found(&host, "eth1", Any, "10.0.0.9:1"), ["eth1 10.0.1.5:0"]);
    assert!(found(&host, "=eth", Any, "").is_empty());
    assert!(found(&host, "ib0", Inet, "").is_empty());
}

#[test]
fn what_is_down_is_not_used_and_an_error_says_what_there_is() {
    let mut host = host();
    host.truncate(3);
    host[2].up = false;
    assert_eq!(found(&host, "", AddressFamily::Any, ""), ["docker0 172.17.0.1:0"]);
    assert_eq!(
        found(&host, "", AddressFamily::Any, "10.0.0.9:1"),
        ["docker0 172.17.0.1:0"],
        "nor because it has the subnet"
    );
    host[1].addresses.clear();
    let names = NameFilter::parse("eth,docker").unwrap();
    let rules = Rules { names, family: AddressFamily::Any, comm_id: None };
    assert_eq!(
        find(&host, &rules).unwrap_err().to_string(),
        "no network interface is up and has an address that NCCL_SOCKET_IFNAME and \
         NCCL_SOCKET_FAMILY allow; there is: lo (127.0.0.1, ::1), docker0 (no address), \
         eth0 (down, 10.0.0.5, fd00::5, fe80::5)"
    );
    assert!(find(&[], &rules).unwrap_err().to_string().ends_with("there is: none at all"));
}

#[test]
fn this_host_has_loopback() {
    let all = Interface::list().unwrap();
    let lo = all.iter().find(|interface| interface.loopback).unwrap();
    assert!(lo.up && lo.index > 0 && lo.speed_mbps(Path::new("/sys")).is_none());
    assert_eq!(lo.addr(AddressFamily::Inet).unwrap().to_string(), "127.0.0.1:0");
    assert_eq!(lo.addresses[0].prefix_len, 8);
    assert_eq!(lo.path_mtu(), Some(Mtu::Mtu4096));
    for ip in ["127.0.0.1", "127.9.8.7"] {
        let holder = Interface::holding(ip.parse().unwrap()).unwrap();
        assert_eq!(holder.as_ref(), Some(lo));
    }
    assert_eq!(Interface::holding("203.0.113.1".parse().unwrap()).unwrap(), None);
    for interface in &all {
        let ips = || interface.addresses.iter();
        assert!(ips().is_sorted_by_key(|addr| (addr.ip.is_ipv6(), addr.scope_id != 0)));
        assert!(ips().all(|addr| addr.scope_id == 0 || addr.scope_id == interface.index));
        assert_eq!(interface.addr(AddressFamily::Any).is_some(), ips().len() > 0 && interface.up);
    }
}

fn may(place: &str, peer: &str) -> bool {
    let [place, peer] = [place, peer].map(|ip| ip.parse().unwrap());
    may_lead_to(place, peer, "192.0.2.2".parse().unwrap())
}

#[test]
fn only_a_peer_on_this_host_is_led_back_to_it() {
    for here in ["127.0.0.1", "::1", "::ffff:127.0.0.5", "0.0.0.0", "::", "192.0.2.2"] {
        assert!(!may(here, "192.0.2.1") && !may(here, "2001:db8::1"), "{here}");
        assert!(may(here, "127.0.0.1") && may(here, "192.0.2.2"), "{here}");
    }
    assert!(may("192.0.2.1", "192.0.2.1") && may("198.51.100.1", "192.0.2.1"));
}

#[test]
fn every_address_of_an_interface_is_of_this_host() {
    let ips = || {
        let interfaces = Interface::list().unwrap().into_iter();
        interfaces.flat_map(|interface| interface.addresses).map(|address| address.ip)
    };
    for ip in ips() {
        let here = ip.to_string();
        let is_known = !may(&here, "192.0.2.1") && may("::1", &here);
        let has_gone = || ips().all(|other| other != ip);
        assert!(is_known || has_gone(), "{here}");
    }
}

#[test]
fn a_link_local_peer_is_on_the_link_of_the_interface_whatever_number_its_host_gives_it() {
    let eth1 = interface("eth1", 4, &["fe80::6/64"]);
    let reached = |peer: &str| eth1.on_its_link(peer.parse().unwrap()).to_string();
    for (peer, address) in [
        ("[fe80::9%7]:5000", "[fe80::9%4]:5000"),
        ("[fe80::9]:5000", "[fe80::9%4]:5000"),
        ("[fd00::9]:5000", "[fd00::9]:5000"),
        ("169.254.0.9:5000", "169.254.0.9:5000"),
    ] {
        assert_eq!(reached(peer), address);
    }
}

#[test]
fn the_path_mtu_leaves_room_for_all_headers() {
    for (mtu, path) in [
        (65_536, Some(Mtu::Mtu4096)),
        (9000, Some(Mtu::Mtu4096)),
        (4200, Some(Mtu::Mtu4096)),
        (4191, Some(Mtu::Mtu2048)),
        (1500, Some(Mtu::Mtu1024)),
        (352, Some(Mtu::Mtu256)),
        (351, None),
        (0, None),
    ] {
        assert_eq!(Interface { mtu, ..interface("eth0", 1, &[]) }.path_mtu(), path, "{mtu}");
    }
}

#[test]
fn long_packets_fit_the_interface_and_fill_trains() {
    for (mtu, address, long, packets) in [
        (65_536, "127.0.0.1", 8128, 8),
        (9000, "10.0.0.1", 8128, 8),
        (4400, "10.0.0.1", 4288, 15),
        (5000, "10.0.0.1", 4864, 13),
        (4200, "10.0.0.1", 0, 0),
        (1500, "10.0.0.1", 1408, 45),
        (1500, "fd00::1", 1344, 47),
        (1100, "fd00::1", 960, 64),
        (352, "10.0.0.1", 0, 0),
        (0, "10.0.0.1", 0, 0),
    ] {
        let interface = Interface { mtu, ..interface("eth0", 1, &[]) };
        assert_eq!(interface.long_mtu_bytes(address.parse().unwrap()), long, "{mtu}");
        assert!(packets * (long as usize + 28) <= TRAIN_BYTES_MAX);
        assert!(long == 0 || packets * long as usize > TRAIN_BYTES_MAX / 16 * 15);
    }
}

#[test]
fn host_and_port_are_resolved_in_every_form() {
    let lo = Interface::list().unwrap().into_iter().find(|interface| interface.loopback).unwrap();
    for (text, addr) in [
        ("127.0.0.1:80".to_owned(), "127.0.0.1:80".to_owned()),
        ("[fd00::1]:80".to_owned(), "[fd00::1]:80".to_owned()),
        ("[fe80::1%7]:80".to_owned(), "[fe80::1%7]:80".to_owned()),
        (format!("[fe80::1%{}]:80", lo.name), format!("[fe80::1%{}]:80", lo.index)),
    ] {
        assert_eq!(resolve(&text, None).unwrap(), [addr.parse().unwrap()]);
        assert_eq!(resolve(&text, Some(1)).unwrap(), [addr.parse().unwrap()]);
    }
    let names = resolve("localhost:80", None).unwrap();
    assert!(!names.is_empty() && names.iter().all(|addr| addr.ip().is_loopback()), "{names:?}");
    for text in ["", "127.0.0.1", "127.0.0.1:port", "127.0.0.1:65536", "[fe80::1]", "[::1%]:1"] {
        let error = resolve(text, None).unwrap_err().to_string();
        assert!(error.starts_with(&format!("'{text}' is no HOST:PORT: ")), "{error}");
    }
    let error = resolve("fd00::1", None).unwrap_err().to_string();
    assert_eq!(
        error,
        "'fd00::1' is no HOST:PORT: an address of IPv6 goes in brackets, as in [::1]:80"
    );
    // This text cannot be a name, so no resolver is asked.
    let error = resolve("no name:80", None).unwrap_err().to_string();
    assert!(error.starts_with("'no name:80' is not found: "), "{error}");
    for text in ["[fe80::1%none-such]:80", "fe80::1%none-such"] {
        let error = resolve(text, Some(80)).unwrap_err().to_string();
        assert!(error.ends_with(": this host has no interface 'none-such'"), "{error}");
    }
}

#[test]
fn a_host_without_a_port_has_the_default_one() {
    for (text, addr) in [
        ("127.0.0.1", "127.0.0.1:80"),
        ("[fd00::1]", "[fd00::1]:80"),
        ("fd00::1", "[fd00::1]:80"),
        ("fe80::1%7", "[fe80::1%7]:80"),
        ("[fe80::1%7]", "[fe80::1%7]:80"),
    ] {
        assert_eq!(resolve(text, Some(80)).unwrap(), [addr.parse().unwrap()], "{text}");
    }
    assert!(resolve("localhost", Some(80)).unwrap().iter().all(|addr| addr.port() == 80));
    for text in ["", "127.0.0.1:", "127.0.0.1:port"] {
        let error = resolve(text, Some(80)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("'{text}' is no HOST and no HOST:PORT: ")), "{error}");
    }
}

#[test]
fn the_form_of_a_host_is_checked_without_the_resolver() {
    for (text, port) in [("no name:80", None), ("no.such.host", Some(80)), ("[::1]:80", None)] {
        check_host_port(text, port).unwrap();
    }
    for text in ["host:port", "", "host:80:80:"] {
        let error = check_host_port(text, Some(80)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }
}
