//! Interfaces, names and limits of sockets.

use crate::doctor::host::Lookup;
use crate::doctor::stand_in::{StandIn, interface};

#[test]
fn a_host_with_loopback_only() {
    let mut host = StandIn::plain();
    host.facts.interfaces.truncate(1);
    assert_eq!(host.findings(), ["warn interface-loopback lo"]);
    host.set("NCCL_SOCKET_IFNAME", "lo");
    assert_eq!(host.findings(), ["note interface-loopback lo"]);
}

#[test]
fn an_interface_of_a_container_engine_that_is_chosen() {
    let mut host = StandIn::plain();
    host.facts.interfaces[1] = interface("docker0", "172.17.0.1");
    assert_eq!(host.findings(), ["warn interface-virtual docker0"]);
    // NCCL leaves out docker0 if there is another one, but it takes virbr0.
    host.facts.interfaces.push(interface("virbr0", "192.168.122.1"));
    assert_eq!(host.findings(), ["warn interface-virtual virbr0"]);
    host.facts.interfaces.insert(1, interface("eth0", "10.0.0.7"));
    assert_eq!(host.findings(), ["warn interface-virtual-too virbr0"]);
    let report = host.examine();
    assert_eq!(report.finding("interface-virtual-too").mend, "export NCCL_SOCKET_IFNAME='=eth0'");
    host.set("NCCL_SOCKET_IFNAME", "=eth0");
    assert_eq!(host.findings(), [""; 0]);
}

#[test]
fn a_setting_that_leaves_no_interface() {
    let mut host = StandIn::plain();
    host.set("NCCL_SOCKET_IFNAME", "ib0");
    assert_eq!(host.findings(), ["bad interface-none NCCL_SOCKET_IFNAME"]);
    let report = host.examine();
    assert_eq!(report.finding("interface-none").mend, "unset NCCL_SOCKET_IFNAME");
    assert!(report.finding("interface-none").what.contains("eth0 (10.0.0.7)"));
    host.facts.interfaces.push(interface("ib0", "10.2.0.1"));
    host.facts.interfaces[2].up = false;
    assert!(host.examine().finding("interface-none").mend.starts_with("ip link set ib0 up"));
}

#[test]
fn loopback_that_is_down() {
    let mut host = StandIn::plain();
    host.facts.interfaces[0].up = false;
    assert_eq!(host.findings(), ["warn loopback-down lo"]);
}

#[test]
fn a_name_that_stands_for_loopback_or_for_nothing() {
    let mut host = StandIn::plain();
    host.facts.lookup = Lookup::Found(vec!["127.0.1.1".parse().unwrap()]);
    assert_eq!(host.findings(), ["note hostname-loopback node7"]);
    assert!(host.examine().finding("hostname-loopback").mend.ends_with(": 10.0.0.7 node7"));
    host.facts.lookup = Lookup::Failed("'node7' is not found".to_owned());
    assert_eq!(host.findings(), ["note hostname-unknown node7"]);
    host.facts.lookup = Lookup::TimedOut;
    assert_eq!(host.findings(), ["warn hostname-slow node7"]);
}

#[test]
fn small_buffers_matter_to_the_transport_that_needs_them() {
    let mut host = StandIn::plain();
    host.tree.file("proc/sys/net/core/rmem_max", "212992");
    assert_eq!(host.findings(), ["note rmem-small net.core.rmem_max"]);
    host.set("INVAR_TRANSPORT", "soft");
    assert_eq!(host.findings(), ["warn rmem-small net.core.rmem_max"]);
    let report = host.examine();
    assert!(report.finding("rmem-small").mend.starts_with("sysctl -w net.core.rmem_max=16777216"));
    host.facts.forces_buffers = true;
    assert_eq!(host.findings(), [""; 0]);
    let host = StandIn::plain();
    host.tree.file("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t262144");
    host.tree.file("proc/sys/net/core/somaxconn", "128");
    let found =
        ["warn tcp-rmem-small net.ipv4.tcp_rmem", "warn somaxconn-small net.core.somaxconn"];
    assert_eq!(host.findings(), found);
    let mend = &host.examine().finding("tcp-rmem-small").mend.clone();
    assert!(mend.starts_with("sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456'"), "{mend}");
}

#[test]
fn limits_that_the_kernel_hides_are_neither_good_nor_bad() {
    let host = StandIn::plain();
    host.remove("proc/sys/net/core/rmem_max");
    host.tree.file("proc/sys/net/core/wmem_max", "none");
    host.remove("proc/sys/net/ipv4/tcp_available_congestion_control");
    let report = host.examine();
    assert_eq!(report.short(), [""; 0]);
    let [_, unseen] = report.lines();
    assert_eq!(unseen.len(), 3, "{unseen:?}");
    assert_eq!(unseen[1], "net.core.wmem_max: 'none' is no number");
}

#[test]
fn a_congestion_control_that_the_kernel_refuses() {
    let mut host = StandIn::plain();
    host.set("INVAR_SOCKET_CONGESTION", "bbr");
    assert_eq!(host.findings(), ["bad congestion-refused INVAR_SOCKET_CONGESTION"]);
    let report = host.examine();
    assert_eq!(
        report.finding("congestion-refused").mend,
        "sysctl -w net.ipv4.tcp_allowed_congestion_control='reno cubic bbr'"
    );
    host.set("INVAR_SOCKET_CONGESTION", "vegas");
    assert_eq!(host.findings(), ["bad congestion-unknown INVAR_SOCKET_CONGESTION"]);
    host.facts.takes_congestion = true;
    assert_eq!(host.findings(), [""; 0]);
    let host = StandIn::plain();
    host.tree.file("proc/sys/net/ipv4/tcp_allowed_congestion_control", "cubic");
    let found = "note congestion-no-reno net.ipv4.tcp_allowed_congestion_control";
    assert_eq!(host.findings(), [found]);
}

/// The output of `nft -j list ruleset` where an input chain with this policy has one rule.
fn input_chain(policy: &str, rule: serde_json::Value) -> String {
    let id = serde_json::json!({ "family": "ip", "table": "filter", "name": "INPUT" });
    let (mut chain, mut rule) = (id, serde_json::json!({ "expr": rule, "handle": 5 }));
    for (key, value) in [("type", "filter"), ("hook", "input"), ("policy", policy)] {
        chain[key] = value.into();
    }
    for (key, value) in [("family", "ip"), ("table", "filter"), ("chain", "INPUT")] {
        rule[key] = value.into();
    }
    serde_json::json!({ "nftables": [{ "chain": chain }, { "rule": rule }] }).to_string()
}

#[test]
fn a_packet_filter_that_drops_ports_of_invar() {
    let mut host = StandIn::plain();
    let of = |protocol: &str| serde_json::json!({ "payload": { "protocol": protocol, "field": "dport" } });
    let verdict = |protocol: &str, ports: serde_json::Value, verdict: &str| {
        let is = serde_json::json!({ "op": "==", "left": of(protocol), "right": ports });
        serde_json::json!([{ "match": is }, { verdict: null }])
    };
    let range = serde_json::json!({ "range": [1024, 65535] });
    host.facts.packet_filter = Ok(input_chain("drop", verdict("tcp", range, "accept")));
    assert_eq!(host.findings(), ["note firewall-udp INVAR_SOFT_PORT"]);
    host.set("INVAR_TRANSPORT", "soft");
    assert_eq!(host.findings(), ["bad firewall-udp INVAR_SOFT_PORT"]);
    let mend = host.examine().finding("firewall-udp").mend.clone();
    let insert = "nft insert rule ip filter INPUT udp dport";
    assert!(mend.starts_with(&format!("export INVAR_SOFT_PORT=21000-21100; {insert} ")), "{mend}");
    // The second port of a range is dropped.
    host.set("INVAR_SOFT_PORT", "4791-4792");
    host.facts.packet_filter = Ok(input_chain("accept", verdict("udp", 4792.into(), "drop")));
    let report = host.examine();
    let finding = report.finding("firewall-udp");
    let what = "nftables' chain ip filter INPUT at the hook input drops UDP to port 4792: its rule with \
                handle 5 drops them";
    assert_eq!(finding.what, what);
    assert!(finding.mend.starts_with(&format!("{insert} 4791-4792 accept ")), "{}", finding.mend);
    host.set("INVAR_PORT_RANGE", "20000");
    host.facts.packet_filter = Ok(input_chain("accept", verdict("tcp", 20000.into(), "reject")));
    assert_eq!(host.findings(), ["bad firewall-tcp INVAR_PORT_RANGE"]);
    // No packet comes over IPv4.
    host.facts.interfaces[1] = interface("eth0", "fd00::7");
    assert_eq!(host.findings(), [""; 0]);
    host.facts.packet_filter = Err("nft: Operation not permitted".to_owned());
    let report = host.examine();
    assert_eq!(report.lines()[1], ["the rules of nftables: nft: Operation not permitted"]);
}

#[test]
fn a_packet_filter_that_drops_the_packets_of_a_device_in_software_only() {
    let mut host = StandIn::rdma();
    let drop = serde_json::json!([{ "drop": null }]);
    host.facts.packet_filter = Ok(input_chain("accept", drop));
    let of_all = ["bad firewall-tcp INVAR_PORT_RANGE", "note firewall-udp INVAR_SOFT_PORT"];
    assert_eq!(host.findings(), of_all);
    host.remove("sys/class/infiniband/mlx5_1/device");
    assert_eq!(host.findings()[0], "bad firewall-udp mlx5_1");
}
