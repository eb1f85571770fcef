//! Interfaces, names and limits of sockets.

use serde_json::{Value, json};

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
    assert_eq!(host.mend("interface-virtual-too"), "export NCCL_SOCKET_IFNAME='=eth0'");
    host.set("NCCL_SOCKET_IFNAME", "=eth0");
    assert_eq!(host.findings(), [""; 0]);
    // A user who names an interface wants that interface.
    host.set("NCCL_SOCKET_IFNAME", "=virbr0");
    assert_eq!(host.findings(), ["note interface-virtual virbr0"]);
}

#[test]
fn interfaces_of_containers_and_tunnels_are_one_finding() {
    let mut host = StandIn::plain();
    for (name, ip) in [
        ("cali01", "fe80::1"),
        ("cali02", "fe80::2"),
        ("vxlan.calico", "10.9.0.1"),
        ("nodelocaldns", "169.254.20.10"),
    ] {
        host.facts.interfaces.push(interface(name, ip));
    }
    assert_eq!(host.findings(), ["warn interface-virtual-too cali01 and 3 more"]);
    let report = host.examine();
    let finding = report.finding("interface-virtual-too");
    let what = "Invar and NCCL also use interfaces that lead into a tunnel, or to guests of this host only: \
                cali01 (fe80::1) and 3 more";
    assert_eq!(finding.what, what);
    assert!(finding.costs.contains("through a tunnel, or connections to them fail"));
    assert_eq!(finding.mend, "export NCCL_SOCKET_IFNAME='=eth0'");
}

#[test]
fn a_tunnel_that_is_chosen_before_a_card() {
    let mut host = StandIn::plain();
    host.facts.interfaces.insert(1, interface("tailscale0", "100.64.0.7"));
    assert_eq!(host.findings(), ["warn interface-virtual tailscale0"]);
    let what = host.what("interface-virtual");
    assert!(
        what.contains("an interface that leads into a tunnel: tailscale0 (100.64.0.7)"),
        "{what}"
    );
}

#[test]
fn a_setting_that_leaves_no_interface() {
    let mut host = StandIn::plain();
    host.set("NCCL_SOCKET_IFNAME", "ib0");
    assert_eq!(host.findings(), ["bad interface-none NCCL_SOCKET_IFNAME"]);
    assert_eq!(host.mend("interface-none"), "unset NCCL_SOCKET_IFNAME");
    assert!(host.what("interface-none").contains("eth0 (10.0.0.7)"));
    host.facts.interfaces.push(interface("ib0", "10.2.0.1"));
    host.facts.interfaces[2].up = false;
    assert!(host.mend("interface-none").starts_with("ip link set ib0 up"));
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
    assert!(host.mend("hostname-loopback").ends_with(": 10.0.0.7 node7"));
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
    assert!(host.mend("rmem-small").starts_with("sysctl -w net.core.rmem_max=16777216"));
    host.facts.forces_buffers = true;
    assert_eq!(host.findings(), [""; 0]);
    let host = StandIn::plain();
    host.tree.file("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t262144");
    host.tree.file("proc/sys/net/core/somaxconn", "128");
    let found =
        ["warn tcp-rmem-small net.ipv4.tcp_rmem", "warn somaxconn-small net.core.somaxconn"];
    assert_eq!(host.findings(), found);
    let mend = &host.mend("tcp-rmem-small");
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
    assert_eq!(
        host.mend("congestion-refused"),
        "sysctl -w net.ipv4.tcp_allowed_congestion_control='reno cubic bbr'   # for ever: a file in \
         /etc/sysctl.d"
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

/// The output of `nft -j list ruleset` for a table with an input chain of this policy, and these rules of chains.
/// The handles of the rules are their places in the list.
fn ruleset<T: Into<Value>>(
    [family, table, input]: [&str; 3],
    policy: &str,
    rules: Vec<(&str, T)>,
) -> String {
    let mut entries = vec![json!({ "chain": {
        "family": family, "table": table, "name": input, "type": "filter", "hook": "input", "policy": policy,
    } })];
    for (handle, (chain, statements)) in rules.into_iter().enumerate() {
        let expr: Value = statements.into();
        entries.push(json!({ "rule": {
            "family": family, "table": table, "chain": chain, "handle": handle, "expr": expr,
        } }));
    }
    json!({ "nftables": entries }).to_string()
}

/// The rules of an input chain with this policy and one rule.
fn input_chain(policy: &str, rule: Value) -> String {
    ruleset(["ip", "filter", "INPUT"], policy, vec![("INPUT", rule)])
}

fn is(op: &str, left: Value, right: Value) -> Value {
    json!({ "match": { "op": op, "left": left, "right": right } })
}

fn dport(protocol: &str, ports: &Value) -> Value {
    is("==", json!({ "payload": { "protocol": protocol, "field": "dport" } }), ports.clone())
}

#[test]
fn a_packet_filter_that_drops_ports_of_invar() {
    let mut host = StandIn::plain();
    let verdict = |protocol: &str, ports: Value, verdict: &str| json!([dport(protocol, &ports), { verdict: null }]);
    let range = json!({ "range": [1024, 65535] });
    host.facts.packet_filter = Ok(input_chain("drop", verdict("tcp", range, "accept")));
    assert_eq!(host.findings(), ["note firewall-udp INVAR_SOFT_PORT"]);
    host.set("INVAR_TRANSPORT", "soft");
    assert_eq!(host.findings(), ["bad firewall-udp INVAR_SOFT_PORT"]);
    let mend = host.mend("firewall-udp");
    let insert = "nft insert rule ip filter INPUT udp dport";
    assert!(mend.starts_with(&format!("export INVAR_SOFT_PORT=21000-21100; {insert} ")), "{mend}");
    // The second port of a range is dropped.
    host.set("INVAR_SOFT_PORT", "4791-4792");
    host.facts.packet_filter = Ok(input_chain("accept", verdict("udp", 4792.into(), "drop")));
    let report = host.examine();
    let finding = report.finding("firewall-udp");
    let what = "nftables' chain ip filter INPUT at the hook input drops UDP to port 4792: its rule with \
                handle 0 drops them";
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
    let drop = json!([{ "drop": null }]);
    host.facts.packet_filter = Ok(input_chain("accept", drop));
    let of_all = ["bad firewall-tcp INVAR_PORT_RANGE", "note firewall-udp INVAR_SOFT_PORT"];
    assert_eq!(host.findings(), of_all);
    host.remove("sys/class/infiniband/mlx5_1/device");
    assert_eq!(host.findings()[0], "bad firewall-udp mlx5_1");
}

/// The rules of firewalld on a host with Docker. Its default zone lets ssh and these ports pass.
fn firewalld(ports: &Value) -> String {
    let is = |left: Value, right: Value| is("in", left, right);
    let [state, status] = ["state", "status"].map(|key| json!({ "ct": { "key": key } }));
    let from = |name: &str| is(json!({ "meta": { "key": "iifname" } }), json!(name));
    let to = |verdict: &str, chain: &str| json!({ verdict: { "target": chain } });
    let accept = json!({ "accept": null });
    let reject = json!({ "reject": { "type": "icmpx", "expr": "admin-prohibited" } });
    let new = is(state.clone(), json!({ "set": ["new", "untracked"] }));
    let known = is(state.clone(), json!({ "set": ["established", "related"] }));
    let icmp = is(json!({ "meta": { "key": "l4proto" } }), json!({ "set": ["icmp", "ipv6-icmp"] }));
    let rules = vec![
        ("filter_INPUT", vec![known, accept.clone()]),
        ("filter_INPUT", vec![is(status, json!("dnat")), accept.clone()]),
        ("filter_INPUT", vec![from("lo"), accept.clone()]),
        ("filter_INPUT", vec![is(state, json!("invalid")), json!({ "drop": null })]),
        ("filter_INPUT", vec![to("jump", "filter_INPUT_ZONES")]),
        ("filter_INPUT", vec![reject.clone()]),
        ("filter_INPUT_ZONES", vec![from("docker0"), to("goto", "filter_IN_docker")]),
        ("filter_INPUT_ZONES", vec![from("eth0"), to("goto", "filter_IN_public")]),
        ("filter_INPUT_ZONES", vec![to("goto", "filter_IN_public")]),
        ("filter_IN_docker", vec![accept.clone()]),
        ("filter_IN_public", vec![to("jump", "filter_IN_public_allow")]),
        ("filter_IN_public", vec![icmp, accept.clone()]),
        ("filter_IN_public", vec![reject]),
        ("filter_IN_public_allow", vec![dport("tcp", &json!(22)), new.clone(), accept.clone()]),
        ("filter_IN_public_allow", vec![dport("tcp", ports), new, accept]),
    ];
    ruleset(["inet", "firewalld", "filter_INPUT"], "accept", rules)
}

#[test]
fn firewalld_drops_what_its_default_zone_does_not_let_pass() {
    let mut host = StandIn::plain();
    host.set("INVAR_PORT_RANGE", "20000-20001");
    host.facts.packet_filter = Ok(firewalld(&9090.into()));
    let found = ["bad firewall-tcp INVAR_PORT_RANGE", "note firewall-udp INVAR_SOFT_PORT"];
    assert_eq!(host.findings(), found);
    let report = host.examine();
    let finding = report.finding("firewall-tcp");
    let what = "nftables' chain inet firewalld filter_INPUT at the hook input drops TCP to port 20000: it \
                jumps to filter_IN_public, and there its rule with handle 12 drops them";
    assert_eq!(finding.what, what);
    let mend = "firewall-cmd --permanent --add-port=20000-20001/tcp && firewall-cmd --reload ";
    assert!(finding.mend.starts_with(mend), "{}", finding.mend);
    let range = json!({ "range": [20000, 20001] });
    host.facts.packet_filter = Ok(firewalld(&range));
    assert_eq!(host.findings(), ["note firewall-udp INVAR_SOFT_PORT"]);
}

/// The rules of ufw on a host that lets TCP to this port pass, as iptables gives them to nftables.
fn ufw(port: u16) -> String {
    let state =
        |states: Value| is("in", json!({ "ct": { "key": "state" } }), json!({ "set": states }));
    let xt = |kind: &str| json!({ "xt": { "type": "match", "name": kind } });
    let to = |chain: &str| json!({ "jump": { "target": chain } });
    let [accept, drop, back] = ["accept", "drop", "return"].map(|kind| json!({ kind: null }));
    let lo = is("==", json!({ "meta": { "key": "iifname" } }), json!("lo"));
    let group = json!({ "payload": { "protocol": "ip", "field": "daddr" } });
    let group = is("==", group, json!("224.0.0.251"));
    let rules = vec![
        ("INPUT", vec![to("ufw-before-logging-input")]),
        ("INPUT", vec![to("ufw-before-input")]),
        ("ufw-before-logging-input", vec![xt("limit"), json!({ "log": null })]),
        ("ufw-before-input", vec![lo, accept.clone()]),
        ("ufw-before-input", vec![state(json!(["related", "established"])), accept.clone()]),
        ("ufw-before-input", vec![state(json!(["invalid"])), drop.clone()]),
        ("ufw-before-input", vec![to("ufw-not-local")]),
        ("ufw-not-local", vec![xt("addrtype"), back.clone()]),
        ("ufw-not-local", vec![xt("addrtype"), back]),
        ("ufw-not-local", vec![drop]),
        ("ufw-before-input", vec![group, dport("udp", &json!(5353)), accept.clone()]),
        ("ufw-before-input", vec![to("ufw-user-input")]),
        ("ufw-user-input", vec![dport("tcp", &port.into()), accept]),
    ];
    ruleset(["ip", "filter", "INPUT"], "drop", rules)
}

#[test]
fn ufw_drops_ports_that_none_of_its_rules_let_pass() {
    let mut host = StandIn::plain();
    host.set("INVAR_PORT_RANGE", "20000");
    host.facts.packet_filter = Ok(ufw(20000));
    assert_eq!(host.findings(), ["note firewall-udp INVAR_SOFT_PORT"]);
    host.facts.packet_filter = Ok(ufw(22));
    let found = ["bad firewall-tcp INVAR_PORT_RANGE", "note firewall-udp INVAR_SOFT_PORT"];
    assert_eq!(host.findings(), found);
    let what = host.what("firewall-tcp");
    let policy =
        "chain ip filter INPUT at the hook input drops TCP to port 20000: its policy is drop";
    assert!(what.contains(policy), "{what}");
}

#[test]
fn a_filter_that_lets_only_some_addresses_pass_is_a_note() {
    let mut host = StandIn::plain();
    let from = json!({ "payload": { "protocol": "ip", "field": "saddr" } });
    let rule = json!([is("==", from, json!("10.0.0.0")), { "accept": null }]);
    host.facts.packet_filter = Ok(input_chain("drop", rule));
    let found = ["note firewall-udp INVAR_SOFT_PORT", "note firewall-tcp INVAR_PORT_RANGE"];
    assert_eq!(host.findings(), found);
    let what = host.what("firewall-tcp");
    assert!(what.contains(" at the hook input may drop TCP to every port "), "{what}");
    assert!(what.ends_with("; earlier rules may accept some of them"), "{what}");
}
