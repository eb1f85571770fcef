//! The loss of a TCP connection that is made anew.

use core::fmt;

use crate::conn::StreamError;
use crate::conn::stage::Side;

/// A TCP connection could not be made anew for as long as the settings allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineError {
    /// The reason for which the connection was lost.
    pub error: StreamError,
    /// Milliseconds since this end saw the loss.
    pub lost_ms: u32,
    /// The side of this end. Only the connector calls again.
    pub side: Side,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LineError { error, lost_ms, side } = self;
        let seconds = f64::from(*lost_ms) / 1000.0;
        write!(f, "a TCP connection was lost ({error}), and ")?;
        match side {
            Side::Connector => write!(f, "no call reached the peer's host in {seconds:.1} s")?,
            Side::Acceptor => write!(f, "the peer has not called again in {seconds:.1} s")?,
        }
        f.write_str(
            ": its host is gone, or no network to it works; check the peer's host, and this end's \
             cable and addresses (INVAR_RECOVERY_TIMEOUT_MS)",
        )
    }
}
