//! Shortens the kernel's time-outs for peers of TCP connections, so that tests need not wait.

use std::fs;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::io;
use rustix::net::ipproto;
use rustix::net::sockopt::{
    set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout, socket_protocol, tcp_user_timeout,
};

/// The kernel counts the times of keepalive in whole seconds.
const SECOND: Duration = Duration::from_secs(1);
const SECOND_MS: u32 = 1000;

/// Sets all time-outs of all current TCP connections of this process to a second. A connection without
/// a `TCP_USER_TIMEOUT` stays without one.
pub fn hasten() {
    let open = fs::read_dir("/proc/self/fd").expect("Linux has it");
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for number in numbers.collect::<Vec<RawFd>>() {
        // SAFETY: the calls touch socket options alone. If another thread closes the descriptor, the
        // kernel returns an error. If that thread opens another connection in its place, that one gets
        // short time-outs.
        let socket = unsafe { BorrowedFd::borrow_raw(number) };
        // Other descriptors are no sockets, or are closed by now.
        if socket_protocol(socket) == Ok(Some(ipproto::TCP)) {
            let _ = hasten_one(socket);
        }
    }
}

fn hasten_one(socket: BorrowedFd<'_>) -> io::Result<()> {
    if tcp_user_timeout(socket)? > 0 {
        set_tcp_user_timeout(socket, SECOND_MS)?;
    }
    set_tcp_keepidle(socket, SECOND)?;
    set_tcp_keepintvl(socket, SECOND)
}
