//! Blocking calls with a deadline.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use invar_core::auth::{AuthError, Calling, Secret, Service, Session};
use invar_core::conn::{Stream, StreamError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{AuthListener, OobStream, os};
use crate::random::random;
use crate::unix::wait;

/// The sleep of a listener that has no room for the callers in its queue.
const FULL_PAUSE: Duration = Duration::from_millis(1);
/// The longest sleep of a call before it checks its deadline.
const TICK: Duration = Duration::from_millis(100);

/// Number of repetitions after which a host counts as silent. On a fast network they take 1.4 s.
const REPETITIONS: u8 = 3;

impl OobStream {
    /// Connects to `addr`, and waits at most until `deadline`.
    ///
    /// # Errors
    /// The kernel's error, or `ETIMEDOUT` at the deadline.
    pub fn connect_by(addr: SocketAddr, deadline: Instant) -> Result<Self, StreamError> {
        let mut stream = OobStream::connect(addr)?;
        while !stream.poll_connected()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StreamError::Os(libc::ETIMEDOUT));
            }
            stream.wait_for_room(left.min(TICK)).map_err(os)?;
        }
        Ok(stream)
    }

    /// Authenticates this end and the listener to each other. Returns `None` if this is not complete by
    /// `deadline`.
    ///
    /// # Errors
    /// The listener does not speak Invar's protocol, or does not know the secret.
    pub fn authenticate(
        &mut self,
        secret: Secret,
        service: Service,
        deadline: Instant,
    ) -> Result<Option<Session>, AuthError> {
        let mut calling = Calling::new(secret, service, random().map_err(os)?);
        loop {
            if let Some(session) = calling.poll(self)? {
                return Ok(Some(session));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.wait_for_bytes(left.min(TICK)).map_err(os)?;
        }
    }

    /// Waits until [`Stream::recv`] has bytes, at most `within`.
    pub fn wait_for_bytes(&self, within: Duration) -> io::Result<()> {
        wait(&mut [PollFd::new(self, PollFlags::IN)], within)
    }

    /// Waits until [`Stream::send`] accepts bytes, at most `within`.
    pub fn wait_for_room(&self, within: Duration) -> io::Result<()> {
        wait(&mut [PollFd::new(self, PollFlags::OUT)], within)
    }

    /// Whether the peer's host has not acknowledged bytes though the kernel has sent them again and again.
    pub(crate) fn is_silent(&self) -> bool {
        self.tcp_info().is_some_and(|[_, _, repetitions]| repetitions >= REPETITIONS)
    }

    /// Returns the number of the connection's state (`tcp_states.h`).
    pub(super) fn state(&self) -> Option<u8> {
        self.tcp_info().map(|[state, ..]| state)
    }

    /// Returns the first bytes of the kernel's `tcp_info`: the state, the congestion state, and the number of
    /// repetitions since the last acknowledge.
    fn tcp_info(&self) -> Option<[u8; 3]> {
        let (mut info, mut len) = ([0u8; 3], 3 as libc::socklen_t);
        let (level, name, value) = (libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast());
        let socket = self.stream.as_raw_fd();
        // SAFETY: `info` has room for the `len` bytes that the kernel may write.
        let got = unsafe { libc::getsockopt(socket, level, name, value, &raw mut len) };
        (got == 0).then_some(info)
    }

    /// Whether no byte that was sent is still on its way: the peer's host has acknowledged all of them, or the
    /// connection has ended.
    pub(crate) fn is_settled(&self) -> bool {
        if unacknowledged(self).is_none_or(|bytes| bytes == 0) {
            return true;
        }
        // The kernel keeps the number of bytes of a connection that was reset.
        let mut fds = [PollFd::new(self, PollFlags::empty())];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

impl AuthListener {
    /// Waits until [`AuthListener::poll`] may have work, at most `within`.
    pub fn wait(&self, within: Duration) -> io::Result<()> {
        if self.is_full() {
            // The callers in the kernel's queue would end the wait at once.
            thread::sleep(within.min(FULL_PAUSE));
            return Ok(());
        }
        wait(&mut [PollFd::new(self, PollFlags::IN)], within)
    }
}

/// Returns the number of bytes that were sent and that the peer's host has not acknowledged, if the kernel
/// knows (`SIOCOUTQ`, `tcp(7)`).
pub(super) fn unacknowledged(stream: &OobStream) -> Option<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: The call writes one integer, for which there is room.
    let result = unsafe { libc::ioctl(stream.stream.as_raw_fd(), libc::TIOCOUTQ as _, &mut bytes) };
    (result == 0).then(|| u32::try_from(bytes).ok())?
}
