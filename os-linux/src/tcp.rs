//! The out-of-band channel: TCP on which the two ends of a comm agree.
//!
//! Nothing here blocks. A stream that has no bytes or no room answers 0, a listener that has no
//! caller answers `None`, and whoever polls keeps the deadline.

mod callers;
mod congestion;
mod reach;
mod vectored;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use invar_core::conn::{Stream, StreamError};
use invar_core::param::PortRange;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_tcp_quickack;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::ports::bind_in_range;

pub use callers::{AUTH_WITHIN_NS, AuthListener, Proof, TurnedAway, WhyNot};
pub use congestion::{Congestion, CongestionRefused};

/// Callers that may wait to be accepted; the kernel cuts it to `net.core.somaxconn`.
const BACKLOG: i32 = 16_384;

/// The kernel gives up a peer whose host says nothing for so long: by keepalive while nothing that was
/// sent waits for an acknowledgement, and otherwise by `TCP_USER_TIMEOUT` (`tcp(7)`).
///
/// That option also ends a connection whose peer is there and does not read, once its buffers are
/// full. So connections that carry messages are without it, and notice a host that has vanished by
/// the keepalive of another connection with the same peer.
pub const SILENCE_MAX: Duration = Duration::from_secs(25);

/// The kernel probes a silent peer after 10 s, and gives it up 15 s later.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(10))
    .with_interval(Duration::from_secs(5))
    .with_retries(3);

/// A listener for peers.
#[derive(Debug)]
pub struct OobListener(TcpListener);

impl OobListener {
    /// Listens at `addr`; where that has no port, at the first of `ports` that is free.
    pub fn bind(addr: SocketAddr, ports: PortRange) -> io::Result<Self> {
        bind_in_range(addr, ports, "INVAR_PORT_RANGE", Self::bind_at)
    }

    fn bind_at(addr: SocketAddr) -> io::Result<Self> {
        let socket = new_socket(addr)?;
        if addr.port() != 0 {
            // A port that somebody chose is to be had again right after a restart.
            socket.set_reuse_address(true)?;
        }
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        Ok(OobListener(socket.into()))
    }

    /// The address at which the listener listens, with its port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The next peer that has connected; `None` where there is none yet.
    ///
    /// An error is about this host (`EMFILE`, `ENOMEM`): a peer that gave up meanwhile is none.
    pub fn accept(&self) -> io::Result<Option<OobStream>> {
        match self.0.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(true)?;
                tune(&stream)?;
                Ok(Some(OobStream::new(stream, peer)))
            }
            Err(error) if is_about_one_peer(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for OobListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection with a peer. Dropping it closes it.
#[derive(Debug)]
pub struct OobStream {
    stream: TcpStream,
    /// Kept, since the kernel knows it only while there is a connection.
    peer: SocketAddr,
    /// The first error of the connection, which the kernel tells only once, to one of the handles.
    error: Arc<OnceLock<StreamError>>,
}

impl OobStream {
    /// Starts to connect to `addr`. Ask [`poll_connected`](Stream::poll_connected) how it goes.
    pub fn connect(addr: SocketAddr) -> Result<Self, StreamError> {
        let socket = new_socket(addr).map_err(os)?;
        tune(&socket).map_err(os)?;
        match socket.connect(&addr.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(os(error)),
        }
        Ok(OobStream::new(socket.into(), addr))
    }

    fn new(stream: TcpStream, peer: SocketAddr) -> Self {
        OobStream { stream, peer, error: Arc::default() }
    }

    /// Lets a peer that does not read take as long as it likes, while its host answers. A host that
    /// vanishes amid a transfer is then noticed only by another connection with it.
    pub(crate) fn wait_for_reader(&self) -> io::Result<()> {
        SockRef::from(&self.stream).set_tcp_user_timeout(None)
    }

    /// Gives up a peer that acknowledges nothing for [`SILENCE_MAX`], or does not read for so long
    /// once its buffers are full. A new connection does so.
    pub(crate) fn bound_silence(&self) -> io::Result<()> {
        SockRef::from(&self.stream).set_tcp_user_timeout(Some(SILENCE_MAX))
    }

    /// Why the peer's host is out of reach, if the kernel has found that out. Reads nothing.
    pub(crate) fn unreachable(&self) -> Option<StreamError> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::empty())];
        if matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1)) {
            let error = self.stream.take_error().ok().flatten().map(os);
            error.inspect(|error| self.note(*error));
        }
        self.error.get().copied().filter(is_unreachable)
    }

    fn note(&self, error: StreamError) {
        // Only the first counts.
        let _ = self.error.set(error);
    }

    /// Acknowledges what came, if that has to be done yet, and lets what comes next wait for more
    /// to acknowledge or for the next call, 40 ms at most.
    ///
    /// Where a peer sends and gets no answer on the same connection, the kernel would acknowledge
    /// each short message while it is read, which takes longer than reading it does.
    pub(crate) fn acknowledge(&self) {
        // As the kernel pleases: nothing depends on it. It forgets the second after each pause.
        let _ = set_tcp_quickack(&self.stream, true);
        let _ = set_tcp_quickack(&self.stream, false);
    }

    /// Our end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Ends what this end sends and receives; what was sent still goes out.
    pub fn shutdown(&self) {
        // It fails where there is no connection any more.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Sends no more; what was sent still goes out, and the peer then reads the end.
    pub(crate) fn end_sending(&self) {
        // As above.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    fn is_with_itself(&self) -> bool {
        let ends = (self.stream.local_addr(), self.stream.peer_addr());
        matches!(ends, (Ok(ours), Ok(theirs)) if ours == theirs)
    }

    /// Another handle of the same connection, so that one thread may send while another receives.
    pub fn try_clone(&self) -> io::Result<Self> {
        let (stream, error) = (self.stream.try_clone()?, Arc::clone(&self.error));
        Ok(OobStream { stream, peer: self.peer, error })
    }
}

impl AsFd for OobStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Stream for OobStream {
    fn peer_addr(&self) -> Option<SocketAddr> {
        Some(self.peer)
    }

    /// `ECONNREFUSED` and `ETIMEDOUT` may pass: connect anew. The first is also where nobody listened
    /// and the kernel has connected the socket to itself, from the port that it called.
    fn poll_connected(&mut self) -> Result<bool, StreamError> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::OUT)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(errno) => return Err(StreamError::Os(errno.raw_os_error())),
        }
        match self.stream.take_error().map_err(os)? {
            None if self.is_with_itself() => {
                // Closed, it leaves nothing behind: the port is free for who is to listen there.
                SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).map_err(os)?;
                Err(StreamError::Os(libc::ECONNREFUSED))
            }
            None => Ok(true),
            Some(error) => Err(os(error)),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        match self.stream.write(bytes) {
            Ok(sent) => Ok(sent),
            Err(error) if is_not_now(&error) => Ok(0),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(StreamError::Closed),
            Err(error) => Err(os(error)),
        }
    }

    fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
        match self.stream.read(buf) {
            Ok(0) if !buf.is_empty() => Err(StreamError::Closed),
            Ok(received) => Ok(received),
            Err(error) if is_not_now(&error) => Ok(0),
            Err(error) => Err(os(error)),
        }
    }
}

/// Non-blocking, closed on exec.
fn new_socket(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// No delays; and the connection fails [`SILENCE_MAX`] after the peer's host or the network to it is
/// gone.
pub(crate) fn tune(socket: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    socket.set_tcp_user_timeout(Some(SILENCE_MAX))
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Whether the kernel says so of a host that does not answer, or to which there is no way.
fn is_unreachable(error: &StreamError) -> bool {
    use libc::{EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ETIMEDOUT};
    let StreamError::Os(errno) = error else { return false };
    [ETIMEDOUT, EHOSTUNREACH, EHOSTDOWN, ENETUNREACH, ENETDOWN].contains(errno)
}

/// `accept(2)` hands on what went wrong with the connection that it would have returned.
fn is_about_one_peer(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EAGAIN
                | libc::EINTR
                | libc::ECONNABORTED
                | libc::EPROTO
                | libc::EPERM
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
                | libc::ENONET
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
        )
    )
}

pub(crate) fn os(error: io::Error) -> StreamError {
    // Every error here comes from a system call, but for those that std makes up for itself.
    StreamError::Os(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests;
