//! Two hosts as the kernel sees them: two network namespaces and a cable. Creating them needs root and
//! iproute2, and also nftables to lose packets.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::skip::{NAMESPACES, skip};

/// The hosts' IPv4 addresses.
pub const IPV4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
/// The hosts' IPv6 addresses.
pub const IPV6: [&str; 2] = ["2001:db8:7::1", "2001:db8:7::2"];

/// The time limit for the cable. The kernel takes up to a second to see it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Two namespaces. The interfaces named `v0` in each are the ends of one virtual Ethernet. Dropping
/// this value removes them.
pub struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// Creates the namespaces, with interfaces of this MTU.
    ///
    /// # Errors
    /// Returns in words what keeps this process from creating them.
    pub fn new(mtu: u32) -> Result<Hosts, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let hosts =
            Hosts { names: ["a", "b"].map(|s| format!("invar{}-{number}{s}", process::id())) };
        let [a, b] = &hosts.names;
        let pair = format!("v0 mtu {mtu} type veth peer name v0 mtu {mtu} netns {b}");
        let commands =
            [format!("netns add {a}"), format!("netns add {b}"), format!("-n {a} link add {pair}")];
        for command in commands {
            run("ip", &command)?;
        }
        for host in 0..2 {
            hosts.ip(host, &format!("addr add {}/24 dev v0", IPV4[host]))?;
            hosts.ip(host, &format!("addr add {}/64 dev v0 nodad", IPV6[host]))?;
            hosts.ip(host, "link set lo up")?;
            hosts.ip(host, "link set v0 up")?;
        }
        hosts.await_link("v0")?;
        Ok(hosts)
    }

    /// Adds another cable, whose ends have a name and IPv4 addresses.
    ///
    /// # Errors
    /// Returns in words what keeps this process from creating it.
    pub fn add_cable(&self, name: &str, mtu: u32, addrs: [&str; 2]) -> Result<(), String> {
        let peer = &self.names[1];
        let ends = format!("{name} mtu {mtu} type veth peer name {name} mtu {mtu} netns {peer}");
        self.ip(0, &format!("link add {ends}"))?;
        for (host, addr) in addrs.into_iter().enumerate() {
            self.ip(host, &format!("addr add {addr}/24 dev {name}"))?;
            self.ip(host, &format!("link set {name} up"))?;
        }
        self.await_link(name)
    }

    /// Waits until both ends of a cable have a link.
    fn await_link(&self, name: &str) -> Result<(), String> {
        let start = Instant::now();
        while !(0..2).all(|host| self.has_link(host, name)) {
            if start.elapsed() > TIMEOUT {
                return Err(format!("the link {name} between the namespaces does not come up"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Creates the namespaces, as [`Hosts::new`] does. Where that fails, it prints the reason and returns
    /// `None`: the test is skipped.
    ///
    /// # Panics
    /// Panics if that fails and the environment forbids to [`skip`].
    pub fn or_skip(mtu: u32) -> Option<Hosts> {
        let skip = |error| skip(NAMESPACES, format!("no network namespaces here: {error}"));
        Hosts::new(mtu).map_err(skip).ok()
    }

    /// The name of a host's namespace, for a program that enters it by itself.
    pub fn name(&self, host: usize) -> &str {
        &self.names[host]
    }

    /// Runs `ip ARGS` on a host and returns its output. Spaces separate the arguments.
    ///
    /// # Errors
    /// Returns the output of a call that fails.
    pub fn ip(&self, host: usize, args: &str) -> Result<String, String> {
        run("ip", &format!("-n {} {args}", self.names[host]))
    }

    /// Returns how many bytes a host has sent over the interfaces that `ip link show LINKS` lists.
    ///
    /// # Errors
    /// Returns the output of `ip` if it fails or shows no numbers.
    pub fn sent_bytes(&self, host: usize, links: &str) -> Result<u64, String> {
        let lines = self.ip(host, &format!("-s -o link show {links}"))?;
        let sent = |line: &str| -> Option<u64> {
            line.split_once("TX:")?.1.split(' ').find_map(|word| word.parse().ok())
        };
        lines.lines().map(|line| sent(line).ok_or_else(|| line.to_owned())).sum()
    }

    /// Runs `tc ARGS` on a host and returns its output, see [`Hosts::ip`].
    ///
    /// # Errors
    /// Returns the output of a call that fails.
    pub fn tc(&self, host: usize, args: &str) -> Result<String, String> {
        run("tc", &format!("-n {} {args}", self.names[host]))
    }

    /// Makes a host lose incoming UDP and TCP packets at random, `per_mille` of a thousand. A train
    /// that the kernel has not cut into packets counts as one packet.
    ///
    /// # Errors
    /// As [`Hosts::filter`].
    pub fn lose(&self, host: usize, per_mille: u32) -> Result<(), String> {
        let rule = format!("meta l4proto {{ udp, tcp }} numgen random mod 1000 < {per_mille} drop");
        self.filter(host, &rule)
    }

    /// Filters the packets that a host gets by a rule of nftables. The rule replaces an earlier one of this host.
    ///
    /// # Errors
    /// Returns the output of `nft` if it fails, or an error that names its package if it is missing.
    pub fn filter(&self, host: usize, rule: &str) -> Result<(), String> {
        let rules = format!(
            "add table inet invar; delete table inet invar; table inet invar {{ chain in {{ type \
             filter hook input priority 0; {rule}; }}; }}"
        );
        let output = self.program(host, "nft").arg(rules).output();
        let output = output.map_err(|error| format!("nft, of the package nftables: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(format!("nft, which needs nf_tables with numgen in the kernel: {}", text.trim()))
    }

    /// A command for a program on a host. The caller adds the arguments.
    pub fn program(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host], program]);
        command
    }

    /// Calls a function on a host, in a thread of its own. Sockets that the function opens stay on that
    /// host.
    ///
    /// # Panics
    /// Panics if the thread may not enter the namespace, or if the function panics.
    pub fn call<R: Send>(&self, host: usize, call: impl FnOnce() -> R + Send) -> R {
        let within = || {
            let namespace = File::open(format!("/run/netns/{}", self.names[host]))?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok::<R, io::Error>(call())
        };
        let called = thread::scope(|scope| scope.spawn(within).join());
        called.expect("the function does not panic").expect("the namespace is there")
    }

    fn has_link(&self, host: usize, name: &str) -> bool {
        self.ip(host, &format!("-br link show {name}")).is_ok_and(|line| line.contains(" UP "))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run("ip", &format!("netns del {name}"));
        }
    }
}

fn run(program: &str, args: &str) -> Result<String, String> {
    crate::shell::default_signals();
    let output = Command::new(program).args(args.split(' ')).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {args}: {}", text.trim()))
}
