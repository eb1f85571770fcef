//! A stream that is made anew where it is lost.
//!
//! The kernel gives a TCP connection up when the network is out for some time, though the peer lives. Then
//! the end that called calls again ([`Stream::renew`]). Whoever uses the stream sends again what the other may
//! not have.
//!
//! Whether the peer lives: a peer that closes its end, or dies, ends the stream in order
//! ([`StreamError::Closed`]), or its host refuses the next call. Both are errors at once.

use super::stage::Side;
use super::{Stream, StreamError};
use crate::auth::Session;
use crate::error::{Error, LineError};

/// Time for a connector to call again after somebody has reset the connection. A connector that lives and
/// has a network learns of the reset at once.
const RESET_NS: u64 = 2_000_000_000;

/// A stream, and its loss.
#[derive(Debug)]
pub(crate) struct RenewableStream<S> {
    pub(crate) stream: S,
    side: Side,
    /// Whether the stream can be made anew.
    is_renewable: bool,
    /// Whether this end calls the peer. Then the peer may have given up this stream for the new one.
    is_calling: bool,
    loss: Option<Loss>,
}

/// A change of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamNews {
    None,
    /// The stream is lost.
    Lost(StreamError),
    /// The stream was made anew.
    Renewed {
        /// Whether the old one was lost.
        was_lost: bool,
    },
}

/// The loss of a stream.
#[derive(Debug)]
struct Loss {
    error: StreamError,
    /// The time at which the loss was seen.
    since_ns: Option<u64>,
}

impl<S: Stream> RenewableStream<S> {
    /// Takes the stream of the handshake. If `peer_port` is given, both ends make the stream anew.
    pub(crate) fn new(
        mut stream: S,
        side: Side,
        session: &Session,
        peer_port: Option<u16>,
    ) -> Self {
        let is_renewable =
            peer_port.is_some_and(|port| stream.prepare_renewal(side, session, port));
        RenewableStream { stream, side, is_renewable, is_calling: false, loss: None }
    }

    pub(crate) fn side(&self) -> Side {
        self.side
    }

    pub(crate) fn is_renewable(&self) -> bool {
        self.is_renewable
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.loss.is_some()
    }

    /// Whether the stream is there, and the peer is not being called.
    pub(crate) fn is_whole(&self) -> bool {
        self.loss.is_none() && !self.is_calling
    }

    /// The time since the stream was lost, if it is.
    pub(crate) fn lost_ns(&self, now_ns: u64) -> Option<u64> {
        let loss = self.loss.as_ref()?;
        Some(now_ns.saturating_sub(loss.since_ns.unwrap_or(now_ns)))
    }

    /// Makes the stream anew no more, and refuses the next call of the peer.
    pub(crate) fn end(&mut self) {
        self.is_renewable = false;
        self.stream.end_renewal();
    }

    /// Handles the error that ended the stream. Returns whether a new stream has replaced it already.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] if the peer has closed its end, or if the stream is not made anew.
    pub(crate) fn lose(&mut self, error: StreamError) -> Result<bool, Error> {
        if !self.is_renewable {
            return Err(Error::PeerClosed(error));
        }
        let is_in_order = error == StreamError::Closed && !self.is_calling;
        if !is_in_order {
            self.loss.get_or_insert(Loss { error, since_ns: None });
            return Ok(false);
        }
        // A connector closes its old stream after it has called again.
        if self.side == Side::Connector || self.stream.renew() != Ok(true) {
            return Err(Error::PeerClosed(error));
        }
        self.renewed();
        Ok(true)
    }

    /// Makes the stream anew if it is lost, or if `is_urgent`: the peer should have answered. The stream may be
    /// lost for `timeout_ns`.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] if the peer lives no more or has reset the stream, [`Error::Line`] if the time is
    /// over.
    pub(crate) fn mend(
        &mut self,
        now_ns: u64,
        is_urgent: bool,
        timeout_ns: u64,
    ) -> Result<StreamNews, Error> {
        let is_due = self.side == Side::Acceptor || !self.is_whole();
        if !self.is_renewable || !(is_due || is_urgent) {
            return Ok(StreamNews::None);
        }
        match self.stream.renew() {
            Ok(true) => {
                let was_lost = self.loss.is_some();
                self.renewed();
                return Ok(StreamNews::Renewed { was_lost });
            }
            Ok(false) => self.is_calling = self.side == Side::Connector,
            Err(error) => return Err(Error::PeerClosed(error)),
        }
        let Some(Loss { error, since_ns }) = &mut self.loss else {
            return Ok(StreamNews::None);
        };
        let Some(since_ns) = *since_ns else {
            *since_ns = Some(now_ns);
            return Ok(StreamNews::Lost(*error));
        };
        let lost_ns = now_ns.saturating_sub(since_ns);
        let is_reset = error.is_reset() && self.side == Side::Acceptor;
        if lost_ns < if is_reset { RESET_NS.min(timeout_ns) } else { timeout_ns } {
            return Ok(StreamNews::None);
        }
        if is_reset {
            return Err(Error::PeerClosed(*error));
        }
        let error = *error;
        Err(self.out_of_time(error, lost_ns))
    }

    /// The error of a stream that was lost for as long as it may be.
    pub(crate) fn out_of_time(&self, error: StreamError, lost_ns: u64) -> Error {
        let lost_ms = (lost_ns / 1_000_000) as u32;
        Error::Line(LineError { error, lost_ms, side: self.side })
    }

    fn renewed(&mut self) {
        (self.is_calling, self.loss) = (false, None);
    }
}
