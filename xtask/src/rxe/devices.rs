//! Tests `invar devices` in the guest: it lists each device with its interface, its GID and its speed.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::guest;
use crate::shell::Shell;

/// The device, interface and address of each RDMA device that `xtask/vm/init` creates.
const DEVICES: [[&str; 3]; 3] = [
    ["rxe_a", "veth0", "192.0.2.1"],
    ["rxe_b", "veth1", "192.0.2.2"],
    ["rxe_t", "eth0", "198.51.100.2"],
];

pub(super) fn run(shell: &Shell, invar: &str) -> Result<()> {
    check(&guest(shell, None, &format!("{invar} devices --json"))?)
        .context("invar devices in the guest")
}

fn check(json: &str) -> Result<()> {
    let devices: Value = serde_json::from_str(json.trim()).with_context(|| json.to_owned())?;
    let devices = devices.as_array().context("no list of devices")?;
    let listed: Vec<&Value> = devices.iter().filter(|device| device["kind"] == "ib").collect();
    ensure!(listed.len() == DEVICES.len(), "there are {} RDMA devices: {json}", listed.len());
    for (device, [name, netdev, address]) in listed.into_iter().zip(DEVICES) {
        let expected = json!({
            "name": name,
            "netdev": netdev,
            "address": address,
            "gid": format!("::ffff:{address}"),
            "gid_index": 1,
            "gid_why": "RoCE v2, AF_INET",
            "mtu": 1024,
            "udp_port": 4791,
            "state": "active",
        });
        for (key, value) in expected.as_object().into_iter().flatten() {
            ensure!(device[key] == *value, "{key} of {name} is not {value}: {device}");
        }
        // QEMU's network card reports no speed, so the kernel assumes 1 Gb/s.
        ensure!(device["speed_mbps"].as_u64() >= Some(1000), "{name} has no speed: {device}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_missing_or_is_another_does_not_pass() {
        let listed = DEVICES.map(|[name, netdev, address]| {
            json!({
                "name": name, "kind": "ib", "netdev": netdev, "address": address,
                "gid": format!("::ffff:{address}"), "gid_index": 1, "gid_why": "RoCE v2, AF_INET",
                "mtu": 1024, "udp_port": 4791, "state": "active", "speed_mbps": 2500,
            })
        });
        let text = json!(listed).to_string();
        check(&text).unwrap();
        assert!(check(&json!(listed[..2]).to_string()).is_err());
        for (from, to) in [
            ("rxe_b", "rxe_c"),
            ("veth1", ""),
            ("::ffff:192.0.2.2", "fe80::1"),
            ("\"speed_mbps\":2500", "\"speed_mbps\":null"),
            ("active", "down"),
        ] {
            assert!(check(&text.replace(from, to)).is_err(), "{from} -> {to}");
        }
        assert!(check("").is_err());
    }
}
