//! The control connection: lines over TCP, never longer than a bound, never waited for without
//! one.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// Version of what client and server say.
const VERSION: u32 = 2;
/// How a first line begins.
const NAME: &str = "invar-perf";
const LINE_BYTES_MAX: usize = 4096;
/// For what a peer can do at once.
const AT_ONCE: Duration = Duration::from_secs(10);

pub(super) struct Control {
    stream: TcpStream,
    peer: SocketAddr,
    /// Bytes that have come and are no line yet, or lines that nobody has asked for yet.
    input: Vec<u8>,
}

impl Control {
    /// Connects to the first of the server's addresses that takes the call.
    pub(super) fn connect(addrs: &[SocketAddr]) -> Result<Self, Failure> {
        let mut whys = Vec::new();
        for addr in addrs {
            match TcpStream::connect_timeout(addr, AT_ONCE) {
                Ok(stream) => return Self::new(stream, *addr),
                Err(error) => whys.push(format!("{addr}: {error}{}", hint(&error))),
            }
        }
        Err(Failure::new(format_args!("connecting to {}", whys.join("; and to "))))
    }

    pub(super) fn new(stream: TcpStream, peer: SocketAddr) -> Result<Self, Failure> {
        let tuned = invar_linux::tcp::tune(&stream).and(stream.set_write_timeout(Some(AT_ONCE)));
        tuned.map_err(|error| Failure::io(peer, &error))?;
        Ok(Control { stream, peer, input: Vec::new() })
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Our end; IPv4 as such.
    pub(super) fn local_ip(&self) -> Result<IpAddr, Failure> {
        let addr = self.stream.local_addr().map_err(|error| Failure::io(self.peer, &error))?;
        Ok(addr.ip().to_canonical())
    }

    /// Tells who we are, and refuses a peer that is something else.
    pub(super) fn greet(&mut self) -> Result<(), Failure> {
        self.write(format!("{NAME} {VERSION}\n").as_bytes())?;
        let line = self.line(AT_ONCE)?;
        let peer = self.peer;
        let Some(version) = line.strip_prefix(NAME).map(str::trim) else {
            let begin: String = line.chars().take(40).collect();
            return Err(Failure::new(format_args!(
                "{peer} is no other end of invar perf: it says {begin:?}"
            )));
        };
        if version != VERSION.to_string() {
            return Err(Failure::new(format_args!(
                "{peer} is an invar perf of version {version:?}, this is one of version {VERSION}; \
                 run the same Invar on both"
            )));
        }
        Ok(())
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(message).map_err(Failure::new)?;
        line.push(b'\n');
        self.write(&line)
    }

    pub(super) fn recv<T: DeserializeOwned>(&mut self, within: Duration) -> Result<T, Failure> {
        let line = self.line(within)?;
        serde_json::from_str(&line).map_err(|error| {
            Failure::new(format_args!("{} says what cannot be: {error}", self.peer))
        })
    }

    /// Waits a moment for a line, which [`Control::recv`] gives then; fails when the peer is gone.
    pub(super) fn has_line(&mut self, within: Duration) -> Result<bool, Failure> {
        let deadline = Instant::now() + within;
        loop {
            if self.input.contains(&b'\n') {
                return Ok(true);
            }
            if self.input.len() >= LINE_BYTES_MAX {
                return Err(Failure::new(format_args!("{} sends no lines", self.peer)));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.read(left)?;
        }
    }

    fn line(&mut self, within: Duration) -> Result<String, Failure> {
        if !self.has_line(within)? {
            let text = format!("{} said nothing for {} s", self.peer, within.as_secs());
            return Err(Failure::new(text));
        }
        let end = self.input.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let line: Vec<u8> = self.input.drain(..=end).collect();
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Takes what comes within a time.
    fn read(&mut self, within: Duration) -> Result<(), Failure> {
        let mut bytes = [0; LINE_BYTES_MAX];
        let set = self.stream.set_read_timeout(Some(within));
        match set.and_then(|()| self.stream.read(&mut bytes)) {
            Ok(0) => Err(Failure::new(format_args!("{} has hung up", self.peer))),
            Ok(n) => {
                self.input.extend_from_slice(&bytes[..n]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
                // Not our wait, but TCP's, whose probes nobody answers.
                ErrorKind::TimedOut => {
                    Err(Failure::new(format_args!("{} is out of reach: {error}", self.peer)))
                }
                _ => Err(Failure::io(self.peer, &error)),
            },
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(bytes).map_err(|error| Failure::io(self.peer, &error))
    }
}

/// What may be the reason that a server is not reached.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ConnectionRefused => {
            ", so nobody listens there: does `invar perf --server` run on that host, at that port?"
        }
        ErrorKind::TimedOut => {
            ", so the host is down, or a firewall drops what goes to that port: --server ADDR:PORT \
             takes another"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A control, and its peer in the raw.
    fn pair() -> (Control, TcpStream) {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let control = Control::connect(&[listener.local_addr().unwrap()]).unwrap();
        (control, listener.accept().unwrap().0)
    }

    fn greeted_with(line: &str) -> Result<(), String> {
        let (mut control, mut peer) = pair();
        peer.write_all(line.as_bytes()).unwrap();
        control.greet().map_err(|failure| failure.to_string())
    }

    #[test]
    fn only_the_same_version_of_the_same_thing_is_greeted() {
        assert_eq!(greeted_with("invar-perf 2\n"), Ok(()));
        let other = greeted_with("invar-perf 3\n").unwrap_err();
        assert!(other.contains("version \"3\", this is one of version 2"), "{other}");
        let http = greeted_with("HTTP/1.1 400 Bad Request\r\n").unwrap_err();
        assert!(http.contains("is no other end of invar perf: it says \"HTTP/1.1 400"), "{http}");
        let endless = greeted_with(&"x".repeat(2 * LINE_BYTES_MAX)).unwrap_err();
        assert!(endless.ends_with("sends no lines"), "{endless}");
    }

    #[test]
    fn the_next_address_of_a_server_is_called_where_one_does_not_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        // Bound, and nobody listens: no other may take the port meanwhile.
        let (deaf, port) = deaf();
        let control = Control::connect(&[port, addr]).unwrap();
        assert_eq!(control.peer(), addr);
        let refused = Control::connect(&[port, port]).map(drop).unwrap_err().to_string();
        let why = format!("{port}: Connection refused (os error 111), so nobody listens there");
        assert!(refused.starts_with(&format!("connecting to {why}")), "{refused}");
        assert!(refused.contains(&format!("; and to {why}")), "{refused}");
        drop(deaf);
    }

    fn deaf() -> (rustix::fd::OwnedFd, SocketAddr) {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let addr = getsockname(&socket).unwrap().try_into().unwrap();
        (socket, addr)
    }

    #[test]
    fn a_line_may_come_in_pieces_and_several_at_once() {
        let (mut control, mut peer) = pair();
        assert!(!control.has_line(Duration::from_millis(1)).unwrap());
        peer.write_all(b"[1,").unwrap();
        assert!(!control.has_line(Duration::from_millis(1)).unwrap());
        peer.write_all(b"2]\n[3]\n").unwrap();
        assert_eq!(control.recv::<Vec<u8>>(AT_ONCE).unwrap(), [1, 2]);
        assert_eq!(control.recv::<Vec<u8>>(AT_ONCE).unwrap(), [3]);
        peer.write_all(b"{}\n").unwrap();
        assert!(control.recv::<Vec<u8>>(AT_ONCE).is_err());
        drop(peer);
        let gone = control.recv::<Vec<u8>>(AT_ONCE).unwrap_err();
        assert!(gone.to_string().ends_with("has hung up"), "{gone}");
    }

    #[test]
    fn a_peer_that_says_nothing_is_not_waited_for_for_ever() {
        let (mut control, _peer) = pair();
        let silent = control.recv::<u8>(Duration::from_millis(5)).unwrap_err();
        assert!(silent.to_string().contains("said nothing"), "{silent}");
    }
}
