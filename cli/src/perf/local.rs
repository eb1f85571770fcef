//! A server on this host, for a measurement on one host.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use invar::{Device, DeviceKind, Settings};

use super::server::LISTENING;
use super::{Args, is_hardware, may_reach, named};
use crate::failure::Failure;
use crate::parent::{ChildProcess, await_children};

/// Time in which a server ends after the goodbye.
const END_WITHIN: Duration = Duration::from_secs(2);

/// The server's process. It also ends when this process ends.
pub(super) struct Server(ChildProcess);

impl Server {
    /// Waits until the server ends by itself, after the goodbye.
    pub(super) fn end(mut self) {
        let start = Instant::now();
        while start.elapsed() < END_WITHIN && matches!(self.0.0.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Starts the server, which may take `memory_bytes`. Returns the address at which it listens.
pub(super) fn start(
    args: &Args,
    settings: &Settings,
    memory_bytes: u64,
) -> Result<(Server, SocketAddr), Failure> {
    let failed = |error| Failure::io("starting the second process", &error);
    await_children()?;
    let addr = SocketAddr::new(address(args, settings)?, 0);
    let mut command = Command::new(env::current_exe().map_err(failed)?);
    command.args(["perf", "--server", &addr.to_string()]);
    command.args(["--child-of", &process::id().to_string()]);
    command.args(["--client-memory", &memory_bytes.to_string()]);
    args.ports.pass_on(&mut command);
    if let Some(name) = &args.nic {
        command.args(["--nic", name]);
    }
    if let Some(rails) = &args.rails {
        command.args(["--rails", rails]);
    }
    if let Some(index) = args.gid_index {
        command.args(["--gid-index", &index.to_string()]);
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let stdout = child.stdout.take();
    let server = Server(ChildProcess(child));
    let mut line = String::new();
    if let Some(stdout) = stdout {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    // The server has said on stderr why it cannot listen.
    let addr = line.strip_prefix(LISTENING).and_then(|rest| rest.split(';').next()?.parse().ok());
    let addr = addr.ok_or_else(|| Failure::new("the second process did not start"))?;
    Ok((server, addr))
}

/// The loopback address at which client and server meet. Its family is the family of the named device, or
/// of the first NIC that is not Invar's software. Without either, the address is that of the last device,
/// which is on loopback. If both processes need one UDP port, the server has an address of its own.
fn address(args: &Args, settings: &Settings) -> Result<IpAddr, Failure> {
    if args.nic.is_none() && settings.udp_ports().single().is_some() {
        return Ok(Ipv4Addr::new(127, 0, 0, 2).into());
    }
    let mut devices = Device::survey(settings)?.devices;
    devices.retain(|info| settings.takes(info.kind) || info.kind == DeviceKind::Soft);
    devices.retain(may_reach);
    let used = match &args.nic {
        Some(name) => Some(named(name, settings)?),
        None => devices.iter().find(|info| is_hardware(info)).cloned(),
    };
    if let Some(used) = used {
        return Ok(match used.address {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    devices.pop().map(|info| info.address).ok_or_else(|| Failure::new("this host has no device"))
}
