//! Finds out who listens at a place that is taken.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::SocketAddrUnix;
use rustix::net::sockopt::socket_peercred;

use super::{CALL_MAX, Endpoint, server_line};
use crate::unix::connect_at_once;

/// The longest answer without metrics.
const HEAD_BYTES_MAX: u64 = 1024;
/// The kernel's tables of TCP sockets in the network namespace of the calling thread (`proc_pid_net(5)`).
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// The state of a listening socket in these tables.
const LISTENS: &str = "0A";

/// Whether a process of this user shows its metrics at a place.
pub(super) fn shows_ours(place: &Endpoint) -> bool {
    shows_those_of(place, rustix::process::geteuid().as_raw()).unwrap_or_default()
}

/// Whether a process of a user shows its metrics at a place. The kernel says whose listener it is, since the listener
/// could say anything.
fn shows_those_of(place: &Endpoint, uid: u32) -> io::Result<bool> {
    match place {
        Endpoint::Tcp(addr) if is_listener_of(*addr, uid)? => {
            let stream = TcpStream::connect_timeout(addr, CALL_MAX)?;
            stream.set_read_timeout(Some(CALL_MAX))?;
            says_so(stream, uid)
        }
        Endpoint::Unix(path) => {
            let stream = call(path)?;
            if socket_peercred(&stream)?.uid.as_raw() != uid {
                return Ok(false);
            }
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(CALL_MAX))?;
            says_so(stream, uid)
        }
        Endpoint::Tcp(_) | Endpoint::File(_) => Ok(false),
    }
}

/// Connects to a socket, and does not wait if its queue is full.
pub(super) fn call(path: &Path) -> io::Result<UnixStream> {
    connect_at_once(&SocketAddrUnix::new(path)?)
}

/// Whether a listener says that it shows the metrics of a user.
fn says_so(mut stream: impl Read + Write, uid: u32) -> io::Result<bool> {
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(HEAD_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).contains(&server_line(uid)))
}

/// Whether the listener that takes calls to an address is of a user.
fn is_listener_of(addr: SocketAddr, uid: u32) -> io::Result<bool> {
    let mut listeners = Vec::new();
    for table in TABLES {
        match File::open(table) {
            Ok(file) => listeners.extend(listeners_at(addr.port(), BufReader::new(file))),
            // A host without IPv6 has no table of it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(takes_calls(&listeners, addr.ip().to_canonical(), uid))
}

/// Whether all listeners that may take calls to an address are of a user, and there is one. A listener at all
/// addresses takes them only if there is none at the address itself.
fn takes_calls(listeners: &[(IpAddr, u32)], ip: IpAddr, uid: u32) -> bool {
    let is_taken = listeners.iter().any(|(at, _)| *at == ip);
    let takes = |at: IpAddr| if is_taken { at == ip } else { at.is_unspecified() };
    let mut users = listeners.iter().filter(|(at, _)| takes(*at)).map(|(_, user)| *user).peekable();
    users.peek().is_some() && users.all(|user| user == uid)
}

/// The addresses and users of the listeners at a port in a table of the kernel.
fn listeners_at(port: u16, table: impl BufRead) -> impl Iterator<Item = (IpAddr, u32)> {
    table.lines().map_while(Result::ok).filter_map(move |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, state, _, _, _, user, ..] = words[..] else { return None };
        let (ip, at) = local.split_once(':')?;
        let is_meant = state == LISTENS && u16::from_str_radix(at, 16) == Ok(port);
        if is_meant { Some((ip_of(ip)?, user.parse::<u32>().ok()?)) } else { None }
    })
}

/// Reads an address of these tables: words of 32 bits as they lie in memory.
fn ip_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.as_flattened().try_into().ok()?;
            Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::super::is_left_over;
    use super::*;

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// Answers callers as a process with the metrics of a user does.
    fn answer<S: Read + Write>(mut accept: impl FnMut() -> S + Send + 'static, uid: u32) {
        let text = format!("HTTP/1.1 404 Not Found\r\n{}\r\n", server_line(uid));
        thread::spawn(move || {
            loop {
                let mut caller = accept();
                // A caller that does not believe the listener says nothing.
                let _ = caller.read(&mut [0; 64]).and_then(|_| caller.write_all(text.as_bytes()));
            }
        });
    }

    #[test]
    fn a_listener_that_gives_itself_out_as_another_users_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        for (claimed, is_true) in [(uid(), true), (uid() + 1, false)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let tcp = Endpoint::Tcp(listener.local_addr().unwrap());
            let path = folder.path().join(claimed.to_string());
            let unix_listener = UnixListener::bind(&path).unwrap();
            answer(move || listener.accept().unwrap().0, claimed);
            answer(move || unix_listener.accept().unwrap().0, claimed);
            for place in [tcp, Endpoint::Unix(path)] {
                assert_eq!(shows_those_of(&place, claimed).unwrap(), is_true, "{place}");
            }
        }
    }

    #[test]
    fn a_listener_that_takes_no_callers_holds_up_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.sock");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let _waiting: Vec<UnixStream> = std::iter::from_fn(|| call(&path).ok()).collect();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let is_old = is_left_over(&path);
            tell.send((is_old, shows_ours(&Endpoint::Unix(path))))
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok((false, false)));
    }

    #[test]
    fn the_listener_at_the_address_itself_counts_and_else_those_at_all_addresses() {
        let [home, other] = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)].map(IpAddr::from);
        let [any, any6] = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
        for (listeners, is_ours) in [
            (&[(home, 7)][..], true),
            (&[], false),
            (&[(home, 8)], false),
            (&[(other, 7)], false),
            (&[(other, 8), (home, 7)], true),
            (&[(any6, 8), (home, 7)], true),
            (&[(any, 7)], true),
            (&[(any, 7), (any6, 8)], false),
        ] {
            assert_eq!(takes_calls(listeners, home, 7), is_ours, "{listeners:?}");
        }
    }

    #[test]
    fn a_table_of_the_kernel_tells_the_users_of_listeners() {
        let at = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let loopback = at([127, 0, 0, 1]);
        let mapped = [at([0; 4]), at([0; 4]), at([0, 0, 255, 255]), loopback.clone()].concat();
        let rest = "00000000:00000000 00:00000000 00000000";
        let table = format!(
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n\
             0: {loopback}:2507 00000000:0000 0A {rest}  1000  0 1 1 0 100 0 0 10 0\n\
             1: {loopback}:2508 00000000:0000 0A {rest}  1001  0 1 1 0 100 0 0 10 0\n\
             2: {loopback}:2507 {loopback}:9999 01 {rest}  1002  0 1 1 0 100 0 0 10 0\n\
             3: {mapped}:2507 {mapped}:0000 0A {rest}  1003  0 1 1 0 100 0 0 10 0\n"
        );
        let found: Vec<_> = listeners_at(0x2507, table.as_bytes()).collect();
        assert_eq!(found, [1000, 1003].map(|user| (IpAddr::from(Ipv4Addr::LOCALHOST), user)));
    }
}
