//! The out-of-band byte stream of a connection: TCP on hosts.

use core::fmt;
use core::net::SocketAddr;

/// A connected, or connecting, byte stream that never blocks.
pub trait Stream {
    /// The peer's address, for messages; `None` where it is not known.
    fn peer_addr(&self) -> Option<SocketAddr>;
    /// Whether the connection is up yet.
    fn poll_connected(&mut self) -> Result<bool, StreamError>;
    /// Sends what fits now and says how much; 0 where nothing fits.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError>;
    /// Receives what is there and says how much; 0 where nothing is there. The end of the stream
    /// is [`StreamError::Closed`].
    fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError>;
}

/// Why a stream is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The peer closed its end.
    Closed,
    /// The system's error number.
    Os(i32),
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

/// The errors that people meet, by Linux's numbers.
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
