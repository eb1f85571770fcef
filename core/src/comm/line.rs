//! The line: the stream beside the queue pairs, which is made anew where it is lost
//! ([`RenewableStream`]).
//!
//! Both ends then send the messages again that the other may not have. The queue pairs need no line and go on
//! meanwhile. Where the connection has several rails, the peer answers at the address of each: the rail that is
//! lost may be the one that carried the line.

use core::net::{IpAddr, SocketAddr};

use super::control::{Control, ControlReader, ControlWriter};
use crate::auth::Session;
use crate::conn::stage::Side;
use crate::conn::wire::QpInfo;
use crate::conn::{RenewableStream, Stream, StreamNews};
use crate::error::Error;
use crate::nic::LinkLayer;

/// The stream of a comm, with its messages.
pub(super) struct Line<S> {
    renewable: RenewableStream<S>,
    /// The number of the message that was awaited when the line was looked at last, and the time since then.
    heard: (u64, u64),
    reader: ControlReader,
    writer: ControlWriter,
}

impl<S: Stream> Line<S> {
    /// A line over the stream of the handshake. If `peer_port` is given, both ends make the stream anew.
    pub(super) fn new(stream: S, side: Side, session: &Session, peer_port: Option<u16>) -> Self {
        Line {
            renewable: RenewableStream::new(stream, side, session, peer_port),
            heard: (0, 0),
            reader: ControlReader::new(),
            writer: ControlWriter::new(),
        }
    }

    pub(super) fn stream(&self) -> &S {
        &self.renewable.stream
    }

    pub(super) fn stream_mut(&mut self) -> &mut S {
        &mut self.renewable.stream
    }

    pub(super) fn into_stream(self) -> S {
        self.renewable.stream
    }

    /// Returns whether the peer's host has acknowledged all that was sent; see [`Stream::host_answers`]. A
    /// stream that is lost says nothing of the host: somebody on the way may drop TCP alone.
    pub(super) fn host_answers(&self) -> Option<bool> {
        if self.renewable.is_lost() { None } else { self.stream().host_answers() }
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
        (now_ns.saturating_sub(self.heard.1), self.renewable.lost_ns(now_ns))
    }

    /// Whether the stream is there, and the peer is not being called.
    pub(super) fn is_whole(&self) -> bool {
        self.renewable.is_whole()
    }

    /// Returns the port at which this end answers calls at the address of a rail; 0 if it does not. `info` is of
    /// this end's queue pairs on the rail.
    pub(super) fn answer_on(&mut self, info: &QpInfo) -> u16 {
        let is_answering = self.renewable.is_renewable() && self.renewable.side() == Side::Acceptor;
        match address(info).filter(|_| is_answering) {
            Some(own) => self.stream_mut().answer_at(own),
            None => 0,
        }
    }

    /// Lets this end call the peer at the address of a rail. `info` is of the peer's queue pairs on the rail, and
    /// `port` comes from [`answer_on`](Self::answer_on).
    pub(super) fn call_on(&mut self, info: &QpInfo, port: u16) {
        let is_calling = port != 0 && self.renewable.side() == Side::Connector;
        if let Some(peer) = address(info).filter(|_| is_calling) {
            self.stream_mut().call_at(SocketAddr::new(peer, port));
        }
    }

    /// Makes the stream anew no more, and refuses the next call of the peer.
    pub(super) fn end(&mut self) {
        self.renewable.end();
    }

    fn flush(&mut self) {
        if !self.renewable.is_lost() {
            self.writer.flush(&mut self.renewable.stream);
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
            if self.renewable.is_lost() {
                return Ok(None);
            }
            match self.reader.recv(&mut self.renewable.stream, qps, budget) {
                Ok(Some(message)) => {
                    self.writer.acknowledged(self.reader.heard())?;
                    return Ok(Some(message));
                }
                Err(Error::PeerClosed(error)) => {
                    if self.renewable.lose(error)? {
                        self.renewed();
                    }
                }
                ended => return ended,
            }
        }
    }

    /// Makes the stream anew; see [`RenewableStream::mend`].
    pub(super) fn mend(
        &mut self,
        now_ns: u64,
        is_urgent: bool,
        timeout_ns: u64,
    ) -> Result<StreamNews, Error> {
        if self.heard.0 != self.reader.next() || self.heard.1 == 0 {
            self.heard = (self.reader.next(), now_ns);
        }
        let news = self.renewable.mend(now_ns, is_urgent, timeout_ns)?;
        if let StreamNews::Renewed { .. } = news {
            self.heard.1 = now_ns;
            self.renewed();
        }
        Ok(news)
    }

    /// Goes on over a new stream.
    fn renewed(&mut self) {
        self.reader.renewed();
        self.writer.renewed();
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
    use crate::conn::StreamError;

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
