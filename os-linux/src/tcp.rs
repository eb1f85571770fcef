//! The out-of-band channel: the TCP connection on which the two ends of a comm agree.
//!
//! No call blocks. A stream without bytes or room returns 0, and a listener without a caller returns
//! `None`. The polling caller enforces deadlines.

mod callers;
mod congestion;
mod reach;
mod renewal;
mod retry;
mod silence;
mod vectored;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use invar_core::auth::Session;
use invar_core::conn::stage::Side;
use invar_core::conn::{Stream, StreamError};
use invar_core::param::PortRange;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_tcp_quickack;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::fork::NotInherited;
use crate::memory::{Gather, Scatter};
use crate::ports::bind_in_range;
use renewal::{Door, Renewal};
use retry::Retry;

pub(crate) use callers::is_out_of_files;
pub use callers::{AUTH_WITHIN_NS, AuthListener, Proof, TurnedAway, WhyNot};
pub use congestion::{Congestion, CongestionRefused};
pub use renewal::attend_renewals;
pub use retry::DataSettings;
pub(crate) use retry::may_pass;
pub use silence::SILENCE_MAX;

/// Length of the accept queue; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 16_384;

/// A TCP listener for peers.
#[derive(Debug)]
pub struct OobListener(NotInherited<TcpListener>);

impl OobListener {
    /// Listens at `addr`; if `addr` has port 0, listens at the first free port of `ports`.
    pub fn bind(addr: SocketAddr, ports: PortRange) -> io::Result<Self> {
        bind_in_range(addr, ports, "INVAR_PORT_RANGE", Self::bind_at)
    }

    fn bind_at(addr: SocketAddr) -> io::Result<Self> {
        let socket = new_socket(addr)?;
        if addr.port() != 0 {
            // A chosen port is available again right after a restart.
            socket.set_reuse_address(true)?;
        }
        if addr.is_ipv6() && addr.ip().is_unspecified() {
            // All addresses means those of IPv4 too, whatever `net.ipv6.bindv6only` says.
            socket.set_only_v6(false)?;
        }
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        Ok(OobListener(NotInherited::new(socket.into())))
    }

    /// Returns the address on which the listener listens, with its port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Returns the next connected peer, or `None` if no peer has connected yet.
    ///
    /// An error concerns this host (`EMFILE`, `ENOMEM`). A peer that gave up meanwhile is no error.
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

/// A connection with a peer. Dropping it closes the connection.
#[derive(Debug)]
pub struct OobStream {
    stream: Arc<NotInherited<TcpStream>>,
    /// Tells this connection from others, though the kernel gives descriptors again.
    id: u64,
    /// Address of the peer, stored because the kernel knows it only while the connection exists.
    peer: SocketAddr,
    /// The first error of the connection, shared because the kernel reports it once, to one handle only.
    error: Arc<OnceLock<StreamError>>,
    /// Time after which this end gives up a silent host.
    silence: Duration,
    /// The listener at which the peer may call again, and the ports for more of them.
    door: Option<(Arc<Door>, PortRange)>,
    renewal: Option<Renewal>,
    /// The calls of a connection that is not up yet, if they are repeated.
    retry: Option<Box<Retry>>,
}

impl OobStream {
    /// Starts to connect to `addr`. [`poll_connected`](Stream::poll_connected) reports the progress.
    pub fn connect(addr: SocketAddr) -> Result<Self, StreamError> {
        let (stream, failed) = Self::call(addr)?;
        failed.map_or(Ok(stream), Err)
    }

    /// Calls `addr` on a new socket. Returns the stream, and the call's error if it failed at once.
    fn call(addr: SocketAddr) -> Result<(Self, Option<StreamError>), StreamError> {
        let socket = new_socket(addr).map_err(os)?;
        tune(&socket).map_err(os)?;
        let failed = match socket.connect(&addr.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Some(os(error)),
            _ => None,
        };
        Ok((OobStream::new(socket.into(), addr), failed))
    }

    fn new(stream: TcpStream, peer: SocketAddr) -> Self {
        let (error, silence) = (Arc::default(), SILENCE_MAX);
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(NotInherited::new(stream));
        OobStream { stream, id, peer, error, silence, door: None, renewal: None, retry: None }
    }

    /// Checks whether the call under way is answered. `ECONNREFUSED` is also the answer if nobody listened and the
    /// kernel connected the socket to itself, from the port that it called.
    fn poll_call(&mut self) -> Result<bool, StreamError> {
        let mut fds = [PollFd::new(&*self.stream, PollFlags::OUT)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(errno) => return Err(StreamError::Os(errno.raw_os_error())),
        }
        match self.stream.take_error().map_err(os)? {
            None if self.is_with_itself() => {
                // The port is to be free for the expected listener.
                self.leave_nothing_behind().map_err(os)?;
                Err(StreamError::Os(libc::ECONNREFUSED))
            }
            None => Ok(true),
            Some(error) => Err(os(error)),
        }
    }

    /// Lets the peer make this connection anew. It calls a listener of this process at the address of this
    /// end, on a port of `ports`. Without a free port the connection is not made anew.
    pub fn answer_renewals(&mut self, ports: PortRange) {
        let local = self.stream.local_addr();
        let door = local.and_then(|local| Door::of_process(local, &self.stream, ports));
        match door {
            Ok(door) => self.door = door.map(|door| (door, ports)),
            Err(error) => log::warn!("a TCP connection that is lost cannot be made anew: {error}"),
        }
    }

    /// Gives up a peer whose host is silent for `silence`, or that does not read for so long once the buffers
    /// are full. A new connection does so after [`SILENCE_MAX`].
    pub fn bear_silence(&mut self, silence: Duration) -> io::Result<()> {
        self.silence = silence;
        self.bound_silence()
    }

    /// Bounds silence again after [`wait_for_reader`](Self::wait_for_reader).
    pub(crate) fn bound_silence(&self) -> io::Result<()> {
        silence::bound(&*self.stream, self.silence)
    }

    /// Allows a peer any time to read, as long as its host answers. A host that vanishes during a transfer is
    /// then noticed by another connection, which has nothing to send.
    pub(crate) fn wait_for_reader(&self) -> io::Result<()> {
        silence::bound_idle(&*self.stream, self.silence)
    }

    /// Returns the reason why the peer's host is unreachable, if the kernel knows. The call reads
    /// nothing.
    pub(crate) fn unreachable(&self) -> Option<StreamError> {
        self.failure().filter(is_unreachable)
    }

    /// Returns the error that has ended the connection, if there is one. The call reads nothing.
    pub(crate) fn failure(&self) -> Option<StreamError> {
        let mut fds = [PollFd::new(&*self.stream, PollFlags::empty())];
        if matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1)) {
            let error = self.stream.take_error().ok().flatten().map(os);
            error.inspect(|error| self.note(*error));
        }
        self.error.get().copied()
    }

    fn note(&self, error: StreamError) {
        // Only the first error counts.
        let _ = self.error.set(error);
    }

    /// Acknowledges received data, if the acknowledge is still due. The acknowledge of later data waits
    /// for more data or for the next call, at most 40 ms.
    ///
    /// If a peer sends and gets no answer on the same connection, the kernel would acknowledge each
    /// short message during its read. That takes longer than the read itself.
    pub(crate) fn acknowledge(&self) {
        // Both calls are only hints. After each pause in the traffic the kernel forgets the second one.
        let _ = set_tcp_quickack(&*self.stream, true);
        let _ = set_tcp_quickack(&*self.stream, false);
    }

    /// Returns the address of our end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Ends sending and receiving; data already sent still leaves.
    pub fn shutdown(&self) {
        // The call fails only if the connection no longer exists.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Ends sending; data already sent still leaves, and the peer then reads the end of the stream.
    pub(crate) fn end_sending(&self) {
        // The call fails only if the connection no longer exists.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Copies the bytes that are there to `buf`, and returns their number. The bytes stay.
    pub(crate) fn peek(&self, buf: &mut [u8]) -> usize {
        match self.stream.peek(buf) {
            Ok(there) => there,
            Err(error) => {
                if !is_not_now(&error) {
                    // The kernel does not report it again.
                    self.note(os(error));
                }
                0
            }
        }
    }

    /// Lets the close of this handle reset the connection: nothing that was sent arrives later, and the port is
    /// free at once.
    fn leave_nothing_behind(&self) -> io::Result<()> {
        SockRef::from(&*self.stream).set_linger(Some(Duration::ZERO))
    }

    /// Resets the connection, whoever else has a handle of it. The peer learns of it at once, if the network works.
    pub(crate) fn reset(&self) {
        // This fails only if the connection no longer exists.
        let _ = rustix::net::connect_unspec(&*self.stream);
    }

    fn is_with_itself(&self) -> bool {
        let ends = (self.stream.local_addr(), self.stream.peer_addr());
        matches!(ends, (Ok(ours), Ok(theirs)) if ours == theirs)
    }

    /// Returns another handle of the connection with the same descriptor, which is closed after the last of them.
    pub(crate) fn share(&self) -> Self {
        let (stream, error) = (Arc::clone(&self.stream), Arc::clone(&self.error));
        let OobStream { id, peer, silence, .. } = *self;
        OobStream { stream, id, peer, error, silence, door: None, renewal: None, retry: None }
    }

    /// Returns another handle of the connection, so that one thread can send while another receives.
    pub fn try_clone(&self) -> io::Result<Self> {
        let new = OobStream::new(self.stream.try_clone()?, self.peer);
        let (error, door) = (Arc::clone(&self.error), self.door.clone());
        Ok(OobStream { error, silence: self.silence, door, ..new })
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

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.stream.as_raw_fd())
    }

    fn poll_connected(&mut self) -> Result<bool, StreamError> {
        let Some(mut retry) = self.retry.take() else { return self.poll_call() };
        let is_up = retry.poll(self)?;
        self.retry = (!is_up).then_some(retry);
        Ok(is_up)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        self.send_gather(&[Gather::bytes(bytes)])
    }

    fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.recv_scatter(&mut [Scatter::bytes(buf)])
    }

    fn renewal_port(&self) -> u16 {
        self.door.as_ref().map_or(0, |(door, _)| door.port())
    }

    fn prepare_renewal(&mut self, side: Side, session: &Session, peer_port: u16) -> bool {
        self.renewal = Renewal::new(self, side, session, peer_port);
        self.renewal.is_some()
    }

    fn answer_at(&mut self, own: IpAddr) -> u16 {
        match &mut self.renewal {
            Some(Renewal::Answer(answers)) => answers.answer_at(own, &self.stream),
            _ => 0,
        }
    }

    fn call_at(&mut self, peer: SocketAddr) {
        if let Some(Renewal::Call(caller)) = &mut self.renewal {
            caller.call_at(peer);
        }
    }

    fn renew(&mut self) -> Result<bool, StreamError> {
        let Some(renewal) = &mut self.renewal else { return Err(StreamError::Closed) };
        let Some(new) = renewal.poll()? else { return Ok(false) };
        let OobStream { stream, id, peer, error, .. } = new;
        (self.stream, self.id, self.peer, self.error) = (stream, id, peer, error);
        Ok(true)
    }

    fn end_renewal(&mut self) {
        self.renewal = None;
    }

    fn host_answers(&self) -> Option<bool> {
        reach::unacknowledged(self).map(|bytes| bytes == 0)
    }

    fn host_answers_calls(&self) -> Option<bool> {
        match &self.renewal {
            Some(Renewal::Call(caller)) => caller.host_answers(),
            _ => None,
        }
    }
}

/// Makes a non-blocking socket that closes on exec.
fn new_socket(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Disables delays. The connection fails [`SILENCE_MAX`] after the peer's host or the network to it is
/// gone.
pub(crate) fn tune(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_tcp_nodelay(true)?;
    silence::bound(socket, SILENCE_MAX)
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Whether the error means that a host does not answer or has no route.
pub(crate) fn is_unreachable(error: &StreamError) -> bool {
    use libc::{EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ETIMEDOUT};
    let StreamError::Os(errno) = error else { return false };
    [ETIMEDOUT, EHOSTUNREACH, EHOSTDOWN, ENETUNREACH, ENETDOWN].contains(errno)
}

/// Whether the error concerns one connection: `accept(2)` also reports errors of the connection that it
/// would have returned.
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
    // Every error here comes from a system call, except for those that std creates itself.
    StreamError::Os(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests;
