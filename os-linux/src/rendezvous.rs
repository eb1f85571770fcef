//! How the ranks of a communicator find together: `invar_core::rendezvous` over TCP.
//!
//! One process runs the [`Hub`], every rank has a [`Bootstrap`]. The connections stay as long as
//! the communicator does: a process that ends, however it does, closes its own, and the hub tells
//! all others which rank that was.

mod bootstrap;
mod connection;
mod hub;

use std::io;
use std::time::{Duration, Instant};

use invar_core::rendezvous::{Member, NONCE_BYTES};
use rustix::rand::{GetRandomFlags, getrandom};

pub use bootstrap::{Bootstrap, BootstrapError, Failure};
pub use hub::Hub;

/// How long a thread sleeps before it looks whether it is to end.
const TICK: Duration = Duration::from_millis(100);

/// This process, where the calling thread is. Threads of the same boot, network namespace and user
/// can give each other memory over Unix sockets.
pub fn this_member() -> Member {
    let boot_id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = rustix::fs::stat("/proc/thread-self/ns/net").map_or(0, |stat| stat.st_ino);
    let digits = boot_id.iter().filter_map(|byte| char::from(*byte).to_digit(16));
    let mut host = [0; 32];
    for (i, digit) in digits.take(32).enumerate() {
        host[i / 2] = host[i / 2] << 4 | digit as u8;
    }
    host[16..24].copy_from_slice(&namespace.to_le_bytes());
    host[24..28].copy_from_slice(&rustix::process::geteuid().as_raw().to_le_bytes());
    Member { host, pid: std::process::id().into() }
}

/// Bytes that nobody can guess.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// When a time that begins now is over; one longer than a clock can tell, in a century.
fn deadline(within: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(within).unwrap_or(now + CENTURY)
}

fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    random()
}

#[cfg(test)]
mod tests;
