//! A server of files on tokio: each client names a file and gets its content.
//!
//! ```sh
//! cargo run --example file_server -- FILE...    # a server, and a client for each file, in one process
//! ```
//!
//! A client listens, and sends its handle with the name of the file. The server connects to this handle and
//! sends the file. The environment chooses the transport and the interface, for example
//! `INVAR_TRANSPORT=soft` and `NCCL_SOCKET_IFNAME=lo`.

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::error::Error;
use std::{env, io};

use invar::{
    Choice, Device, HANDLE_BYTES, Handle, Listener, MemoryRegion, RecvComm, SendComm, Settings,
};
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const TAG: u32 = 0;
/// Bytes of a message.
const CHUNK: usize = 1 << 20;
/// A request is a handle and the name of a file.
const REQUEST: usize = HANDLE_BYTES + 4096;

#[tokio::main]
async fn main() -> Outcome<()> {
    let settings = Settings::from_env()?;
    let device = Device::open_for(&Choice::make(&settings)?.devices[0], &settings)?;
    let listener = Listener::bind(&device, &settings)?;
    let handle = listener.handle();
    let server = tokio::spawn(serve(listener, device.clone(), settings.clone()));
    let mut clients = JoinSet::new();
    for name in env::args().skip(1) {
        clients.spawn(fetch(name, handle, device.clone(), settings.clone()));
    }
    while let Some(fetched) = clients.join_next().await {
        let (name, content) = fetched??;
        println!("{name}: {} bytes, checksum {:016x}", content.len(), checksum(&content));
    }
    server.abort();
    Ok(())
}

/// Serves clients until the task is aborted. Each client has a task of its own.
async fn serve(listener: Listener, device: Device, settings: Settings) -> Outcome<()> {
    loop {
        let comm = listener.accept_async().await?;
        let (device, settings) = (device.clone(), settings.clone());
        tokio::spawn(async move {
            // The client hears of a failure by the end of its connection.
            let _ = answer(comm, device, settings).await;
        });
    }
}

async fn answer(mut comm: RecvComm, device: Device, settings: Settings) -> Outcome<()> {
    let region = MemoryRegion::new(&device, CHUNK)?;
    let len = comm.recv_async(&region, 0..REQUEST, TAG).await?;
    let mut request = vec![0; len];
    region.read_at(0, &mut request)?;
    let Some((handle, name)) = request.split_first_chunk::<HANDLE_BYTES>() else {
        return Err("a request without a handle".into());
    };
    let (handle, name) = (Handle::from_bytes(*handle)?, String::from_utf8(name.to_vec())?);
    let content = tokio::task::spawn_blocking(move || std::fs::read(name)).await??;
    let mut back = SendComm::connect(&device, &handle, &settings)?.await?;
    for chunk in content.chunks(CHUNK) {
        region.write_at(0, chunk)?;
        back.send_async(&region, 0..chunk.len(), TAG).await?;
    }
    // An empty message ends the file.
    back.send_async(&region, 0..0, TAG).await?;
    Ok(())
}

async fn fetch(
    name: String,
    server: Handle,
    device: Device,
    settings: Settings,
) -> Outcome<(String, Vec<u8>)> {
    let listener = Listener::bind(&device, &settings)?;
    let region = MemoryRegion::new(&device, CHUNK)?;
    let request = [listener.handle().as_bytes(), name.as_bytes()].concat();
    if request.len() > REQUEST {
        return Err(io::Error::from(io::ErrorKind::InvalidFilename).into());
    }
    region.write_at(0, &request)?;
    let mut comm = SendComm::connect(&device, &server, &settings)?.await?;
    comm.send_async(&region, 0..request.len(), TAG).await?;
    let (mut answer, mut content) = (listener.accept_async().await?, Vec::new());
    loop {
        let len = answer.recv_async(&region, 0..CHUNK, TAG).await?;
        if len == 0 {
            return Ok((name, content));
        }
        let start = content.len();
        content.resize(start + len, 0);
        region.read_at(0, &mut content[start..])?;
    }
}

/// The checksum of bytes (FNV-1a, 64 bits).
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
