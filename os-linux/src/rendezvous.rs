//! How the ranks of a communicator find together: `invar_core::rendezvous` over TCP.
//!
//! One process runs the [`Hub`], every rank has a [`Bootstrap`]. The connections stay as long as
//! the communicator does: a process that ends, however it does, closes its own, and the hub tells
//! all others which rank that was.

mod bootstrap;
mod connection;
mod hub;
mod reach;

use std::time::{Duration, Instant};

use argon2::Argon2;
use invar_core::auth::{SECRET_BYTES, Secret};
use invar_core::rendezvous::Member;

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

/// When a time that begins now is over; one longer than a clock can tell, in a century.
fn deadline(within: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(within).unwrap_or(now + CENTURY)
}

/// The secret that a word stands for, so that people may choose one. It takes a good part of a second's
/// tenth, and 19 MiB, by Argon2id, so that who listens at the rendezvous' port in its place can try few
/// words a second.
pub fn secret_of(word: &str) -> Secret {
    let mut secret = [0; SECRET_BYTES];
    let hashed = Argon2::default().hash_password_into(word.as_bytes(), SALT, &mut secret);
    hashed.expect("a word of at most 4 GiB");
    Secret::new(secret)
}

/// All ranks must come to the same secret, before they have heard of each other.
const SALT: &[u8] = b"Invar's rendezvous";

#[cfg(test)]
mod tests;
