//! Two hosts, as far as the kernel is concerned: two network namespaces and a cable.

use std::sync::Mutex;

use crate::*;

/// Namespaces with a virtual Ethernet between them; gone with this.
struct Hosts {
    names: [String; 2],
}

const IPV4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const IPV6: [&str; 2] = ["2001:db8:7::1", "2001:db8:7::2"];

impl Hosts {
    /// `None`, and a line that says so, where this process may not make namespaces.
    fn new(mtu: u32) -> Option<Hosts> {
        static NUMBER: Mutex<u32> = Mutex::new(0);
        let number = {
            let mut number = NUMBER.lock().unwrap();
            *number += 1;
            *number
        };
        let name = |side: &str| format!("invar{}-{number}{side}", std::process::id());
        let hosts = Hosts { names: [name("a"), name("b")] };
        if let Err(error) = ip(&format!("netns add {}", hosts.names[0])) {
            eprintln!("skipped: no network namespaces here: {error}");
            return None;
        }
        let [a, b] = &hosts.names;
        let commands = [
            format!("netns add {b}"),
            format!("-n {a} link add v0 mtu {mtu} type veth peer name v0 mtu {mtu} netns {b}"),
        ];
        for command in commands {
            ip(&command).unwrap();
        }
        for (name, (v4, v6)) in hosts.names.iter().zip(IPV4.into_iter().zip(IPV6)) {
            ip(&format!("-n {name} addr add {v4}/24 dev v0")).unwrap();
            ip(&format!("-n {name} addr add {v6}/64 dev v0 nodad")).unwrap();
            ip(&format!("-n {name} link set lo up")).unwrap();
            ip(&format!("-n {name} link set v0 up")).unwrap();
        }
        let start = Instant::now();
        while !hosts.names.iter().all(|name| is_up(name)) {
            assert!(start.elapsed() < TIMEOUT, "the link does not come up");
            thread::sleep(Duration::from_millis(10));
        }
        Some(hosts)
    }

    /// `invar ARGS` on one of the hosts.
    fn invar(&self, host: usize, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host], env!("CARGO_BIN_EXE_invar")]);
        bare(command, args)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Whether the cable is seen, which takes the kernel up to a second.
fn is_up(name: &str) -> bool {
    ip(&format!("-n {name} -br link show v0")).is_ok_and(|line| line.contains(" UP "))
}

/// How much a host has sent.
fn sent_bytes(name: &str) -> u64 {
    let stats = json(&ip(&format!("-n {name} -s -j link show v0")).unwrap());
    stats[0]["stats64"]["tx"]["bytes"].as_u64().unwrap()
}

/// `ip ARGS`: what it says.
fn ip(args: &str) -> Result<String, String> {
    let output = Command::new("ip").args(args.split(' ')).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// Measures between the two, and gives the result.
fn measure(
    hosts: &Hosts,
    server_addr: &str,
    client_flags: &[&str],
    env: &[(&str, &str)],
) -> serde_json::Value {
    let mut command = hosts.invar(0, &["perf", "--server"]);
    let (server, listening) = server(command.envs(env.iter().copied()));
    let port = listening.rsplit(':').next().unwrap().to_owned();
    let addr = if server_addr.contains(':') {
        format!("[{server_addr}]:{port}")
    } else {
        format!("{server_addr}:{port}")
    };
    let flags = ["perf", "--connect", &addr, "-b", "1", "-e", "100K", "-f", "64", "-n", "30"];
    let args = [&flags[..], &["--json", "-"], client_flags].concat();
    let outcome = Run::start(hosts.invar(1, &args).envs(env.iter().copied())).wait();
    let result = json(&outcome.ok().stdout);
    assert_eq!(server.wait().status, Some(0));
    assert_eq!(result["rows"].as_array().unwrap().len(), 3);
    assert!(result["rows"].as_array().unwrap().iter().all(|row| row["wrong"] == 0), "{result}");
    result
}

#[test]
fn two_hosts_measure_over_ipv4_and_ipv6_with_the_mtu_of_their_link() {
    let Some(hosts) = Hosts::new(1500) else { return };
    for addrs in [IPV4, IPV6] {
        let result = measure(&hosts, addrs[0], &[], &[]);
        assert_eq!(result["path_mtu"], 1024);
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
    let Some(hosts) = Hosts::new(1500) else { return };
    let wire = [("INVAR_WIRE", "nccl-2.14")];
    let result = measure(&hosts, IPV4[0], &["--qps", "3"], &wire);
    assert_eq!(result["qps"], 3);
    // That wire tells of a group's messages only which are empty.
    measure(&hosts, IPV6[0], &["--recvs", "2"], &wire);
}

#[test]
fn a_named_device_is_used_at_its_address_of_the_peers_family() {
    let Some(hosts) = Hosts::new(9000) else { return };
    let result = measure(&hosts, IPV4[0], &["--nic", "soft0"], &[]);
    assert_eq!(result["path_mtu"], 4096);
    assert_eq!(result["address"], IPV4[1]);
}

/// A server and a client between which messages go that do not end by themselves.
fn under_way(hosts: &Hosts, env: [&[(&str, &str)]; 2]) -> [Run; 2] {
    let mut command = hosts.invar(0, &["perf", "--server"]);
    let (server, listening) = server(command.envs(env[0].iter().copied()));
    let port = listening.rsplit(':').next().unwrap();
    let addr = format!("{}:{port}", IPV4[0]);
    let sizes = ["-b", "64K", "-e", "64K", "-n", "100000000"];
    let endless = [&["perf", "--no-check", "--connect", &addr], &sizes[..]].concat();
    let client = Run::start(hosts.invar(1, &endless).envs(env[1].iter().copied()));
    let start = Instant::now();
    while sent_bytes(&hosts.names[1]) < 16 << 20 {
        assert!(start.elapsed() < TIMEOUT, "no messages");
        thread::sleep(Duration::from_millis(10));
    }
    [server, client]
}

#[test]
fn a_host_that_is_cut_off_is_noticed() {
    let Some(hosts) = Hosts::new(1500) else { return };
    // 4.096 µs × 2^12, three times: the peer is given up after 50 ms.
    let hasty = [("NCCL_IB_TIMEOUT", "12"), ("NCCL_IB_RETRY_CNT", "2")];
    let [_server, client] = under_way(&hosts, [&[], &hasty]);
    ip(&format!("-n {} link set v0 down", hosts.names[0])).unwrap();
    let outcome = client.wait();
    assert_eq!(outcome.status, Some(3), "{}", outcome.stderr);
    assert!(outcome.line().contains("RETRY_EXC_ERR"), "{}", outcome.stderr);
    assert!(outcome.line().contains("the peer is gone, its QP is in error"), "{}", outcome.stderr);
}

/// A host that is gone says nothing, not even that. The server waits for messages, and repeats its
/// packets for ever: only TCP finds out (`invar_linux::tcp::SILENCE_MAX`).
#[test]
fn an_idle_end_notices_that_the_other_host_has_vanished() {
    let Some(hosts) = Hosts::new(1500) else { return };
    let [server, _client] = under_way(&hosts, [&[("NCCL_IB_TIMEOUT", "0")], &[]]);
    ip(&format!("-n {} link set v0 down", hosts.names[1])).unwrap();
    let outcome = server.wait();
    assert_eq!(outcome.status, Some(3), "{}", outcome.stderr);
    assert!(outcome.line().contains("connection timed out (errno 110)"), "{}", outcome.stderr);
}
