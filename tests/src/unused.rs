//! TCP ports for programs that take a number and not a socket.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that the kernel gives to those that ask for any: it gives one of these to nobody
/// between this choice and its use.
const PORTS: (u16, u16) = (20_000, 8_000);

/// An address of loopback where nobody listens, another one with each call.
///
/// # Panics
/// Panics if all of the ports are taken.
pub fn address() -> SocketAddrV4 {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    let (first, count) = PORTS;
    let own = (process::id() % u32::from(count)) as u16;
    let next = || first + own.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % count;
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    let mut ports = (0..count).map(|_| next());
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, ports.find(is_free).expect("a port that is free"))
}
