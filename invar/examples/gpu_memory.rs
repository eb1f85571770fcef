//! Sends a GPU's memory to a GPU's memory, and says which way the bytes go.
//!
//! ```sh
//! cargo run --example gpu_memory
//! ```
//!
//! CUDA's driver is loaded at run time. Without the driver, or without a GPU, the program says so and
//! succeeds. The environment chooses the transport and the interface, for example
//! `INVAR_TRANSPORT=soft` and `NCCL_SOCKET_IFNAME=lo`.

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::error::Error;
use std::thread;
use std::time::Duration;

use invar::cuda::{Driver, Gpu, GpuMemory};
use invar::{Choice, Device, Flush, Handle, Listener, MemoryRegion, SendComm, Settings};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Bytes of the message: more than one piece of pinned host memory holds.
const BYTES: usize = 3 << 20;
const TAG: u32 = 0;
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Outcome {
    let driver = match Driver::open() {
        Ok(driver) => driver,
        Err(why) => {
            println!("no GPU memory to send: {why}");
            return Ok(());
        }
    };
    let Some(info) = driver.gpus()?.into_iter().next() else {
        println!("no GPU memory to send: CUDA's driver knows no GPU");
        return Ok(());
    };
    let gpu = Gpu::open(driver, info.ordinal)?;
    let settings = Settings::from_env()?;
    let device = Device::open_for(&Choice::make(&settings)?.devices[0], &settings)?;
    println!("GPU {} ({}), device {}", info.ordinal, info.name, device.info().name);

    let listener = Listener::bind(&device, &settings)?;
    let handle = listener.handle();
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(&gpu, &device, &handle, &settings));
        let received = receive(&gpu, &device, &listener, &settings);
        sender.join().expect("the sender does not panic").and(received)
    })
}

fn send(gpu: &Gpu, device: &Device, handle: &Handle, settings: &Settings) -> Outcome {
    let mut comm = SendComm::connect(device, handle, settings)?.wait()?;
    let memory = GpuMemory::alloc(gpu, BYTES)?;
    memory.write_at(0, &content())?;
    let region = MemoryRegion::on_gpu(device, &memory, settings)?;
    let sent = comm.send(&region, 0..BYTES, TAG, TIMEOUT)?;
    println!("sent {sent} bytes of GPU memory");
    Ok(())
}

fn receive(gpu: &Gpu, device: &Device, listener: &Listener, settings: &Settings) -> Outcome {
    let mut comm = listener.accept_within(TIMEOUT)?;
    let memory = GpuMemory::alloc(gpu, BYTES)?;
    let region = MemoryRegion::on_gpu(device, &memory, settings)?;
    if let Some(path) = region.gpu_path() {
        println!("way: {path}");
    }
    let received = comm.recv(&region, 0..BYTES, TAG, TIMEOUT)?;
    // The GPU sees all that came once the flush is done.
    match comm.iflush(&[(&region, 0..received)])? {
        Flush::Started(request) => drop(comm.wait(&request, TIMEOUT)?),
        Flush::NotNeeded => {}
        Flush::Busy => return Err("a flush finds no room beside no other".into()),
    }
    let mut bytes = vec![0; BYTES];
    memory.read_at(0, &mut bytes)?;
    if received != BYTES || bytes != content() {
        return Err(format!("{received} bytes came, and not those that were sent").into());
    }
    println!("received {received} bytes into GPU memory, all as sent");
    Ok(())
}

fn content() -> Vec<u8> {
    (0..BYTES).map(|i| (i * 7 + i / 251) as u8).collect()
}
