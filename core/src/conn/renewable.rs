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

/// Time after which a loss is news. A peer that has died has refused the next call by then, and is an error alone.
const NEWS_AFTER_NS: u64 = 100_000_000;

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
    /// The stream was lost some time ago.
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
    /// Whether [`StreamNews::Lost`] has told of the loss.
    is_told: bool,
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
            self.loss.get_or_insert(Loss { error, since_ns: None, is_told: false });
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
        let Some(Loss { error, since_ns, is_told }) = &mut self.loss else {
            return Ok(StreamNews::None);
        };
        let lost_ns = now_ns.saturating_sub(*since_ns.get_or_insert(now_ns));
        let is_reset = error.is_reset() && self.side == Side::Acceptor;
        if lost_ns < if is_reset { RESET_NS.min(timeout_ns) } else { timeout_ns } {
            let is_news = lost_ns >= NEWS_AFTER_NS && !core::mem::replace(is_told, true);
            return Ok(if is_news { StreamNews::Lost(*error) } else { StreamNews::None });
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

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    /// A stream whose peer does not answer calls.
    struct Unanswered;

    impl Stream for Unanswered {
        fn peer_addr(&self) -> Option<SocketAddr> {
            None
        }

        fn poll_connected(&mut self) -> Result<bool, StreamError> {
            Ok(true)
        }

        fn send(&mut self, _: &[u8]) -> Result<usize, StreamError> {
            Ok(0)
        }

        fn recv(&mut self, _: &mut [u8]) -> Result<usize, StreamError> {
            Ok(0)
        }

        fn prepare_renewal(&mut self, _: Side, _: &Session, _: u16) -> bool {
            true
        }

        fn renew(&mut self) -> Result<bool, StreamError> {
            Ok(false)
        }
    }

    #[test]
    fn a_loss_is_told_once_and_not_before_a_dead_peer_has_refused_the_call() {
        let session = Session::UNKNOWN_PEER;
        let mut renewable = RenewableStream::new(Unanswered, Side::Connector, &session, Some(1));
        let lost = StreamError::Os(104);
        assert_eq!(renewable.lose(lost), Ok(false));
        let mut mend = |ms: u64| renewable.mend(ms * 1_000_000, false, 1_000_000_000);
        for ms in [5, 104] {
            assert_eq!(mend(ms), Ok(StreamNews::None));
        }
        assert_eq!(mend(105), Ok(StreamNews::Lost(lost)));
        assert_eq!(mend(1004), Ok(StreamNews::None));
        assert!(matches!(mend(1005), Err(Error::Line(_))));
    }
}
