//! The rendezvous of a communicator's ranks: `invar_core::rendezvous` over TCP.
//!
//! One process runs the [`Hub`], and every rank has a [`Bootstrap`]. The connections stay as long as the
//! communicator. A process that ends, for any reason, closes its connection, and the hub tells all
//! others which rank that was.

mod attend;
mod bootstrap;
mod connection;
mod error;
mod hub;
mod reach;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use argon2::Argon2;
use invar_core::auth::{SECRET_BYTES, Secret};
use invar_core::rendezvous::Member;

use crate::interface;
use crate::random::random;

pub use attend::{Attendant, GroupVerdict};
pub use bootstrap::Bootstrap;
pub use error::{BootstrapError, Failure};
pub use hub::{Hub, HubListener};

/// The longest sleep of a thread before it checks whether it is to end.
const TICK: Duration = Duration::from_millis(100);

/// Describes this process and the namespace of the calling thread. Threads of the same boot, network
/// namespace and user can pass each other memory over Unix sockets.
pub fn this_member() -> Member {
    let boot_id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits = boot_id.iter().filter_map(|byte| char::from(*byte).to_digit(16));
    let mut host = [0; 32];
    for (i, digit) in digits.take(32).enumerate() {
        host[i / 2] = host[i / 2] << 4 | digit as u8;
    }
    host[16..24].copy_from_slice(&interface::namespace().to_le_bytes());
    host[24..28].copy_from_slice(&rustix::process::geteuid().as_raw().to_le_bytes());
    // Processes of two containers may have one number.
    static DRAWN: OnceLock<u32> = OnceLock::new();
    let drawn = DRAWN.get_or_init(|| random().map_or(0, u32::from_ne_bytes));
    Member { host, number: (std::process::id() ^ drawn).into() }
}

/// Returns the end of a time that begins now; if a clock cannot represent it, a time in a century.
fn deadline(within: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(within).unwrap_or(now + CENTURY)
}

/// Reads a text of another rank, which may be anybody's. Control characters become question marks.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(char::is_control, "?")
}

/// Derives a secret from a word, so that people can choose a word. Argon2id takes almost a tenth of a
/// second and 19 MiB. So an attacker who listens at the rendezvous' port in its place can try only a few
/// words per second.
pub fn secret_of(word: &str) -> Secret {
    let mut secret = [0; SECRET_BYTES];
    let hashed = Argon2::default().hash_password_into(word.as_bytes(), SALT, &mut secret);
    hashed.expect("a word of at most 4 GiB");
    Secret::new(secret)
}

/// The salt is constant, because all ranks must derive the same secret before they communicate.
const SALT: &[u8] = b"Invar's rendezvous";

#[cfg(test)]
mod tests;
