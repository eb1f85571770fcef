//! 1,000 connections on tokio: each connection is a task, and no task uses a processor while it waits.
//!
//! ```sh
//! cargo run --release --example tokio_connections          # 1,000 connections
//! cargo run --release --example tokio_connections -- 64
//! ```
//!
//! The environment chooses the transport and the interface, for example `INVAR_TRANSPORT=soft` and
//! `NCCL_SOCKET_IFNAME=lo`.

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::env;
use std::sync::Arc;
use std::time::{Duration, Instant};

use invar::{Choice, Device, Error, Handle, Listener, MemoryRegion, RecvComm, SendComm, Settings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

const BYTES: usize = 4096;
/// Messages of each connection.
const MESSAGES: usize = 10;
const TAG: u32 = 0;
/// Clients that connect at once.
const CONNECT_AT_ONCE: usize = 100;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = env::args().nth(1).map_or(Ok(1000), |count| count.parse())?;
    // A connection takes several descriptors at each end.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let settings = Settings::from_env()?.connect_timeout(Duration::from_secs(120));
    let device = Device::open_for(&Choice::make(&settings)?.devices[0], &settings)?;
    let listener = Listener::bind(&device, &settings)?;
    let clients = tokio::spawn(clients(device, listener.handle(), settings, count));
    let (start, mut servers) = (Instant::now(), JoinSet::new());
    for _ in 0..count {
        servers.spawn(serve(listener.accept_async().await?));
    }
    while let Some(served) = servers.join_next().await {
        served??;
    }
    clients.await??;
    let (messages, took) = (count * MESSAGES, start.elapsed());
    println!("{count} connections carried {messages} messages in {took:.1?}");
    Ok(())
}

/// Takes all messages of one connection, in order.
async fn serve(mut comm: RecvComm) -> Result<(), Error> {
    let region = MemoryRegion::new(comm.device(), BYTES)?;
    for message in 0..MESSAGES {
        let mut bytes = [0; BYTES];
        let len = comm.recv_async(&region, 0..BYTES, TAG).await?;
        region.read_at(0, &mut bytes)?;
        assert_eq!((len, bytes), (BYTES, [message as u8; BYTES]), "the next message");
    }
    Ok(())
}

/// Makes all connections, and then sends over all of them at once.
async fn clients(
    device: Device,
    handle: Handle,
    settings: Settings,
    count: usize,
) -> Result<(), Error> {
    let turns = Arc::new(tokio::sync::Semaphore::new(CONNECT_AT_ONCE));
    let mut connecting = JoinSet::new();
    for _ in 0..count {
        let (device, settings, turns) = (device.clone(), settings.clone(), Arc::clone(&turns));
        connecting.spawn(async move {
            let _turn = turns.acquire().await;
            SendComm::connect(&device, &handle, &settings)?.await
        });
    }
    let comms = connecting.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut sending = JoinSet::new();
    for comm in comms {
        sending.spawn(send(comm));
    }
    sending.join_all().await.into_iter().collect()
}

async fn send(mut comm: SendComm) -> Result<(), Error> {
    let region = MemoryRegion::new(comm.device(), BYTES)?;
    for message in 0..MESSAGES {
        region.write_at(0, &[message as u8; BYTES])?;
        comm.send_async(&region, 0..BYTES, TAG).await?;
    }
    Ok(())
}
