//! Two hosts as the kernel sees them: two network namespaces, and links between them.

use std::process::{self, Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use super::Role;
use crate::failure::Failure;

/// The number of links.
pub(super) const LINKS: usize = 2;
/// Both ends' addresses on each link.
const ADDRESSES: [[&str; 2]; LINKS] =
    [["192.0.2.1", "192.0.2.2"], ["198.51.100.1", "198.51.100.2"]];
/// The kernel takes up to a second to see a link.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Two namespaces. Dropping this value removes them.
pub(super) struct Hosts {
    names: [String; 2],
}

impl Hosts {
    pub(super) fn new() -> Result<Self, Failure> {
        let hosts =
            Hosts { names: ["a", "b"].map(|end| format!("invar-chaos-{}-{end}", process::id())) };
        let [a, b] = &hosts.names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        for (link, addresses) in ADDRESSES.iter().enumerate() {
            ip(&format!("-n {a} link add v{link} type veth peer name v{link} netns {b}"))?;
            for (name, address) in hosts.names.iter().zip(addresses) {
                ip(&format!("-n {name} addr add {address}/24 dev v{link}"))?;
                ip(&format!("-n {name} link set v{link} up"))?;
                ip(&format!("-n {name} link set lo up"))?;
            }
        }
        let start = Instant::now();
        while !hosts.has_links()? {
            if start.elapsed() > TIMEOUT {
                return Err(Failure::new("the links between the namespaces do not come up"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(hosts)
    }

    fn has_links(&self) -> Result<bool, Failure> {
        let mut all = true;
        for name in &self.names {
            let told = ip(&format!("-n {name} -br link show type veth"))?;
            all &= told.lines().filter(|line| line.contains(" UP ")).count() == LINKS;
        }
        Ok(all)
    }

    /// Takes a link up or down.
    pub(super) fn set_link(&self, link: usize, up: bool) -> Result<(), Failure> {
        let state = if up { "up" } else { "down" };
        ip(&format!("-n {} link set v{link} {state}", self.names[0])).map(drop)
    }

    /// Starts an end of the connection on a host.
    pub(super) fn start(&self, host: usize, role: Role, time: Duration) -> Result<Child, Failure> {
        let failed = |error| Failure::io("starting an end of the connection", &error);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host]]);
        command.arg(env::current_exe().map_err(failed)?);
        command.args(["perf", "--chaos-end", role.name()]);
        command.args(["--duration", &time.as_secs_f64().to_string()]);
        command.args(["--child-of", &process::id().to_string()]);
        // The outages are this command's own, and their lines would stand amid the table.
        if ["INVAR_LOG", "NCCL_DEBUG"].iter().all(|name| env::var_os(name).is_none()) {
            command.env("INVAR_LOG", "error");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Runs `ip` with arguments that spaces separate, and returns its output.
fn ip(args: &str) -> Result<String, Failure> {
    let output = Command::new("ip").args(args.split(' ')).stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| Failure::io("--chaos needs the command ip (iproute2)", &error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format_args!(
        "--chaos makes network namespaces, which takes root: ip {args}: {}",
        text.trim()
    )))
}
