//! Waits for a message and for the clock at once, and loses no message: `select!` drops the wait, and the
//! receive stays posted.
//!
//! ```sh
//! cargo run --example cancel
//! ```
//!
//! The environment chooses the transport and the interface, for example `INVAR_TRANSPORT=soft` and
//! `NCCL_SOCKET_IFNAME=lo`.

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::time::Duration;

use invar::{Choice, Device, Error, Listener, MemoryRegion, SendComm, Settings};

const TAG: u32 = 0;
const BYTES: usize = 8;
const MESSAGES: u64 = 5;
/// The clock ticks more often than messages come.
const TICK: Duration = Duration::from_millis(5);
const MESSAGE_EVERY: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let settings = Settings::from_env()?;
    let device = Device::open_for(&Choice::make(&settings)?.devices[0], &settings)?;
    let listener = Listener::bind(&device, &settings)?;
    let connecting = SendComm::connect(&device, &listener.handle(), &settings)?;
    let (send, recv) = tokio::join!(connecting, listener.accept_async());
    let (sender, mut comm) = (tokio::spawn(send_slowly(send?)), recv?);

    let region = MemoryRegion::new(&device, BYTES)?;
    let (mut ticks, mut sum, mut clock) = (0, 0, tokio::time::interval(TICK));
    for _ in 0..MESSAGES {
        let request = comm.irecv_async(&[(&region, 0..BYTES, TAG)]).await?;
        loop {
            tokio::select! {
                received = comm.wait_async(&request) => {
                    received?;
                    break;
                }
                // The wait is dropped here. The next turn waits for the same request.
                _ = clock.tick() => ticks += 1,
            }
        }
        let mut bytes = [0; BYTES];
        region.read_at(0, &mut bytes)?;
        sum += u64::from_le_bytes(bytes);
    }
    sender.await??;
    println!("{MESSAGES} messages with the sum {sum}, and the clock ticked: {}", ticks > 0);
    Ok(())
}

/// Sends the numbers from 1 on.
async fn send_slowly(mut comm: SendComm) -> Result<(), Error> {
    let region = MemoryRegion::new(comm.device(), BYTES)?;
    for number in 1..=MESSAGES {
        tokio::time::sleep(MESSAGE_EVERY).await;
        region.write_at(0, &number.to_le_bytes())?;
        comm.send_async(&region, 0..BYTES, TAG).await?;
    }
    Ok(())
}
