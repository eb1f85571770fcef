//! The line: the stream beside the queue pairs, which is made anew where it is lost.
//!
//! The kernel gives a TCP connection up when the network is out for some time, though the peer lives. Then
//! the end that called calls again ([`Stream::renew`]), and both ends send the messages again that the
//! other may not have. The queue pairs need no line and go on meanwhile. Where the connection has several
//! rails, the peer answers at the address of each: the rail that is lost may be the one that carried the line.
//!
//! Whether the peer lives: a peer that closes its end, or dies, ends the stream in order
//! ([`StreamError::Closed`]), or its host refuses the next call. Both are errors at once.

use core::net::{IpAddr, SocketAddr};

use super::control::{Control, ControlReader, ControlWriter};
use crate::auth::Session;
use crate::conn::stage::Side;
use crate::conn::wire::QpInfo;
use crate::conn::{Stream, StreamError};
use crate::error::{Error, LineError};
use crate::nic::LinkLayer;

/// Time for a connector to call again after somebody has reset the connection. A connector that lives and
/// has a network learns of the reset at once.
const RESET_NS: u64 = 2_000_000_000;

/// The stream of a comm, with its messages.
pub(super) struct Line<S> {
    pub(super) stream: S,
    side: Side,
    /// Whether the stream can be made anew.
    is_renewable: bool,
    /// Whether this end calls the peer. Then the peer may have given up this stream for the new one.
    is_calling: bool,
    loss: Option<Loss>,
    /// The number of the message that was awaited when the line was looked at last, and the time since then.
    heard: (u64, u64),
    reader: ControlReader,
    writer: ControlWriter,
}

/// A change of a line.
pub(super) enum LineNews {
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
struct Loss {
    error: StreamError,
    /// The time at which the loss was seen.
    since_ns: Option<u64>,
}

impl<S: Stream> Line<S> {
    /// A line over the stream of the handshake. If `peer_port` is given, both ends make the stream anew.
    pub(super) fn new(
        mut stream: S,
        side: Side,
        session: &Session,
        peer_port: Option<u16>,
    ) -> Self {
        let is_renewable =
            peer_port.is_some_and(|port| stream.prepare_renewal(side, session, port));
        let (reader, writer) = (ControlReader::new(), ControlWriter::new());
        Line {
            stream,
            side,
            is_renewable,
            is_calling: false,
            loss: None,
            heard: (0, 0),
            reader,
            writer,
        }
    }

    /// Returns whether the peer's host has acknowledged all that was sent; see [`Stream::host_answers`]. A
    /// stream that is lost says nothing of the host: somebody on the way may drop TCP alone.
    pub(super) fn host_answers(&self) -> Option<bool> {
        if self.loss.is_some() { None } else { self.stream.host_answers() }
    }

    /// Sends a message, now or over the next stream. Returns `false` if there is no room, because the peer
    /// reads nothing.
    pub(super) fn send(&mut self, message: &Control) -> bool {
        let is_kept = self.writer.put(message, self.reader.next());
        self.flush();
        is_kept
    }

    /// The times since the peer was heard of last, and since the stream was lost, if it is.
    pub(super) fn silence_ns(&self, now_ns: u64) -> (u64, Option<u64>) {
        let lost_ns = self.loss.as_ref().map(|loss| loss.since_ns.unwrap_or(now_ns));
        let since = |at_ns: u64| now_ns.saturating_sub(at_ns);
        (since(self.heard.1), lost_ns.map(since))
    }

    /// Whether the stream is there, and the peer is not being called.
    pub(super) fn is_whole(&self) -> bool {
        self.loss.is_none() && !self.is_calling
    }

    /// Returns the port at which this end answers calls at the address of a rail; 0 if it does not. `info` is of
    /// this end's queue pairs on the rail.
    pub(super) fn answer_on(&mut self, info: &QpInfo) -> u16 {
        match address(info).filter(|_| self.is_renewable && self.side == Side::Acceptor) {
            Some(own) => self.stream.answer_at(own),
            None => 0,
        }
    }

    /// Lets this end call the peer at the address of a rail. `info` is of the peer's queue pairs on the rail, and
    /// `port` comes from [`answer_on`](Self::answer_on).
    pub(super) fn call_on(&mut self, info: &QpInfo, port: u16) {
        if let Some(peer) = address(info).filter(|_| port != 0 && self.side == Side::Connector) {
            self.stream.call_at(SocketAddr::new(peer, port));
        }
    }

    /// Makes the stream anew no more, and refuses the next call of the peer.
    pub(super) fn end(&mut self) {
        self.is_renewable = false;
        self.stream.end_renewal();
    }

    fn flush(&mut self) {
        if self.loss.is_none() {
            self.writer.flush(&mut self.stream);
        }
    }

    /// Returns the next message that has arrived completely. A stream that is lost has none. `qps` is the
    /// number of the peer's queue pairs.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] if the peer has closed its end. Another error for bytes that are no message.
    pub(super) fn recv(&mut self, qps: u16, budget: &mut u32) -> Result<Option<Control>, Error> {
        loop {
            self.flush();
            if self.loss.is_some() {
                return Ok(None);
            }
            match self.reader.recv(&mut self.stream, qps, budget) {
                Ok(Some(message)) => {
                    self.writer.acknowledged(self.reader.heard())?;
                    return Ok(Some(message));
                }
                Err(Error::PeerClosed(error)) if self.is_renewable => self.lose(error)?,
                ended => return ended,
            }
        }
    }

    /// Handles the end of the stream.
    fn lose(&mut self, error: StreamError) -> Result<(), Error> {
        let is_in_order = error == StreamError::Closed && !self.is_calling;
        if is_in_order {
            // A connector closes its old stream after it has called again.
            let is_new = self.side == Side::Acceptor && self.stream.renew() == Ok(true);
            if !is_new {
                return Err(Error::PeerClosed(error));
            }
            self.renewed();
        } else {
            self.loss = Some(Loss { error, since_ns: None });
        }
        Ok(())
    }

    /// Makes the stream anew if it is lost, or if `is_urgent`: the peer should have answered. The line may be
    /// lost for `timeout_ns`.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] if the peer lives no more or has reset the stream, [`Error::Line`] if the time is
    /// over.
    pub(super) fn mend(
        &mut self,
        now_ns: u64,
        is_urgent: bool,
        timeout_ns: u64,
    ) -> Result<LineNews, Error> {
        if self.heard.0 != self.reader.next() || self.heard.1 == 0 {
            self.heard = (self.reader.next(), now_ns);
        }
        let is_due = self.side == Side::Acceptor || self.loss.is_some() || self.is_calling;
        if !self.is_renewable || !(is_due || is_urgent) {
            return Ok(LineNews::None);
        }
        match self.stream.renew() {
            Ok(true) => {
                self.heard.1 = now_ns;
                let was_lost = self.loss.is_some();
                self.renewed();
                return Ok(LineNews::Renewed { was_lost });
            }
            Ok(false) => self.is_calling = self.side == Side::Connector,
            Err(error) => return Err(Error::PeerClosed(error)),
        }
        let Some(Loss { error, since_ns }) = &mut self.loss else {
            return Ok(LineNews::None);
        };
        let Some(since_ns) = *since_ns else {
            *since_ns = Some(now_ns);
            return Ok(LineNews::Lost(*error));
        };
        let lost_ns = now_ns.saturating_sub(since_ns);
        let is_reset = error.is_reset() && self.side == Side::Acceptor;
        if lost_ns < if is_reset { RESET_NS.min(timeout_ns) } else { timeout_ns } {
            return Ok(LineNews::None);
        }
        if is_reset {
            return Err(Error::PeerClosed(*error));
        }
        let lost_ms = (lost_ns / 1_000_000) as u32;
        Err(Error::Line(LineError { error: *error, lost_ms, side: self.side }))
    }

    /// Goes on over a new stream.
    fn renewed(&mut self) {
        self.reader.renewed();
        self.writer.renewed();
        (self.is_calling, self.loss) = (false, None);
        self.flush();
    }
}

/// Returns the IP address of a RoCEv2 port. One that holds within its link alone is no address to call.
fn address(info: &QpInfo) -> Option<IpAddr> {
    let ip = info.gid.ip();
    let is_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let is_called = !is_local && !ip.is_unspecified() && !ip.is_multicast();
    (info.link_layer == LinkLayer::Ethernet && is_called).then_some(ip)
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    /// A stream that somebody on the way has cut, to a host that acknowledges nothing more.
    struct Cut;

    impl Stream for Cut {
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
            const ETIMEDOUT: i32 = 110;
            Err(StreamError::Os(ETIMEDOUT))
        }

        fn prepare_renewal(&mut self, _: Side, _: &Session, _: u16) -> bool {
            true
        }

        fn host_answers(&self) -> Option<bool> {
            Some(false)
        }
    }

    #[test]
    fn a_line_that_is_lost_says_nothing_of_the_peers_host() {
        let session = Session::UNKNOWN_PEER;
        let mut line = Line::new(Cut, Side::Connector, &session, Some(1));
        assert_eq!(line.host_answers(), Some(false));
        assert!(matches!(line.recv(1, &mut 8), Ok(None)));
        assert_eq!(line.host_answers(), None);
    }
}
