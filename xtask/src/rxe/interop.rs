//! Tests the software NIC and rxe as each other's peers, and compares the result with two rxe devices.
//!
//! One program plays both sides of every scenario on any NIC (`invar_testkit::interop`) and prints what
//! they saw. The output for rxe and the software NIC must equal the output for two rxe devices.

use std::path::Path;

use anyhow::{Result, bail};

use super::{built, guest, is_full};
use crate::shell::Shell;

/// Sets a netdev MTU that has room for path MTUs up to 4096.
const JUMBO: &str = "for i in veth0 veth1 eth0; do ip link set $i mtu 4200; done";
/// Damages packets of the guest's end. The software NIC damages its own packets likewise.
const LOSSY: &str = "tc qdisc add dev eth0 root netem delay 1ms reorder 99% loss 1% duplicate 1%";

/// The software NIC's end of the cable over IPv4, and the address where the two processes meet.
const IPV4: InteropCase = InteropCase {
    device: "inet:rxe_t",
    address: "198.51.100.1",
    control: "198.51.100.1:7000",
    damage: "",
};
const IPV6: InteropCase = InteropCase {
    device: "inet6:rxe_t",
    address: "2001:db8:b::1",
    control: "[2001:db8:b::1]:7000",
    damage: "corrupt 1%",
};

struct InteropCase {
    device: &'static str,
    address: &'static str,
    control: &'static str,
    /// The damage to packets in runs with loss. Packets are corrupted over IPv6 alone, because only
    /// there the software NIC sees everything that the ICRC covers.
    damage: &'static str,
}

pub(super) fn run(shell: &Shell) -> Result<()> {
    let peer = built(shell, "build --workspace --example", "rdma_peer")?;
    let transfers = between_rxe_devices(shell, &peer, "transfers")?;
    let faults = between_rxe_devices(shell, &peer, "faults")?;
    let usual = [
        ("over IPv6, packets being lost", &IPV6, "transfers", true, &transfers),
        ("over IPv4, with faults", &IPV4, "faults", false, &faults),
    ];
    let more = [
        ("over IPv4", &IPV4, "transfers", false, &transfers),
        ("over IPv4, packets being lost", &IPV4, "transfers", true, &transfers),
        ("over IPv6, with faults", &IPV6, "faults", false, &faults),
    ];
    let more = if is_full() { &more[..] } else { &[] };
    for (what, way, table, lossy, expected) in usual.iter().chain(more).copied() {
        let seen = with_soft_nic(shell, &peer, way, table, lossy)?;
        compare(what, &seen, expected)?;
    }
    Ok(())
}

fn between_rxe_devices(shell: &Shell, peer: &Path, table: &str) -> Result<String> {
    let peer = peer.display();
    let line = format!(
        "{JUMBO}; {peer} inet:rxe_b listen [::1]:7000 {table} & \
         {peer} inet:rxe_a connect [::1]:7000 {table} && wait $!"
    );
    guest(shell, None, &line)
}

fn with_soft_nic(
    shell: &Shell,
    peer: &Path,
    way: &InteropCase,
    table: &str,
    lossy: bool,
) -> Result<String> {
    let (peer, InteropCase { device, address, control, damage }) = (peer.display(), way);
    let (impair, flag) =
        if lossy { (format!("{LOSSY} {damage}"), "lossy") } else { ("true".into(), "") };
    let host = format!("{peer} soft:{address} listen {control} {table} {flag}");
    let line = format!("{JUMBO}; {impair} && {peer} {device} connect {control} {table}");
    guest(shell, Some(&host), &line)
}

/// Fails with the lines that differ between `seen` and `expected`.
fn compare(what: &str, seen: &str, expected: &str) -> Result<()> {
    if seen.lines().count() != expected.lines().count() || expected.is_empty() {
        bail!("{what}: {} lines instead of {}", seen.lines().count(), expected.lines().count());
    }
    let differ = |(seen, expected): &(&str, &str)| seen != expected;
    let pairs = seen.lines().zip(expected.lines()).filter(differ);
    let text: String =
        pairs.map(|(s, e)| format!("\n  soft and rxe: {s}\n  rxe and rxe:  {e}")).collect();
    if !text.is_empty() {
        bail!("{what}, the software NIC and rxe see something else than two rxe devices:{text}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_told_with_both_sides() {
        assert!(compare("x", "a\nb\n", "a\nb\n").is_ok());
        let error = compare("x", "a\nb\n", "a\nc\n").unwrap_err().to_string();
        assert!(error.ends_with("\n  soft and rxe: b\n  rxe and rxe:  c"), "{error}");
    }

    #[test]
    fn a_run_that_stops_early_or_says_nothing_does_not_pass() {
        assert!(compare("x", "a\n", "a\nb\n").is_err());
        assert!(compare("x", "", "").is_err());
    }
}
