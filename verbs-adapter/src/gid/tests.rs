use std::net::IpAddr;

use super::*;

/// Parses entries such as `v1 here 10.0.0.1`, each with its position in the list as the index.
fn table(entries: &[&str]) -> Vec<GidEntry> {
    let entry = |(index, text): (u8, &&str)| {
        let words: Vec<&str> = text.split(' ').collect();
        let roce_version = match words[0] {
            "v1" => Some(1),
            "v2" => Some(2),
            _ => None,
        };
        let ip: IpAddr = words[2].parse().unwrap();
        let (gid, prefix_len) = (Gid::from(ip), (words[1] == "here").then_some(24));
        GidEntry { index, gid, roce_version, ifindex: 0, prefix_len }
    };
    (0..).zip(entries).map(entry).collect()
}

fn chosen(entries: &[&str], rules: &GidRules) -> (u8, String) {
    let chosen = choose(&table(entries), rules, None).unwrap();
    (chosen.entry.index, chosen.why)
}

/// The table that Linux builds for a port with an IPv4 and an IPv6 address.
const USUAL: [&str; 6] = [
    "v1 here fe80::1",
    "v2 here fe80::1",
    "v1 here 10.0.0.1",
    "v2 here 10.0.0.1",
    "v1 here fd00::1",
    "v2 here fd00::1",
];

#[test]
fn version_and_family_decide_as_in_nccl() {
    let rules = GidRules::default();
    assert_eq!(chosen(&USUAL, &rules), (3, "RoCE v2, AF_INET".to_owned()));
    let inet6 = GidRules { family: AddressFamily::Inet6, ..rules };
    assert_eq!(chosen(&USUAL, &inet6), (5, "RoCE v2, AF_INET6".to_owned()));
    let v1 = GidRules { roce_version: 1, ..rules };
    assert_eq!(chosen(&USUAL, &v1), (2, "RoCE v1, AF_INET".to_owned()));
}

#[test]
fn an_address_of_this_namespace_goes_before_the_family() {
    let entries = ["v2 gone 10.0.0.1", "v2 here fd00::1", "v2 gone 10.0.0.2"];
    let (index, why) = chosen(&entries, &GidRules::default());
    assert_eq!((index, why.as_str()), (1, "RoCE v2, none is AF_INET"));
}

#[test]
fn where_no_address_can_be_seen_the_rest_decides_and_it_is_said() {
    let (index, why) = chosen(&["v2 gone fe80::1", "v2 gone 10.0.0.1"], &GidRules::default());
    assert_eq!(index, 1);
    assert!(why.ends_with("none is an address of this network namespace"), "{why}");
}

#[test]
fn a_version_that_nothing_tells_is_better_than_a_wrong_one() {
    let (index, why) = chosen(&["v1 here 10.0.0.1", "? here 10.0.0.2"], &GidRules::default());
    assert_eq!((index, why.as_str()), (1, "version of RoCE unknown, AF_INET"));
    assert_eq!(chosen(&["v1 here 10.0.0.1"], &GidRules::default()).1, "no GID is RoCE v2, AF_INET");
}

#[test]
fn an_index_is_taken_at_its_word_and_must_exist() {
    let rules = |index| GidRules { index: Some(index), ..GidRules::default() };
    assert_eq!(chosen(&USUAL, &rules(0)), (0, "NCCL_IB_GID_INDEX".to_owned()));
    let error = choose(&table(&USUAL[..2]), &rules(9), None).unwrap_err().to_string();
    let want = "NCCL_IB_GID_INDEX=9: the port has [0] fe80::1 RoCE v1, [1] fe80::1 RoCE v2";
    assert_eq!(error, want);
}

#[test]
fn a_range_leaves_out_what_is_not_in_it() {
    let rules = |range| GidRules { range: Subnet::parse(range), ..GidRules::default() };
    let entries = ["v2 here 10.0.0.1", "v2 here 192.168.0.1", "v2 here 10.1.0.1"];
    assert_eq!(chosen(&entries, &rules("10.1.0.0/16")).0, 2);
    assert_eq!(chosen(&entries, &rules("192.168.0.0/16")).0, 1);
    let error = choose(&table(&entries), &rules("172.16.0.0/12"), None).unwrap_err().to_string();
    assert!(error.contains("NCCL_IB_ADDR_RANGE"), "{error}");
    assert!(error.contains("[1] ::ffff:192.168.0.1 RoCE v2"), "{error}");
}

#[test]
fn of_equals_the_one_in_the_peers_subnet_is_taken() {
    let entries = table(&["v2 here 10.0.0.1", "v2 here 10.0.1.1", "v2 here fd00::1"]);
    let towards = |peer: &str| {
        let chosen = choose(&entries, &GidRules::default(), peer.parse().ok()).unwrap();
        (chosen.entry.index, chosen.why.ends_with("in the peer's subnet"))
    };
    assert_eq!(towards("10.0.1.9"), (1, true));
    assert_eq!(towards("10.0.0.9"), (0, true));
    assert_eq!(towards("192.0.2.1"), (0, false));
    // The family outranks the peer's subnet, because both ends must choose the same family.
    assert_eq!(towards("fd00::9"), (0, false));
}

#[test]
fn a_port_without_an_address_is_said_to_have_none() {
    assert_eq!(choose(&[], &GidRules::default(), None), Err(GidError::None));
}
