//! The out-of-band byte stream of a connection: TCP on hosts.

use core::ffi::c_int;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

use super::stage::Side;
use crate::auth::Session;

/// A connected, or connecting, byte stream that never blocks.
pub trait Stream {
    /// The peer's address, for messages; `None` if it is unknown.
    fn peer_addr(&self) -> Option<SocketAddr>;
    /// Returns whether the connection is up.
    fn poll_connected(&mut self) -> Result<bool, StreamError>;
    /// Sends as many bytes as fit now, and returns their number; 0 if none fit.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError>;
    /// Receives the bytes that have arrived, and returns their number; 0 if none have. At the end of
    /// the stream, the error is [`StreamError::Closed`].
    fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError>;

    /// The descriptor that is readable when there are bytes to receive, if a host can wait for it.
    fn descriptor(&self) -> Option<c_int> {
        None
    }

    /// The port at which this end answers a peer that makes the connection anew; 0 if it never answers.
    fn renewal_port(&self) -> u16 {
        0
    }

    /// Prepares for the loss of this connection. `peer_port` is the [`Stream::renewal_port`] of the peer,
    /// at which a connector calls. Returns whether [`Stream::renew`] may succeed.
    fn prepare_renewal(&mut self, _side: Side, _session: &Session, _peer_port: u16) -> bool {
        false
    }

    /// Lets the peer of an acceptor make the connection anew at another address of this host too. Returns the
    /// port there; 0 if this end does not answer there.
    fn answer_at(&mut self, _own: IpAddr) -> u16 {
        0
    }

    /// Lets a connector make the connection anew at another address of its peer too.
    fn call_at(&mut self, _peer: SocketAddr) {}

    /// Makes the connection anew, as far as possible without waiting. The connector calls, and the
    /// acceptor takes the peer's call if there is one. Returns whether a new connection has replaced this
    /// one. A connector that has begun to call goes on until there is an answer.
    ///
    /// # Errors
    /// [`StreamError::Closed`] if the peer's end lives no more.
    fn renew(&mut self) -> Result<bool, StreamError> {
        Err(StreamError::Closed)
    }

    /// Refuses the peer's next call, because this end works no more.
    fn end_renewal(&mut self) {}

    /// Returns whether the peer's host has acknowledged all bytes that were sent, if that is known. The
    /// host may do so although the peer's process reads nothing.
    fn host_answers(&self) -> Option<bool> {
        None
    }

    /// Returns whether the peer's host answers the calls of [`renew`](Self::renew), if that is known. The host
    /// may do so although the peer's process does not.
    fn host_answers_calls(&self) -> Option<bool> {
        None
    }
}

/// A stream for which an end waits, until the connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedStream<'a, S> {
    /// The end waits for bytes to receive.
    Bytes(&'a S),
    /// The end waits for the connection to be up, or for room to send.
    Room(&'a S),
}

/// The reason why a stream is no longer usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The peer closed its end.
    Closed,
    /// The system returned this error number.
    Os(i32),
}

impl StreamError {
    /// Whether the peer's host, or somebody on the way, has ended the connection.
    pub(crate) fn is_reset(self) -> bool {
        const EPIPE: i32 = 32;
        const ECONNRESET: i32 = 104;
        matches!(self, StreamError::Os(EPIPE | ECONNRESET))
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::Closed => f.write_str("the peer closed the connection"),
            StreamError::Os(errno) => match name(*errno) {
                Some(name) => write!(f, "{name} (errno {errno})"),
                None => write!(f, "errno {errno}"),
            },
        }
    }
}

impl core::error::Error for StreamError {}

/// Names of common errors, by Linux's numbers.
const fn name(errno: i32) -> Option<&'static str> {
    Some(match errno {
        32 => "broken pipe",
        101 => "network unreachable",
        103 => "connection aborted",
        104 => "connection reset by the peer",
        110 => "connection timed out",
        111 => "connection refused",
        112 => "host is down",
        113 => "no route to host",
        _ => return None,
    })
}
