//! The control connection: lines over TCP. The length of a line and the wait for it have bounds.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use invar::Settings;
use invar_core::auth::{AuthError, Secret, Service, Session};
use invar_core::conn::{Stream, StreamError};
use invar_linux::tcp::OobStream;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::Reply;
use crate::failure::Failure;

/// Time for a reply. The server checks bytes after they have arrived.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const LINE_BYTES_MAX: usize = 4096;
/// Time for a step that a peer can do at once.
const AT_ONCE: Duration = Duration::from_secs(10);

/// One end of the control connection. Both ends have proved that they are `invar perf`.
pub(super) struct Control {
    stream: OobStream,
    peer: SocketAddr,
    session: Session,
    /// Received bytes: lines that nobody has asked for yet, and the start of the next line.
    input: Vec<u8>,
}

impl Control {
    /// Calls the first of the server's addresses that answers.
    pub(super) fn connect(addrs: &[SocketAddr]) -> Result<Self, Failure> {
        let mut whys = Vec::new();
        for addr in addrs {
            match OobStream::connect_by(*addr, Instant::now() + AT_ONCE) {
                Ok(stream) => return Self::authenticated(stream, *addr),
                Err(error) => {
                    let error = as_io(error);
                    whys.push(format!("{addr}: {error}{}", hint(&error)));
                }
            }
        }
        Err(Failure::new(format_args!("connecting to {}", whys.join("; and to "))))
    }

    /// Refuses a server that is another program, or has another version.
    fn authenticated(mut stream: OobStream, addr: SocketAddr) -> Result<Self, Failure> {
        let session = stream.authenticate(Secret::PUBLIC, Service::Perf, Instant::now() + AT_ONCE);
        match session {
            Ok(Some(session)) => Ok(Self::new(stream, addr, session)),
            Ok(None) => {
                let s = AT_ONCE.as_secs();
                Err(Failure::new(format_args!("{addr} took the call and said nothing for {s} s")))
            }
            Err(AuthError::Magic(head)) => {
                let says = String::from_utf8_lossy(&head);
                let text = format!("{addr} is no server of invar perf: it says {says:?}");
                Err(Failure::new(text))
            }
            Err(error) => Err(Failure::new(format_args!("{addr}: {error}"))),
        }
    }

    pub(super) fn new(stream: OobStream, peer: SocketAddr, session: Session) -> Self {
        Control { stream, peer, session, input: Vec::new() }
    }

    /// Gives up the other end if its host is silent for as long as the connection that is measured may be.
    pub(super) fn bear_silence(&mut self, settings: &Settings) -> Result<(), Failure> {
        let bearing = self.stream.bear_silence(settings.silence());
        bearing.map_err(|error| Failure::io(self.peer, &error))
    }

    /// The session in which both ends have proved themselves.
    pub(super) fn session(&self) -> Session {
        self.session
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address of this end. A mapped IPv4 address is given as IPv4.
    pub(super) fn local_ip(&self) -> Result<IpAddr, Failure> {
        let addr = self.stream.local_addr().map_err(|error| Failure::io(self.peer, &error))?;
        Ok(addr.ip().to_canonical())
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(message).map_err(Failure::new)?;
        line.push(b'\n');
        self.write(&line)
    }

    pub(super) fn recv<T: DeserializeOwned>(&mut self, within: Duration) -> Result<T, Failure> {
        let line = self.line(within)?;
        serde_json::from_str(&line).map_err(|error| {
            Failure::new(format_args!("{} sent an invalid message: {error}", self.peer))
        })
    }

    /// Waits a moment for a line, which [`Control::recv`] then returns. Fails if the peer is gone.
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

    /// Takes the bytes that arrive within a time.
    fn read(&mut self, within: Duration) -> Result<(), Failure> {
        self.stream.wait_for_bytes(within).map_err(|error| Failure::io(self.peer, &error))?;
        let mut bytes = [0; LINE_BYTES_MAX];
        let n = self.stream.recv(&mut bytes).map_err(|error| self.lost(error))?;
        self.input.extend_from_slice(&bytes[..n]);
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        let deadline = Instant::now() + AT_ONCE;
        while !bytes.is_empty() {
            let sent = self.stream.send(bytes).map_err(|error| self.lost(error))?;
            bytes = &bytes[sent..];
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let s = AT_ONCE.as_secs();
                let text = format!("{} has read nothing for {s} s", self.peer);
                return Err(Failure::new(text));
            }
            if sent == 0 {
                let waited = self.stream.wait_for_room(left);
                waited.map_err(|error| Failure::io(self.peer, &error))?;
            }
        }
        Ok(())
    }

    fn lost(&self, error: StreamError) -> Failure {
        let peer = self.peer;
        match error {
            StreamError::Closed => Failure::new(format_args!("{peer} has hung up")),
            error => match as_io(error) {
                error if error.kind() == io::ErrorKind::TimedOut => {
                    Failure::new(format_args!("{peer} is out of reach: {error}"))
                }
                error => Failure::io(peer, &error),
            },
        }
    }
}

impl Reply {
    /// The failure for a reply that does not answer the request.
    pub(super) fn unexpected(self, control: &Control) -> Failure {
        match self {
            Reply::Failed { text, .. } => Failure::new(format_args!("the server: {text}")),
            _ => Failure::new(format_args!(
                "{} has sent a reply that does not answer the request",
                control.peer()
            )),
        }
    }
}

fn as_io(error: StreamError) -> io::Error {
    match error {
        StreamError::Os(errno) => io::Error::from_raw_os_error(errno),
        StreamError::Closed => io::ErrorKind::UnexpectedEof.into(),
    }
}

/// A hint why a server cannot be reached.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            ", so nobody listens there: does `invar perf --server` or `invar doctor --serve` run on that host, at that port?"
        }
        io::ErrorKind::TimedOut => {
            ", so the host is down, or a firewall drops what goes to that port: --server ADDR:PORT \
             takes another"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use invar_core::auth::{Hello, NONCE_BYTES};
    use invar_core::param::PortRange;
    use invar_linux::clock::now_ns;
    use invar_linux::tcp::{AuthListener, Proof};

    /// A control, and its peer in the raw.
    fn pair() -> (Control, TcpStream) {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let stream = OobStream::connect_by(addr, Instant::now() + AT_ONCE).unwrap();
        (Control::new(stream, addr, Session::UNKNOWN_PEER), listener.accept().unwrap().0)
    }

    /// The client's error for a server that begins with these bytes.
    fn answered_with(bytes: &[u8]) -> String {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let addr = listener.local_addr().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(bytes).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                // Wait until the client has gone: a reset could overtake the bytes that it has not read.
                while !matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)) {}
            });
            Control::connect(&[addr]).map(drop).unwrap_err().to_string()
        })
    }

    #[test]
    fn only_a_server_of_perf_of_the_same_version_is_taken() {
        let http = answered_with(b"HTTP/1.1 400 Bad Request\r\n");
        assert!(http.contains("is no server of invar perf: it says \"HTTP/1.1\""), "{http}");
        let mut hello = Hello::new(Service::Perf, [1; NONCE_BYTES]).to_bytes();
        hello[8] = 77;
        let other = answered_with(&hello);
        assert!(other.contains("speaks version 77 of Invar's wire, this side"), "{other}");
        let links = answered_with(&Hello::new(Service::Tcp, [1; NONCE_BYTES]).to_bytes());
        assert!(links.contains("is for connections over TCP, this side for invar perf"), "{links}");
        let gone = answered_with(b"");
        assert!(gone.contains("hung up"), "{gone}");
    }

    #[test]
    fn the_next_address_of_a_server_is_called_where_one_does_not_answer() {
        let proof = Proof::Secret(Secret::PUBLIC, Service::Perf);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut listener = AuthListener::bind(any, PortRange::ANY, proof).unwrap();
        let addr = listener.local_addr().unwrap();
        let answering = thread::spawn(move || while listener.poll(now_ns()).unwrap().is_none() {});
        // Bound, and nobody listens: no other may take the port meanwhile.
        let (deaf, port) = deaf();
        let control = Control::connect(&[port, addr]).unwrap();
        assert_eq!(control.peer(), addr);
        answering.join().unwrap();
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
