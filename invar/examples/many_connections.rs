//! Serves many connections from one thread: no call waits, and each connection is tested in turn.
//!
//! ```sh
//! cargo run --release --example many_connections          # 256 connections
//! cargo run --release --example many_connections -- 64
//! ```
//!
//! A second thread is all the clients. The environment chooses the transport and the interface, for
//! example `INVAR_TRANSPORT=soft` and `NCCL_SOCKET_IFNAME=lo`. Over TCP a connection takes several
//! descriptors at each end (`ulimit -n`).

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::time::{Duration, Instant};
use std::{env, thread};

use invar::{
    Accepting, Choice, Connecting, Device, Error, Handle, Listener, MemoryRegion, RecvComm,
    Request, SendComm, Settings,
};

/// Bytes of a message.
const BYTES: usize = 4096;
/// Messages of each connection.
const MESSAGES: usize = 20;
const TAG: u32 = 0;
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = env::args().nth(1).map_or(Ok(256), |count| count.parse())?;
    let settings = Settings::from_env()?.connect_timeout(TIMEOUT);
    let device = Device::open_for(&Choice::make(&settings)?.devices[0], &settings)?;
    let listener = Listener::bind(&device, &settings)?;
    let handle = listener.handle();
    thread::scope(|scope| {
        let clients = scope.spawn(|| clients(&device, &handle, &settings, count));
        let start = Instant::now();
        serve(&device, &listener, count)?;
        let took = start.elapsed();
        clients.join().expect("the clients do not panic")?;
        let messages = count * MESSAGES;
        println!("one thread served {count} connections: {messages} messages in {took:.1?}");
        Ok(())
    })
}

/// A connection of the server, and the receive that is posted on it.
struct Client {
    comm: RecvComm,
    region: MemoryRegion,
    posted: Option<Request>,
    received: usize,
}

/// The server: accepts `count` connections, and takes all messages of each.
fn serve(device: &Device, listener: &Listener, count: usize) -> Result<(), Error> {
    let (mut arriving, mut clients) = (Vec::<Accepting>::new(), Vec::<Client>::new());
    let mut done = 0;
    while done < count {
        arriving.extend(listener.accept()?);
        let mut i = 0;
        while i < arriving.len() {
            match arriving[i].poll()? {
                Some(comm) => {
                    drop(arriving.swap_remove(i));
                    let region = MemoryRegion::new(device, BYTES)?;
                    clients.push(Client { comm, region, posted: None, received: 0 });
                }
                None => i += 1,
            }
        }
        for client in clients.iter_mut().filter(|client| client.received < MESSAGES) {
            client.step()?;
            done += usize::from(client.received == MESSAGES);
        }
    }
    Ok(())
}

impl Client {
    /// Posts a receive, or takes the message that came, and returns at once.
    fn step(&mut self) -> Result<(), Error> {
        match &self.posted {
            None => self.posted = self.comm.irecv(&[(&self.region, 0..BYTES, TAG)])?,
            Some(request) => {
                let Some(received) = self.comm.test(request)? else { return Ok(()) };
                let mut bytes = [0; BYTES];
                self.region.read_at(0, &mut bytes)?;
                assert_eq!(received.sizes(), [BYTES]);
                assert_eq!(bytes, [self.received as u8; BYTES], "the next message of this client");
                (self.posted, self.received) = (None, self.received + 1);
            }
        }
        Ok(())
    }
}

/// The clients: connect all at once, then each sends its messages one by one.
fn clients(
    device: &Device,
    handle: &Handle,
    settings: &Settings,
    count: usize,
) -> Result<(), Error> {
    let connecting = (0..count).map(|_| SendComm::connect(device, handle, settings));
    let mut connecting = connecting.collect::<Result<Vec<Connecting>, Error>>()?;
    let mut comms = Vec::new();
    while !connecting.is_empty() {
        let mut i = 0;
        while i < connecting.len() {
            match connecting[i].poll()? {
                Some(comm) => {
                    drop(connecting.swap_remove(i));
                    comms.push(comm);
                }
                None => i += 1,
            }
        }
    }
    let region = MemoryRegion::new(device, BYTES)?;
    for message in 0..MESSAGES {
        region.write_at(0, &[message as u8; BYTES])?;
        for comm in &mut comms {
            comm.send(&region, 0..BYTES, TAG, TIMEOUT)?;
        }
    }
    Ok(())
}
