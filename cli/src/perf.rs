//! `invar perf`: measures the transport on this host, or between two hosts.
//!
//! Read in this order: [`client`] asks for one pass after another, and [`server`] takes part. They
//! exchange the lines of [`message`] over [`control`]. A [`link`] is the two connections between them. A
//! [`pass`] sends messages over the link. A [`pattern`] gives the bytes of messages. [`report`] prints.
//! With no flag the server is a second process that this one starts: [`local`]. [`probe`] tries pairs of
//! devices, for `invar doctor`. [`op`] measures a queue pair without the protocol.

pub(crate) mod about;
mod chaos;
mod client;
mod compare;
mod control;
mod flow;
mod job;
mod latency;
mod link;
mod load;
mod local;
mod message;
mod op;
mod operation;
mod pair;
mod pass;
mod pattern;
mod place;
mod plot;
pub(crate) mod probe;
mod report;
mod server;
mod session;
mod usage;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::failure::{Failure, WRONG};
use crate::output::{OutputFile, Outputs, created};
use crate::parent::die_with;
use crate::ports::Ports;
use crate::resolved;
use crate::size::{Sizes, memory};
use clap::builder::RangedU64ValueParser;
use client::Extras;
use invar::{Device, DeviceInfo, DeviceKind, Launch, PortRange, ROCE_UDP_PORT, Settings, Survey};
use invar_linux::interface::check_host_port;
use operation::Op;

/// The address at which a server listens by default.
const SERVER_IP: &str = "[::]";
/// The TCP port of a server by default.
pub(crate) const SERVER_PORT: u16 = 14791;

/// Measure messages between two processes, and check what arrives.
///
/// With no flag both processes run on this host, over loopback. Between two hosts, one runs
/// `invar perf --server`, the other `invar perf --connect HOST`.
///
/// One end may have an RDMA device and the other the software NIC. The software NIC then takes UDP port
/// 4791, since an RDMA device sends to no other port. With INVAR_WIRE=nccl-2.14 at both ends they speak
/// NCCL's wire.
///
/// For each size, a timed pass sends several messages at a time one way: the time is the average of one
/// message. Then single messages go to and fro: p50 and p99 are half of a round trip. Every pass checks
/// the first and last bytes of each message. A pass of its own checks all bytes, unless --no-check is
/// given.
///
/// `--op write`, `read` and `send` measure a queue pair without the protocol, as the tests of perftest
/// do. A WRITE or READ needs no processor at the other end of a NIC. Then p50 and p99 of `read` are of a
/// whole READ.
///
/// A launcher of two processes starts both ends, as in `srun -N 2 invar perf`: rank 0 serves rank 1.
///
/// Exit status: 0 all is well, 1 bytes were wrong, 2 a flag or variable is not allowed, 141 nobody reads
/// the results any more, 3 anything else.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operation to measure; the server follows the client
    #[arg(long, value_enum, default_value_t = Op::Message)]
    op: Op,

    /// Device to use, as `invar devices` names it [default: the first RDMA device, else the software NIC towards the peer]
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,

    /// Devices whose ports carry each connection together, as `soft0+soft1`: the connection goes on while one
    /// of them works. Those after a `/` carry data only while no other one works (INVAR_RAILS)
    #[arg(long, value_name = "NAME+NAME", conflicts_with = "nic")]
    rails: Option<String>,

    #[command(flatten)]
    ports: Ports,

    #[command(flatten)]
    sizes: Sizes,

    /// Messages that are timed [default: about 0.2 s of them]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    iters: Option<u32>,

    /// Time for the timed messages of each size, and again for the single ones [default: about 0.2 s and 0.08 s]
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = seconds)]
    #[arg(conflicts_with = "iters")]
    duration: Option<Duration>,

    /// Send both ways at once in the timed pass; algbw and msg/s are then of both ways together
    #[arg(long, conflicts_with = "rate")]
    bidirectional: bool,

    /// Send at most so many gigabits in a second, in the pass with several messages at a time
    #[arg(long, value_name = "GBIT/S", value_parser = rate)]
    rate: Option<f64>,

    /// Messages before the timed ones
    #[arg(short = 'w', long, default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=100_000_000))]
    warmup: u32,

    /// Messages under way, 1 to 256; fewer if they are large [default: 32]
    #[arg(long, value_parser = RangedU64ValueParser::<u16>::new().range(1..=256))]
    window: Option<u16>,

    /// Buffers of a grouped receive, 1 to 8
    #[arg(long, default_value_t = 1)]
    #[arg(value_parser = RangedU64ValueParser::<u16>::new().range(1..=8))]
    recvs: u16,

    /// Queue pairs, 1 to 128 [default: NCCL_IB_QPS_PER_CONNECTION]
    #[arg(long, value_parser = RangedU64ValueParser::<u16>::new().range(1..=128))]
    qps: Option<u16>,

    /// Check every byte, in a pass of its own (the default)
    #[arg(long, overrides_with = "no_check")]
    check: bool,

    /// Check only both ends of each message
    #[arg(long)]
    no_check: bool,

    /// Send the data of long messages apart from their immediate (NCCL_IB_ADAPTIVE_ROUTING=1)
    #[arg(long)]
    adaptive_routing: bool,

    /// Write the results as JSON into FILE. With `-` JSON goes to stdout and the table to stderr
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Print the distribution of half round trips of each size, up to p99.99
    #[arg(long)]
    histogram: bool,

    /// Draw bandwidth and half round trips into FILE, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Print the results of two files side by side, and measure nothing. The files come from --json
    #[arg(long, value_name = "FILE", num_args = 2, exclusive = true)]
    compare: Vec<PathBuf>,

    /// Index of this end's GID on RoCE (NCCL_IB_GID_INDEX)
    #[arg(long, value_name = "INDEX")]
    gid_index: Option<u8>,

    /// TCP port of the server [default: 14791]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,

    /// Write the packets of this end into FILE, for Wireshark. Only the software NIC can
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// Serve one client of another host [default: at TCP port 14791 of all addresses]
    #[arg(long, value_name = "ADDR[:PORT]", num_args = 0..=1, default_missing_value = SERVER_IP)]
    #[arg(conflicts_with_all = [
        "connect", "min_bytes", "max_bytes", "factor", "iters", "warmup", "window", "recvs", "qps",
        "check", "no_check", "adaptive_routing", "json", "pcap", "duration", "rate", "histogram",
        "plot", "bidirectional", "op",
    ])]
    server: Option<String>,

    /// Serve one client after another
    #[arg(long, requires = "server")]
    keep: bool,

    /// Memory that the server takes for a client at most. Anybody may be the client [default: 1G]
    #[arg(long, value_name = "SIZE", requires = "server", value_parser = memory)]
    client_memory: Option<u64>,

    /// Measure with the server at this address [default port: 14791]
    #[arg(long, value_name = "HOST[:PORT]")]
    connect: Option<String>,

    /// Make two hosts of network namespaces, and run one connection over two links that go down and up at random
    ///
    /// This takes root, and the command ip. Each line shows the links, the bandwidth, and the longest time
    /// between two messages. All bytes are checked. `-D` sets the time [default: 20 s]. `--plot` draws the bandwidth.
    /// With INVAR_LOG=warn both ends log how they go on after each outage.
    #[arg(long, conflicts_with_all = [
        "server", "connect", "nic", "rails", "min_bytes", "max_bytes", "factor", "iters", "warmup",
        "window", "recvs", "qps", "check", "no_check", "adaptive_routing", "json", "pcap", "rate",
        "histogram", "bidirectional", "op", "gid_index", "port", "soft_port", "port_range",
    ])]
    chaos: bool,

    /// The part that this process takes for --chaos
    #[arg(long, value_enum, hide = true)]
    chaos_end: Option<chaos::Role>,

    /// Bytes of a message of --chaos-end
    #[arg(long, value_name = "BYTES", hide = true, default_value_t = 256 << 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    chaos_size: u32,

    /// Process with which this one must end
    #[arg(long, value_name = "PID", hide = true)]
    child_of: Option<u32>,
}

impl Args {
    pub(crate) fn is_child(&self) -> bool {
        self.child_of.is_some()
    }

    fn serving(&self) -> server::Serving {
        server::Serving {
            nic: self.nic.clone(),
            keep: self.keep,
            child_of: self.child_of,
            memory_max: self.client_memory.unwrap_or(server::CLIENT_MEMORY),
        }
    }
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<ExitCode, Failure> {
    if !args.compare.is_empty() {
        compare::run(&args.compare)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.port.is_some() && args.server.is_none() && args.connect.is_none() {
        return Err(Failure::usage("--port is of --server and --connect"));
    }
    if let (Some(port), Some(addr)) = (args.port, args.server.as_ref().or(args.connect.as_ref()))
        && check_host_port(addr, None).is_ok()
    {
        return Err(Failure::usage(format_args!("--port {port}: {addr} has a port already")));
    }
    let mut settings = args.ports.apply(settings);
    if let Some(index) = args.gid_index {
        settings = settings.gid_index(index);
    }
    if let Some(rails) = &args.rails {
        settings = settings.rails(rails);
    }
    let settings = &settings;
    if args.chaos {
        return chaos::run(args);
    }
    if let Some(role) = args.chaos_end {
        args.child_of.map_or(Ok(()), die_with)?;
        // Each of the hosts of --chaos has two links.
        let devices = args.nic.as_deref().unwrap_or("soft0+soft1");
        let (size, time) = (args.chaos_size, args.duration.unwrap_or_default());
        let load = chaos::Load { devices, size, time };
        chaos::run_end(role, &load, settings)?;
        return Ok(ExitCode::SUCCESS);
    }
    let port = args.port.unwrap_or(SERVER_PORT);
    if let Some(addr) = &args.server {
        let addr = resolved(addr, Some(port))?[0];
        let elsewhere = "invar perf --connect";
        server::run(&args.serving(), addr, settings, |addr| server::announce(addr, elsewhere))?;
        return Ok(ExitCode::SUCCESS);
    }
    let launch = match &args.connect {
        Some(_) => None,
        None => Launch::from_env()?.filter(|launch| launch.nranks > 1),
    };
    // Both ranks of a launcher refuse the same flags, so that none waits for the other.
    let mut job = job::Job::new(args, settings)?;
    if let Some(launch) = launch.as_ref().filter(|launch| pair::serves(launch)) {
        pair::serve(launch, args, settings, job.memory_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    job.pcap = args.pcap.as_deref().map(created).transpose()?;
    let outputs = Outputs::open(args.json.as_deref())?;
    let plot = args.plot.as_deref().map(OutputFile::open).transpose()?;
    let extras = Extras { plot, histogram: args.histogram };
    // Measure before this command starts its second process, which would count as other work.
    let load = load::Load::measure();
    let measure = |server: &[SocketAddr]| client::run(&job, load, outputs, extras, server);
    let measured = match (&args.connect, &launch) {
        (Some(addr), _) => measure(&resolved(addr, Some(port))?)?,
        (None, Some(launch)) => measure(&[pair::server(launch, settings)?])?,
        (None, None) => {
            let (server, addr) = local::start(args, settings, job.memory_bytes())?;
            let measured = measure(&[addr])?;
            server.end();
            measured
        }
    };
    Ok(if measured.wrong > 0 { ExitCode::from(WRONG) } else { ExitCode::SUCCESS })
}

fn seconds(text: &str) -> Result<Duration, &'static str> {
    let allowed = "must be a number of seconds from 0.01 to 86400";
    let seconds: f64 = text.parse().map_err(|_| allowed)?;
    let is_allowed = (0.01..=86_400.0).contains(&seconds);
    if is_allowed { Ok(Duration::from_secs_f64(seconds)) } else { Err(allowed) }
}

fn rate(text: &str) -> Result<f64, &'static str> {
    let allowed = "must be a number of gigabits in a second from 0.001 to 10000";
    let rate: f64 = text.parse().map_err(|_| allowed)?;
    if (0.001..=10_000.0).contains(&rate) { Ok(rate) } else { Err(allowed) }
}

/// Finds the device of a name, and does not open it.
fn named(name: &str, settings: &Settings) -> Result<DeviceInfo, Failure> {
    if name.contains('+') {
        return Ok(Device::find(name, settings)?);
    }
    let Survey { mut devices, left_out, .. } = Device::survey(settings)?;
    match devices.iter().position(|info| info.name == name) {
        Some(at) => Ok(devices.swap_remove(at)),
        None => {
            let names: Vec<String> = devices.into_iter().map(|info| info.name).collect();
            let mut text = format!("--nic {name}: there is only {}", names.join(", "));
            for line in left_out {
                text += "; left out: ";
                text += &line;
            }
            Err(Failure::usage(text))
        }
    }
}

/// The device to use, before it is open.
enum Chosen {
    Listed(Box<DeviceInfo>),
    /// The software NIC at this address.
    Soft(IpAddr),
}

impl Chosen {
    fn kind(&self) -> DeviceKind {
        match self {
            Chosen::Listed(info) => info.kind,
            Chosen::Soft(_) => DeviceKind::Soft,
        }
    }

    fn open(&self, settings: &Settings) -> Result<Device, Failure> {
        Ok(match self {
            Chosen::Listed(info) => Device::open_for(info, settings)?,
            Chosen::Soft(address) => Device::open_at_for(*address, settings)?,
        })
    }
}

/// The device to use towards a peer that is reached from `local`. Without a name this is the first NIC
/// that the program brings, else the first RDMA device, or else the software NIC at `local`. Two software
/// NICs need addresses of one family.
fn choose(nic: Option<&str>, local: IpAddr, settings: &Settings) -> Result<Chosen, Failure> {
    let info = match nic {
        Some(name) => named(name, settings)?,
        None => match usual(local, settings)? {
            Some(info) => info,
            None => return Ok(Chosen::Soft(local)),
        },
    };
    // Each rail has an address of its own.
    if info.kind != DeviceKind::Soft || !info.rails.is_empty() {
        return Ok(Chosen::Listed(Box::new(info)));
    }
    let DeviceInfo { name, addresses, .. } = info;
    let address = if addresses.contains(&local) {
        Some(local)
    } else {
        addresses.into_iter().find(|ip| ip.is_ipv4() == local.is_ipv4())
    };
    let family = if local.is_ipv4() { "IPv4" } else { "IPv6" };
    address.map(Chosen::Soft).ok_or_else(|| {
        Failure::usage(format!("--nic {name}: it has no {family} address, as the way to the peer"))
    })
}

/// The settings of an end whose peer has a device of the transport `theirs`. An RDMA device sends to one
/// UDP port only, so a software NIC takes that port, unless the user names others.
fn settings_for(settings: &Settings, ours: DeviceKind, theirs: &str) -> Settings {
    let settings = settings.clone();
    let meets_rdma = ours == DeviceKind::Soft && theirs == DeviceKind::Verbs.to_string();
    match meets_rdma && settings.udp_ports().is_any() {
        true => settings.soft_ports(PortRange::only(ROCE_UDP_PORT)),
        false => settings,
    }
}

/// Whether a device goes before those in software: a NIC that the program brings, or an RDMA device.
fn is_hardware(info: &DeviceInfo) -> bool {
    matches!(info.kind, DeviceKind::Custom | DeviceKind::Verbs)
}

/// Whether to try a device that nobody names. One in software on an interface that is down reaches nobody. A
/// port of hardware that is down is worth an error.
pub(crate) fn may_reach(info: &DeviceInfo) -> bool {
    info.up || is_hardware(info)
}

/// The device to use without a name; `None` for the software NIC at `local`.
fn usual(local: IpAddr, settings: &Settings) -> Result<Option<DeviceInfo>, Failure> {
    let Survey { mut devices, left_out, .. } = Device::survey(settings)?;
    devices.retain(|info| settings.takes(info.kind));
    let first = |is: &dyn Fn(&DeviceInfo) -> bool| devices.iter().find(|info| is(info)).cloned();
    // Rails exist only because the user has named them.
    let has_rails = |info: &DeviceInfo| !info.rails.is_empty();
    if let Some(nic) = first(&has_rails).or_else(|| first(&is_hardware)) {
        return Ok(Some(nic));
    }
    if settings.takes(DeviceKind::Soft) {
        return Ok(None);
    }
    let socket = |info: &DeviceInfo| info.kind == DeviceKind::Socket;
    let towards_peer = first(&|info| socket(info) && info.addresses.contains(&local));
    towards_peer.or_else(|| first(&socket)).map(Some).ok_or_else(|| {
        let why = match settings.takes(DeviceKind::Socket) {
            true => "NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY leave no interface".to_owned(),
            false => left_out.join("; "),
        };
        let asked = settings.transport().as_str();
        Failure::usage(format!("INVAR_TRANSPORT={asked}: there is no such device; {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_are_in_bounds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(rate("2.5"), Ok(2.5));
        for text in ["", "0", "-1", "inf", "NaN", "1e9"] {
            assert!(seconds(text).is_err() && rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_software_nic_is_where_an_rdma_device_sends_to() {
        let ports = |settings: &Settings, ours, theirs: &str| {
            settings_for(settings, ours, theirs).udp_ports().single()
        };
        let unset = Settings::default();
        assert_eq!(ports(&unset, DeviceKind::Soft, "ib"), Some(4791));
        assert_eq!(ports(&unset, DeviceKind::Soft, "soft"), None);
        assert_eq!(ports(&unset, DeviceKind::Verbs, "soft"), None);
        let set = unset.soft_ports(PortRange::only(7));
        assert_eq!(ports(&set, DeviceKind::Soft, "ib"), Some(7));
    }
}
