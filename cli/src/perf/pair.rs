//! Two processes that a launcher started: rank 0 serves, and rank 1 measures.

use std::net::{Ipv6Addr, SocketAddr};

use invar::{Launch, Settings};
use invar_linux::rendezvous::Bootstrap;

use super::{Args, server};
use crate::failure::Failure;

/// The tag of the message with the server's port.
const PORT: u32 = 1;
/// The number of processes of a measurement.
const PAIR: u32 = 2;

/// Whether this process is the server.
pub(super) fn serves(launch: &Launch) -> bool {
    launch.rank == 0
}

/// Serves the other process, which needs `memory_bytes`.
pub(super) fn serve(
    launch: &Launch,
    args: &Args,
    settings: &Settings,
    memory_bytes: u64,
) -> Result<(), Failure> {
    check(launch)?;
    let addr = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    let serving = server::Serving { memory_max: memory_bytes, ..args.serving() };
    server::run(&serving, addr, settings, |addr| exchange(launch, settings, addr.port()).map(drop))
}

/// The address of the server.
pub(super) fn server(launch: &Launch, settings: &Settings) -> Result<SocketAddr, Failure> {
    check(launch)?;
    exchange(launch, settings, 0)
}

fn check(launch: &Launch) -> Result<(), Failure> {
    if launch.nranks == PAIR {
        return Ok(());
    }
    let Launch { launcher, nranks, .. } = launch;
    Err(Failure::usage(format_args!(
        "{launcher} has started {nranks} processes: invar perf measures between {PAIR}"
    )))
}

/// Tells the other process this end's port. Returns the address of rank 0 with its port.
fn exchange(launch: &Launch, settings: &Settings, port: u16) -> Result<SocketAddr, Failure> {
    let within = settings.connect_within();
    let meeting = launch.meet(settings)?;
    let rank = (launch.rank, launch.nranks);
    let ranks = Bootstrap::join(&meeting.id, rank, within, settings.silence());
    let ranks = ranks.map_err(Failure::new)?;
    let ports = ranks.all_gather(PORT, &port.to_be_bytes(), within).map_err(Failure::new)?;
    let port = ports.first().and_then(|bytes| bytes.as_slice().try_into().ok());
    let port = port.ok_or_else(|| Failure::new("rank 0 does not say where it listens"))?;
    Ok(SocketAddr::new(meeting.id.addr().ip(), u16::from_be_bytes(port)))
}
