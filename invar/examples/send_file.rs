//! Sends a file to another process, with its length and a checksum.
//!
//! ```sh
//! cargo run --example send_file -- --receive COPY        # prints a handle, and waits
//! cargo run --example send_file -- --send FILE HANDLE    # in another terminal
//! cargo run --example send_file -- FILE COPY             # both ends, in two threads
//! ```
//!
//! The environment chooses the transport and the interface, for example `INVAR_TRANSPORT=soft` and
//! `NCCL_SOCKET_IFNAME=lo`. Whoever reads the handle may connect.

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;
use std::{env, fs, thread};

use invar::{Choice, Device, Handle, Listener, MemoryRegion, SendComm, Settings};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Messages of one connection are told apart by their tag; this program needs one tag only.
const TAG: u32 = 0;
/// Bytes of a message.
const CHUNK: usize = 1 << 20;
/// The first message: the file's length and its checksum, 8 bytes each.
const HEADER: usize = 16;
/// How long each message may take.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Outcome {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let settings = Settings::from_env()?;
    // The best device of this host.
    let device = Device::open_for(&Choice::make(&settings)?.devices[0], &settings)?;
    match args[..] {
        ["--receive", copy] => {
            let listener = Listener::bind(&device, &settings)?;
            println!("{}", listener.handle().hex());
            receive(&device, &listener, copy)
        }
        ["--send", file, handle] => send(&device, &settings, &Handle::from_hex(handle)?, file),
        [file, copy] => {
            let listener = Listener::bind(&device, &settings)?;
            let handle = listener.handle();
            thread::scope(|scope| {
                let sender = scope.spawn(|| send(&device, &settings, &handle, file));
                let received = receive(&device, &listener, copy);
                sender.join().expect("the sender does not panic").and(received)
            })
        }
        _ => Err("usage: send_file FILE COPY, --receive COPY, or --send FILE HANDLE".into()),
    }
}

fn send(device: &Device, settings: &Settings, handle: &Handle, file: &str) -> Outcome {
    let (length, sum) = measure(&mut File::open(file)?)?;
    let mut comm = SendComm::connect(device, handle, settings)?.wait()?;
    let region = MemoryRegion::new(device, CHUNK)?;
    region.write_at(0, &[length.to_le_bytes(), sum.to_le_bytes()].concat())?;
    comm.send(&region, 0..HEADER, TAG, TIMEOUT)?;

    let (mut file, mut bytes, mut left) = (File::open(file)?, vec![0; CHUNK], length);
    while left > 0 {
        let size = left.min(CHUNK as u64) as usize;
        file.read_exact(&mut bytes[..size])?;
        region.write_at(0, &bytes[..size])?;
        comm.send(&region, 0..size, TAG, TIMEOUT)?;
        left -= size as u64;
    }
    println!("sent {length} bytes, checksum {sum:016x}");
    Ok(())
}

fn receive(device: &Device, listener: &Listener, copy: &str) -> Outcome {
    let mut comm = listener.accept_within(TIMEOUT)?;
    let region = MemoryRegion::new(device, CHUNK)?;
    let size = comm.recv(&region, 0..HEADER, TAG, TIMEOUT)?;
    let mut header = [[0; 8]; 2];
    region.read_at(0, header.as_flattened_mut())?;
    let [length, sum] = header.map(u64::from_le_bytes);
    if size != HEADER {
        return Err(format!("a header of {size} bytes, not {HEADER}").into());
    }

    let (mut file, mut bytes, mut left) = (File::create(copy)?, vec![0; CHUNK], length);
    while left > 0 {
        let size = comm.recv(&region, 0..CHUNK, TAG, TIMEOUT)?;
        if size == 0 || size as u64 > left {
            return Err(format!("a message of {size} bytes where {left} are left").into());
        }
        region.read_at(0, &mut bytes[..size])?;
        file.write_all(&bytes[..size])?;
        left -= size as u64;
    }
    let (_, got) = measure(&mut File::open(copy)?)?;
    if got != sum {
        fs::remove_file(copy)?;
        return Err(format!("the copy has checksum {got:016x}, the file {sum:016x}").into());
    }
    println!("received {length} bytes, checksum {sum:016x}");
    Ok(())
}

/// Length and checksum (FNV-1a, 64 bits) of a file.
fn measure(file: &mut File) -> Result<(u64, u64), std::io::Error> {
    let (mut length, mut sum, mut bytes) = (0, 0xcbf2_9ce4_8422_2325_u64, vec![0; CHUNK]);
    loop {
        let size = file.read(&mut bytes)?;
        if size == 0 {
            return Ok((length, sum));
        }
        length += size as u64;
        for byte in &bytes[..size] {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
