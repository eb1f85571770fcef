//! `invar devices`.

use crate::*;

#[test]
fn devices_are_listed_with_loopback_as_the_last() {
    let outcome = run(&["devices", "--json"]);
    let devices = json(&outcome.ok().stdout);
    let devices = devices.as_array().unwrap();
    let last = devices.last().expect("loopback at least");
    assert_eq!(last["kind"], "soft");
    assert_eq!(last["netdev"], "lo");
    assert_eq!(last["mtu"], 4096);
    assert_eq!(last["state"], "active");
    assert!(last["udp_port"].is_null());
    let soft = devices.iter().filter(|device| device["kind"] == "soft");
    for (i, device) in soft.enumerate() {
        assert_eq!(device["name"], format!("soft{i}"));
    }
    let table = run(&["devices"]);
    let lines: Vec<&str> = table.ok().stdout.lines().collect();
    assert_eq!(lines.len(), 1 + devices.len());
    assert!(lines[0].starts_with("name "), "{}", lines[0]);
    assert!(lines[lines.len() - 1].contains(" lo "), "{}", table.stdout);
}
