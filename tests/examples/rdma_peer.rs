//! One of two processes whose NICs talk with each other; see `invar_testkit::interop`.
//!
//! `rdma_peer soft:198.51.100.1 listen 198.51.100.1:7000 transfers`

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::ExitCode;

use invar_core::param::AddressFamily;
use invar_core::roce::UDP_PORT;
use invar_linux::soft::{ImpairmentConfig, SoftConfig, SoftNic};
use invar_testkit::interop::{self, Control, Table};
use invar_verbs::{GidRules, VerbsConfig, VerbsNic};

const USAGE: &str = "usage: rdma_peer NIC listen|connect ADDR:PORT transfers|faults [lossy]
NIC is soft:ADDR, or inet:DEVICE or inet6:DEVICE, an RDMA device with an address of that family.
With lossy, a software NIC loses, repeats, reorders and damages packets.";

/// The rate of each fault of a lossy NIC: one packet in a hundred.
const LOSSY_PPM: u32 = 10_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (args, lossy) = match args.split_last() {
        Some((&"lossy", args)) => (args, true),
        _ => (&args[..], false),
    };
    let &[nic, role, addr, table] = args else { return usage("not four arguments") };
    let Ok(addr) = addr.parse::<SocketAddr>() else { return usage("no address and port") };
    let table = match table {
        "transfers" => Table::Transfers,
        "faults" => Table::Faults,
        _ => return usage("no such table"),
    };
    let play = || {
        let mut control = match role {
            "listen" => Control::accept(&TcpListener::bind(addr)?)?,
            "connect" => Control::connect(addr)?,
            _ => return Err(io::Error::other(format!("{role}: neither listen nor connect"))),
        };
        match nic.split_once(':') {
            Some(("soft", addr)) => soft(addr, lossy, &mut control, table),
            Some(("inet", name)) => verbs(name, AddressFamily::Inet, &mut control, table),
            Some(("inet6", name)) => verbs(name, AddressFamily::Inet6, &mut control, table),
            _ => Err(io::Error::other("there is no such NIC")),
        }
    };
    match play() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdma_peer {nic}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage(what: &str) -> ExitCode {
    eprintln!("rdma_peer: {what}\n{USAGE}");
    ExitCode::from(2)
}

fn soft(addr: &str, lossy: bool, control: &mut Control, table: Table) -> io::Result<()> {
    let addr: IpAddr = addr.parse().map_err(io::Error::other)?;
    let impairment = lossy.then_some(ImpairmentConfig {
        drop_ppm: LOSSY_PPM,
        duplicate_ppm: LOSSY_PPM,
        reorder_ppm: LOSSY_PPM,
        corrupt_ppm: LOSSY_PPM,
        seed: 1,
    });
    let config = SoftConfig {
        impairment,
        ..SoftConfig::new(format!("soft:{addr}"), SocketAddr::new(addr, UDP_PORT))
    };
    let nic = SoftNic::open(&config)?;
    interop::run(&nic, control, table, io::stdout())?;
    eprintln!("{addr}: {:?}", nic.counters());
    Ok(())
}

fn verbs(name: &str, family: AddressFamily, control: &mut Control, table: Table) -> io::Result<()> {
    let gid = GidRules { family, ..GidRules::default() };
    let config = VerbsConfig { gid, ..VerbsConfig::new(name) };
    let nic = VerbsNic::open(&config).map_err(io::Error::other)?;
    interop::run(&nic, control, table, io::stdout())
}
