//! Two hosts, as far as the kernel is concerned: two network namespaces and a cable.

use std::fs;

use invar_linux::tcp::SILENCE_MAX;
use invar_testkit::namespaces::{Hosts, IPV4, IPV6};

use crate::metrics::{Dir, sample};
use crate::*;

/// `invar ARGS` on one of the hosts.
fn invar(hosts: &Hosts, host: usize, args: &[&str]) -> Command {
    bare(hosts.program(host, env!("CARGO_BIN_EXE_invar")), args)
}

/// Measures between the two, and gives the result.
fn measure(
    hosts: &Hosts,
    server_addr: &str,
    client_flags: &[&str],
    env: &[(&str, &str)],
) -> serde_json::Value {
    let mut command = invar(hosts, 0, &["perf", "--server"]);
    let (server, listening) = server(command.envs(env.iter().copied()));
    let port = listening.rsplit(':').next().unwrap().to_owned();
    let addr = if server_addr.contains(':') {
        format!("[{server_addr}]:{port}")
    } else {
        format!("{server_addr}:{port}")
    };
    let flags = ["perf", "--connect", &addr, "-b", "1", "-e", "100K", "-f", "64", "-n", "30"];
    let args = [&flags[..], &["--json", "-"], client_flags].concat();
    let outcome = Run::start(invar(hosts, 1, &args).envs(env.iter().copied())).wait();
    let result = json(&outcome.ok().stdout);
    assert_eq!(server.wait().status, Some(0));
    assert_eq!(result["rows"].as_array().unwrap().len(), 3);
    assert!(result["rows"].as_array().unwrap().iter().all(|row| row["wrong"] == 0), "{result}");
    result
}

#[test]
fn two_hosts_measure_over_ipv4_and_ipv6_with_the_mtu_of_their_link() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    for (addrs, mtu) in [(IPV4, 1408), (IPV6, 1344)] {
        let result = measure(&hosts, addrs[0], &[], &[]);
        assert_eq!(result["path_mtu"], mtu);
        assert_eq!(result["address"], addrs[1]);
        assert_eq!(result["peer"], addrs[0]);
        assert_eq!(result["nic"], "soft0");
    }
    let flags = ["--adaptive-routing", "--qps", "2", "--recvs", "4"];
    let result = measure(&hosts, IPV6[0], &flags, &[]);
    assert_eq!(result["adaptive_routing"], true);
}

#[test]
fn the_wire_of_nccl_2_14_works_between_two_hosts() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let wire = [("INVAR_WIRE", "nccl-2.14")];
    let result = measure(&hosts, IPV4[0], &["--qps", "3"], &wire);
    assert_eq!(result["path_mtu"], 1024);
    assert_eq!(result["qps"], 3);
    // That wire tells of a group's messages only which are empty.
    measure(&hosts, IPV6[0], &["--recvs", "2"], &wire);
}

#[test]
fn ends_of_different_wires_both_say_so() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let (ours, nccl) = ([("INVAR_WIRE", "invar")], [("INVAR_WIRE", "nccl-2.14")]);
    for (there, here) in [(ours, nccl), (nccl, ours)] {
        let mut command = invar(&hosts, 0, &["perf", "--server"]);
        let (server, _) = server(command.envs(there));
        let mut client = invar(&hosts, 1, &["perf", "--connect", IPV4[0]]);
        let client = Run::start(client.envs(here)).wait();
        for outcome in [client, server.wait()] {
            assert!(outcome.status > Some(1), "{}", outcome.stderr);
            let said = outcome.stderr.lines().filter(|line| !line.contains(": warning: "));
            assert!(said.clone().count() > 0, "{}", outcome.stderr);
            for line in said {
                assert!(line.contains("et INVAR_WIRE alike on both"), "{}", outcome.stderr);
            }
        }
    }
}

/// In a namespace, since others may be at the one UDP port of that wire here.
#[test]
fn the_wire_of_nccl_2_14_works_between_two_processes_of_a_host() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let mut command = invar(&hosts, 0, &["perf", "-e", "8", "-n", "2", "--json", "-"]);
    let outcome = Run::start(command.env("INVAR_WIRE", "nccl-2.14")).wait();
    let result = json(&outcome.ok().stdout);
    assert_eq!((&result["address"], &result["peer"]), (&"127.0.0.1".into(), &"127.0.0.2".into()));
    // The second process says nothing of it.
    let warned = "invar: warning: INVAR_WIRE=nccl-2.14: that wire has no authentication";
    assert_eq!(outcome.stderr.matches(warned).count(), 1, "{}", outcome.stderr);
}

#[test]
fn a_named_device_is_used_at_its_address_of_the_peers_family() {
    let Some(hosts) = Hosts::or_skip(9000) else { return };
    let result = measure(&hosts, IPV4[0], &["--nic", "soft0"], &[]);
    assert_eq!(result["path_mtu"], 8128);
    assert_eq!(result["address"], IPV4[1]);
}

#[test]
fn ranks_go_over_the_interface_that_is_named_and_else_where_the_rendezvous_is() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.ip(0, "link add v1 type veth peer name v2").unwrap();
    hosts.ip(0, "addr add 198.51.100.1/24 dev v1").unwrap();
    for name in ["v1", "v2"] {
        hosts.ip(0, &format!("link set {name} up")).unwrap();
    }
    watch("a link", || hosts.ip(0, "-br link show v1").unwrap().contains(" UP "));
    let ranks = |transport: &str, names: &str, family: &str| {
        let mut command = invar(&hosts, 0, &["coll", "all_reduce", "-e", "64", "-n", "5"]);
        command.env("INVAR_TRANSPORT", transport).env("NCCL_SHM_DISABLE", "1");
        command.env("NCCL_SOCKET_IFNAME", names).env("NCCL_SOCKET_FAMILY", family);
        Run::start(command.env("INVAR_LOG", "info")).wait()
    };
    for (names, family, way) in [
        ("", "", "on lo, 127.0.0.1 "),
        ("", "AF_INET6", "on lo, ::1 "),
        ("v1", "", "on v1, 198.51.100.1 "),
        ("=v0", "AF_INET", "on v0, 192.0.2.1 "),
        ("v0", "AF_INET6", "on v0, 2001:db8:7::1 "),
        // The way to the rendezvous goes before the first that is named.
        ("v0,lo", "", "on lo, 127.0.0.1 "),
    ] {
        let outcome = ranks("soft", names, family);
        assert!(outcome.ok().stderr.contains(way), "{names} {family}: {}", outcome.stderr);
        ranks("socket", names, family).ok();
    }
    hosts.ip(0, "addr del ::1/128 dev lo").unwrap();
    for transport in ["soft", "socket"] {
        let outcome = ranks(transport, "", "AF_INET6");
        assert!(outcome.status > Some(1), "{}", outcome.stderr);
        let text = "no allowed interface reaches the rendezvous at 127.0.0.1: no network interface \
                    is up and has an address that NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY allow; \
                    there is: lo (127.0.0.1)";
        assert!(outcome.stderr.contains(text), "{}", outcome.stderr);
    }
}

#[test]
fn ranks_run_over_the_rails_that_their_device_names() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.add_cable("v1", 1500, ["198.51.100.1", "198.51.100.2"]).unwrap();
    let args = ["coll", "all_reduce", "-e", "1M", "-n", "5", "--nic", "soft0+soft1"];
    let mut command = invar(&hosts, 0, &args);
    command.env("INVAR_TRANSPORT", "soft").env("NCCL_SHM_DISABLE", "1").env("INVAR_LOG", "info");
    let outcome = Run::start(&mut command).wait();
    let rails = "soft0+soft1: each connection runs over soft0 on v0, soft1 on v1";
    assert!(outcome.ok().stderr.contains(rails), "{}", outcome.stderr);
}

#[test]
fn ranks_of_a_host_whose_loopback_is_ipv6_alone_meet_there() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.ip(0, "addr del 127.0.0.1/8 dev lo").unwrap();
    let mut command = invar(&hosts, 0, &["coll", "all_reduce", "-e", "64", "-n", "5"]);
    Run::start(&mut command).wait().ok();
}

/// A server and a client between which messages go that do not end by themselves.
fn under_way(hosts: &Hosts, env: [&[(&str, &str)]; 2], flags: &[&str]) -> [Run; 2] {
    let mut command = invar(hosts, 0, &[&["perf", "--server"], flags].concat());
    let (server, listening) = server(command.envs(env[0].iter().copied()));
    let port = listening.rsplit(':').next().unwrap();
    let addr = format!("{}:{port}", IPV4[0]);
    let sizes = ["-b", "64K", "-e", "64K", "-n", "100000000"];
    let endless = [&["perf", "--no-check", "--connect", &addr], &sizes[..], flags].concat();
    let client = Run::start(invar(hosts, 1, &endless).envs(env[1].iter().copied()));
    watch("messages", || hosts.sent_bytes(1, "type veth").unwrap() >= 16 << 20);
    [server, client]
}

#[test]
fn a_host_that_is_cut_off_is_noticed() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    // 4.096 µs × 2^13, three times: the peer is given up after 100 ms.
    let hasty =
        [("NCCL_IB_TIMEOUT", "13"), ("NCCL_IB_RETRY_CNT", "2"), ("INVAR_RECOVERY_TIMEOUT_MS", "0")];
    let [_server, client] = under_way(&hosts, [&[], &hasty], &[]);
    // The client's own port stays up: a pulled cable would take it down too, sooner or later.
    hosts.ip(0, &format!("route add blackhole {}/32", IPV4[1])).unwrap();
    let outcome = client.wait();
    outcome.ended(FAILED, "RETRY_EXC_ERR");
    outcome.ended(FAILED, "the peer is gone, its QP is in error");
}

/// A vanished host sends nothing. The server waits for messages, and repeats its packets for ever, so only the TCP
/// connection notices the loss (`invar_linux::tcp::SILENCE_MAX`). The kernel's reason depends on how soon the
/// neighbour's entry ends.
#[test]
fn an_idle_end_notices_that_the_other_host_has_vanished() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let idle = [("NCCL_IB_TIMEOUT", "0"), ("INVAR_RECOVERY_TIMEOUT_MS", "1000")];
    let [server, _client] = under_way(&hosts, [&idle, &[]], &[]);
    hosts.ip(1, "link set v0 down").unwrap();
    let outcome = server.wait();
    assert_eq!(outcome.status, Some(3), "{}", outcome.stderr);
    for part in ["a TCP connection was lost", "not called again in 1.0 s"] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
}

/// The outage is longer than TCP connections bear that are not told to. The ranks' rendezvous is over the same cable
/// as their links.
#[test]
fn connections_and_ranks_over_tcp_outlive_a_long_outage() {
    const MANY: u64 = 16 << 20;
    const ADDRS: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.add_cable("v1", 1500, ADDRS).unwrap();
    let tcp = [("INVAR_TRANSPORT", "socket"), ("NCCL_SOCKET_IFNAME", "v0")];
    let [server, client] = under_way(&hosts, [&tcp; 2], &[]);
    let ranks = [0, 1].map(|rank| {
        let root = format!("{}:7000", ADDRS[0]);
        let args =
            ["coll", "all_reduce", "-b", "1M", "-e", "1M", "-n", "100000000", "--ranks", "2"];
        let mut command = invar(&hosts, rank, &args);
        command
            .args(["--root", &root, "--rank", &rank.to_string()])
            .env("INVAR_COLL_SECRET", "word");
        Run::start(command.env("INVAR_TRANSPORT", "socket").env("NCCL_SOCKET_IFNAME", "v1"))
    });
    let more = |link| {
        let before = hosts.sent_bytes(1, link).unwrap();
        watch(link, || hosts.sent_bytes(1, link).unwrap() >= before + MANY);
    };
    let set = |link, state| hosts.ip(0, &format!("link set {link} {state}")).map(drop).unwrap();
    let links = ["v0", "v1"];
    links.into_iter().for_each(more);
    links.into_iter().for_each(|link| set(link, "down"));
    thread::sleep(SILENCE_MAX + Duration::from_secs(3));
    links.into_iter().for_each(|link| set(link, "up"));
    links.into_iter().for_each(more);
    for mut run in [server, client].into_iter().chain(ranks) {
        assert!(run.0.try_wait().expect("a process").is_none(), "an end has failed");
    }
}

/// The cable of each rail is pulled and put back, at either end, under load. The first rail's cable carries the TCP
/// connection too.
#[test]
fn a_connection_over_two_rails_outlives_either_of_them_and_takes_it_back() {
    const MANY: u64 = 16 << 20;
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.add_cable("v1", 1500, ["198.51.100.1", "198.51.100.2"]).unwrap();
    let dir = Dir::new();
    let file = dir.path().join("invar.prom");
    let (folder, metrics) = (dir.path().display().to_string(), format!("file:{}", file.display()));
    let soft =
        [("INVAR_TRANSPORT", "soft"), ("INVAR_SOFT_AUTH", "0"), ("XDG_RUNTIME_DIR", &folder)];
    let shows = [&soft[..], &[("INVAR_METRICS", &metrics)]].concat();
    let shown = |metric: &str, label: &str| {
        let text = fs::read_to_string(&file).unwrap_or_default();
        sample(&text, &[metric, &folder, label])
    };
    let rails = ["--rails", "soft0+soft1"];
    let [mut server, mut client] = under_way(&hosts, [&shows, &soft], &rails);
    let more = |link: &'static str| {
        let before = hosts.sent_bytes(1, link).unwrap();
        watch(link, || hosts.sent_bytes(1, link).unwrap() >= before + MANY);
    };
    more("v1");
    for (pulled, left, rail) in [("v1", "v0", "rail=\"1\""), ("v0", "v1", "rail=\"0\"")] {
        for host in [0, 1] {
            hosts.ip(host, &format!("link set {pulled} down")).unwrap();
            more(left);
            watch("a rail that is down", || shown("invar_rail_up{", rail) == Some(0.0));
            hosts.ip(host, &format!("link set {pulled} up")).unwrap();
            if pulled == "v0" {
                // Linux has taken the address away with the link.
                hosts.ip(host, &format!("addr add {}/64 dev v0 nodad", IPV6[host])).unwrap();
            }
            more(pulled);
            more(left);
            watch("a rail that is up", || shown("invar_rail_up{", rail) == Some(1.0));
        }
    }
    watch("failovers", || shown("invar_failovers_total{", "role=\"sender\"") >= Some(4.0));
    for run in [&mut server, &mut client] {
        assert!(run.0.try_wait().expect("a process").is_none(), "an end has failed");
    }
}

/// The active rail's cable is pulled, and then its path loses everything while its port stays up.
#[test]
fn a_standby_rail_carries_data_only_while_the_other_rail_does_not_work() {
    const MANY: u64 = 16 << 20;
    const FEW: u64 = 1 << 20;
    const ADDRS: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    hosts.add_cable("v1", 1500, ADDRS).unwrap();
    let soft = [
        ("INVAR_TRANSPORT", "soft"),
        ("INVAR_SOFT_AUTH", "0"),
        // The TCP connection beside the queue pairs stays.
        ("NCCL_SOCKET_IFNAME", "v0"),
        // 4.096 µs × 2^13, three times: a queue pair fails after 100 ms.
        ("NCCL_IB_TIMEOUT", "13"),
        ("NCCL_IB_RETRY_CNT", "2"),
    ];
    let [mut server, mut client] = under_way(&hosts, [&soft; 2], &["--rails", "soft1/soft0"]);
    let is_alone = |link: &'static str, other: &'static str| {
        watch(link, || {
            let before = [link, other].map(|link| hosts.sent_bytes(1, link).unwrap());
            watch(link, || hosts.sent_bytes(1, link).unwrap() >= before[0] + MANY);
            hosts.sent_bytes(1, other).unwrap() < before[1] + FEW
        });
    };
    for host in [0, 1] {
        let hole = format!("blackhole {}/32", ADDRS[1 - host]);
        for (breaks, mends) in [
            ("link set v1 down".to_owned(), "link set v1 up".to_owned()),
            (format!("route add {hole}"), format!("route del {hole}")),
        ] {
            is_alone("v1", "v0");
            hosts.ip(host, &breaks).unwrap();
            is_alone("v0", "v1");
            hosts.ip(host, &mends).unwrap();
        }
    }
    is_alone("v1", "v0");
    for run in [&mut server, &mut client] {
        assert!(run.0.try_wait().expect("a process").is_none(), "an end has failed");
    }
}

/// `invar doctor --serve` on the first host, and where it listens.
fn serve_doctor(hosts: &Hosts) -> (Run, String) {
    server(&mut invar(hosts, 0, &["doctor", "--serve", &format!("{}:0", IPV4[0])]))
}

/// The findings of `invar doctor` on the second host whose ids begin with a word: ids and texts.
fn found(hosts: &Hosts, begin: &str, args: &[&str]) -> Vec<[String; 2]> {
    let mut command = invar(hosts, 1, &[&["doctor", "--json"], args].concat());
    command.env("INVAR_TRANSPORT", "soft").env("INVAR_SOFT_PORT", "4791");
    let report = json(&Run::start(command.env("INVAR_PORT_RANGE", "20000-20100")).wait().stdout);
    let text = |finding: &serde_json::Value| {
        ["id", "what"].map(|key| finding[key].as_str().expect("a text").to_owned())
    };
    let all = report["findings"].as_array().unwrap().iter().map(text);
    all.filter(|[id, _]| id.starts_with(begin)).collect()
}

#[test]
fn the_doctor_names_the_rules_that_drop_the_ports_of_the_settings() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let ids = |rules: &str, verb: &str| {
        hosts.filter(1, rules).unwrap();
        let found = found(&hosts, "firewall", &["firewall"]);
        let chain = format!("chain inet invar in at the hook input {verb} ");
        assert!(found.iter().all(|[_, what]| what.contains(&chain)), "{rules}: {found:?}");
        found.into_iter().map(|[id, _]| id).collect::<Vec<_>>()
    };
    let usual =
        "policy drop; ct state established,related accept; iif lo accept; tcp dport 22 accept";
    let both = &["firewall-udp", "firewall-tcp"][..];
    for (rules, dropped) in [
        (usual.to_owned(), both),
        (format!("{usual}; tcp dport 20000-21000 accept"), &["firewall-udp"]),
        (format!("{usual}; tcp dport 20000-21000 accept; udp dport 4791 accept"), &[]),
        ("udp dport { 53, 4791 } drop".to_owned(), &["firewall-udp"]),
        ("meta l4proto udp reject".to_owned(), &["firewall-udp"]),
        ("udp dport 4792 drop; ip saddr 203.0.113.1 drop".to_owned(), &[]),
    ] {
        assert_eq!(ids(&rules, "drops"), dropped, "{rules}");
    }
    // Only the hosts of this network may pass.
    assert_eq!(ids(&format!("{usual}; ip saddr 192.0.2.0/24 accept"), "may drop"), both);
}

#[test]
fn the_doctor_tells_the_direction_that_loses_packets() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let (_server, listening) = serve_doctor(&hosts);
    for (deaf, lost) in [
        (0, format!("packets from soft0 to soft0 of {listening} are lost, the others arrive: ")),
        (1, format!("packets from soft0 of {listening} to soft0 are lost, the others arrive: ")),
    ] {
        hosts.filter(deaf, "meta l4proto udp drop").unwrap();
        let found = found(&hosts, "pair", &["--peer", &listening]);
        let [[id, what]] = &found[..] else { panic!("{found:?}") };
        assert_eq!(id, "pair-one-way", "{what}");
        assert!(what.starts_with(&lost), "{what}");
        // The other host is deaf next.
        hosts.filter(deaf, "accept").unwrap();
    }
    for host in 0..2 {
        hosts.filter(host, "meta l4proto udp drop").unwrap();
    }
    let found = found(&hosts, "pair", &["--peer", &listening]);
    assert_eq!(found.iter().map(|[id, _]| id).collect::<Vec<_>>(), ["pair-unreachable"]);
}

#[test]
fn the_doctor_finds_the_largest_packets_that_pass() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let (_server, listening) = serve_doctor(&hosts);
    // Without trains, a rule sees each packet.
    for host in 0..2 {
        hosts.ip(host, "link set v0 gso_max_segs 1").unwrap();
    }
    hosts.filter(0, "meta l4proto udp meta length > 1200 drop").unwrap();
    let found = found(&hosts, "pair", &["--peer", &listening]);
    let [[id, what]] = &found[..] else { panic!("{found:?}") };
    assert_eq!(id, "pair-mtu", "{what}");
    let works = "short messages pass: a path MTU of 1024 works, and one of 1408 does not: ";
    assert!(what.starts_with(works), "{what}");
}

#[test]
fn the_doctor_tries_every_pair_of_devices_of_two_hosts() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    let (_server, listening) = serve_doctor(&hosts);
    let examine = || {
        let args = ["doctor", "--json", "--peer", &listening];
        let outcome = Run::start(&mut invar(&hosts, 1, &args)).wait();
        (outcome.status, json(&outcome.stdout))
    };
    let (status, report) = examine();
    assert_eq!((status, report["is_well"].as_bool()), (Some(0), Some(true)), "{report}");
    let well: Vec<&str> = report["well"]
        .as_array()
        .unwrap()
        .iter()
        .map(|well| well["what"].as_str().unwrap())
        .collect();
    assert!(well[0].starts_with(&format!("{listening}: its clock is ")), "{well:?}");
    assert!(
        well[1].starts_with(&format!("v0 to v0 of {listening}: half a round trip ")),
        "{well:?}"
    );
    assert!(
        well[2].starts_with(&format!("soft0 to soft0 of {listening}: path MTU 1408, ")),
        "{well:?}"
    );
    // This address has no way back.
    for command in [
        "link add d0 type veth peer name d1",
        "addr add 198.51.100.9/24 dev d0",
        "link set d1 up",
        "link set d0 up",
    ] {
        hosts.ip(1, command).unwrap();
    }
    // The kernel may take a second to see the cable.
    watch("d0", || hosts.ip(1, "-br link show d0").unwrap().contains(" UP ").then_some(()));
    let (status, report) = examine();
    assert_eq!(status, Some(1), "{report}");
    // The kernel may have sent a segment again, which is a note.
    let findings = report["findings"].as_array().unwrap();
    let bad: Vec<_> = findings.iter().filter(|finding| finding["severity"] != "note").collect();
    assert!(!bad.is_empty(), "{report}");
    for finding in bad {
        assert_eq!(
            (&finding["id"], &finding["severity"]),
            (&"pair-unreachable".into(), &"bad".into())
        );
        let subject = finding["subject"].as_str().unwrap();
        assert!(subject.starts_with("d0 to v0 of ") || subject.starts_with("soft"), "{report}");
    }
    let well = report["well"].as_array().unwrap();
    let pairs = well.iter().filter(|well| well["what"].as_str().unwrap().contains(" to "));
    assert_eq!(pairs.count(), 2, "{report}");
}
