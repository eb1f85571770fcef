//! Unix sockets that carry file descriptors between processes of one user on one host.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, sendmsg, socket_with,
};

/// Interval between two attempts to connect to a full queue.
const RETRY_AFTER: Duration = Duration::from_millis(5);

/// Returns a listening socket and its name in the abstract namespace, which leaves no file behind.
pub(crate) fn listen(purpose: &str) -> io::Result<(UnixListener, String)> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("invar-{purpose}-{}-{number}", std::process::id());
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return Ok((listener, name));
            }
            // Another container may have a process with this number.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && number < u32::MAX => {}
            Err(error) => return Err(error),
        }
    }
}

/// Connects a non-blocking stream. If the listener's queue is full, the call fails with `WouldBlock`; a blocking
/// connect would wait for ever.
pub(crate) fn connect_at_once(addr: &SocketAddrUnix) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, addr)?;
    Ok(socket.into())
}

/// A non-blocking stream of messages that may carry file descriptors.
#[derive(Debug)]
pub(crate) struct FdStream {
    stream: UnixStream,
    /// The unsent bytes, and the descriptors that go with the first byte of each message.
    out: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
}

impl FdStream {
    /// Connects to a listener by its name. If the listener's queue is full, the call waits for room, at
    /// most `within`.
    pub(crate) fn connect(name: &str, within: Duration) -> io::Result<Self> {
        let addr = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        let start = Instant::now();
        loop {
            match connect_at_once(&addr) {
                Ok(stream) => return FdStream::new(stream),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if start.elapsed() < within => thread::sleep(RETRY_AFTER),
                Err(_) => {
                    let what = format!(
                        "its process has taken no caller in for {within:?}, and its queue is full"
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, what));
                }
            }
        }
    }

    /// Wraps a stream; fails if the peer is another user, because names in the abstract namespace have
    /// no permissions.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (theirs, ours) = (socket_peercred(&stream)?.uid, rustix::process::geteuid());
        if theirs != ours {
            let what = format!("the peer is of user {theirs}, not {ours}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(FdStream { stream, out: VecDeque::new() })
    }

    /// Receives available bytes, and a file descriptor if one comes with them. Returns `None` if nothing
    /// is available. The end of the stream is an `UnexpectedEof`.
    pub(crate) fn recv(&self, space: &mut [u8]) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = match recvmsg(&self.stream, &mut [IoSliceMut::new(space)], &mut control, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut fd = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                fd = fds.last().or(fd);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            let what = "more than one file descriptor at once, or none could be opened";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        match got.bytes {
            0 if !space.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            n => Ok(Some((n, fd))),
        }
    }

    /// Queues a message behind the unsent ones, and sends as much as fits.
    pub(crate) fn send(&mut self, bytes: Vec<u8>, fd: Option<OwnedFd>) -> io::Result<()> {
        self.out.push_back((bytes, fd));
        self.flush()
    }

    /// Sends as much as fits.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let Some((bytes, fd)) = self.out.front_mut() {
            let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut room);
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&fds));
            }
            let flags = SendFlags::NOSIGNAL;
            match sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(n) => {
                    *fd = None;
                    bytes.drain(..n);
                }
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            if bytes.is_empty() {
                self.out.pop_front();
            }
        }
        Ok(())
    }

    /// Whether everything is sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Returns the events to wait for; `room` says whether the caller has room to receive.
    pub(crate) fn interest(&self, room: bool) -> PollFlags {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, room);
        interest.set(PollFlags::OUT, !self.is_flushed());
        interest
    }
}

impl AsFd for FdStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Waits until one of `fds` is ready, at most `timeout` if there is one.
pub(crate) fn wait(fds: &mut [PollFd<'_>], timeout: impl Into<Option<Duration>>) -> io::Result<()> {
    let timeout = timeout.into().and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{bind, listen};

    use super::*;

    #[test]
    fn a_full_queue_of_callers_is_waited_for_no_longer_than_told() {
        let name = format!("invar-test-full-{}", std::process::id());
        let addr = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let socket = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let listener = socket(SocketFlags::CLOEXEC).unwrap();
        bind(&listener, &addr).unwrap();
        listen(&listener, 1).unwrap();
        let mut waiting = Vec::new();
        loop {
            let caller = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).unwrap();
            match connect(&caller, &addr) {
                Ok(()) => waiting.push(caller),
                Err(error) => break assert_eq!(error, Errno::AGAIN),
            }
        }
        let error = FdStream::connect(&name, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("for 20ms, and its queue is full"), "{error}");
        let taking = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            rustix::net::accept(&listener).map(|caller| (caller, listener))
        });
        FdStream::connect(&name, Duration::from_secs(60)).unwrap();
        taking.join().unwrap().unwrap();
    }
}
