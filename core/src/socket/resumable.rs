//! A socket that goes on over a new TCP connection where the old one is lost.
//!
//! The bytes that were under way are lost with the old connection. So each end first tells over the new one how
//! far it has come ([`ResumeFrame`]), and the other end writes the rest again. Each socket goes on by itself.

use super::wire::{FRAME_BYTES, ResumeFrame};
use crate::auth::Session;
use crate::conn::stage::Side;
use crate::conn::{RenewableStream, Stream, StreamError, StreamNews};
use crate::error::Error;

/// `ETIMEDOUT`: the peer's host was silent for too long.
const TIMED_OUT: StreamError = StreamError::Os(110);
/// `EPIPE`: the connection takes no more bytes.
const BROKEN_PIPE: StreamError = StreamError::Os(32);

/// Time limits of a lost socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeTimes {
    /// The longest time without a connection, from the last sign of the peer's host on.
    pub within_ns: u64,
    /// The time for which the kernel bears a silent host before it gives the socket up.
    pub silence_ns: u64,
}

/// A socket of an open connection.
#[derive(Debug)]
pub struct ResumableSocket<S> {
    renewable: RenewableStream<S>,
    session: Session,
    peer_port: Option<u16>,
    /// The first error since both ends used this socket last, and the time of that error.
    lost: Option<(StreamError, Option<u64>)>,
    exchange: Option<Exchange>,
    /// Whether the connection is a new one over which the ends have not agreed yet.
    is_fresh: bool,
    resumed: u64,
}

/// A change of a socket, as [`ResumableSocket::poll`] reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketNews {
    /// Nothing happened.
    None,
    /// The connection is lost for this reason. The socket moves no bytes until it is resumed.
    Lost(StreamError),
    /// There is a new connection. Call [`ResumableSocket::resume`] with what has come over the old one.
    Renewed,
    /// Both ends go on. The number says how far the peer has come, as in the peer's call of
    /// [`ResumableSocket::resume`].
    Resumed(u64),
}

/// The exchange of resume frames over a new connection.
#[derive(Debug)]
struct Exchange {
    /// This end's frame; `None` before [`ResumableSocket::resume`].
    ours: Option<[u8; FRAME_BYTES]>,
    sent: usize,
    theirs: [u8; FRAME_BYTES],
    got: usize,
}

impl<S: Stream> ResumableSocket<S> {
    /// Takes a connected socket, and the session in which both ends have proved themselves. With the port at
    /// which the acceptor answers, both ends resume.
    pub fn new(stream: S, side: Side, session: Session, peer_port: Option<u16>) -> Self {
        let renewable = RenewableStream::new(stream, side, &session, peer_port);
        let (lost, exchange) = (None, None);
        ResumableSocket {
            renewable,
            session,
            peer_port,
            lost,
            exchange,
            is_fresh: false,
            resumed: 0,
        }
    }

    /// Makes a socket of another handle of the connection, for the other direction. Once lost, each direction has a
    /// connection of its own.
    pub fn way_back(&self, other: S) -> Self {
        Self::new(other, self.renewable.side(), self.session.way_back(), self.peer_port)
    }

    /// The connection: the old one as long as a lost socket has no new one.
    pub fn stream(&self) -> &S {
        &self.renewable.stream
    }

    /// The connection, to move bytes over it.
    pub fn stream_mut(&mut self) -> &mut S {
        &mut self.renewable.stream
    }

    /// Whether the socket moves bytes.
    pub fn is_up(&self) -> bool {
        self.lost.is_none()
    }

    /// Whether there are bytes to receive. Those of a lost connection count until a new one replaces it.
    pub fn brings_bytes(&self) -> bool {
        !self.is_fresh
    }

    /// Number of times that the socket has gone on over a new connection.
    pub fn resumed(&self) -> u64 {
        self.resumed
    }

    /// Whether the peer's host answers, over the connection or when it is called, if that is known.
    pub fn host_answers(&self) -> Option<bool> {
        match self.is_up() {
            true => self.stream().host_answers(),
            false => self.stream().host_answers_calls(),
        }
    }

    /// Whether the calling end is this one.
    pub fn is_calling(&self) -> bool {
        self.renewable.side() == Side::Connector
    }

    /// Handles the error of a call that received bytes.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] if the peer has closed its end, or if this socket is never resumed.
    pub fn lose(&mut self, error: StreamError) -> Result<(), Error> {
        let is_renewed = self.renewable.lose(error)?;
        self.is_fresh |= is_renewed;
        self.exchange = is_renewed.then(Exchange::new);
        self.lost.get_or_insert((error, None));
        Ok(())
    }

    /// Handles the error of a call that sent bytes. Such a call does not tell whether the peer has closed its end.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] if this socket is never resumed.
    pub fn lose_sending(&mut self, error: StreamError) -> Result<(), Error> {
        let is_closed = error == StreamError::Closed && self.renewable.is_renewable();
        self.lose(if is_closed { BROKEN_PIPE } else { error })
    }

    /// Gives up a connection over which nothing gets through, before the kernel does. Only a connector does so.
    pub fn suspect(&mut self, now_ns: u64) {
        let is_open = self.lost.is_none() || self.exchange.is_some();
        if self.is_calling() && self.renewable.is_renewable() && is_open {
            // The host was silent for a moment only.
            self.lost.get_or_insert((TIMED_OUT, Some(now_ns)));
            let lost = self.lose(TIMED_OUT);
            debug_assert_eq!(lost, Ok(()), "the socket is resumed");
        }
    }

    /// Whether the peer has not called for this long, though the connection is lost.
    pub fn is_uncalled(&self, now_ns: u64, for_ns: u64) -> bool {
        let since_ns = self.lost.and_then(|(_, since_ns)| since_ns);
        let is_late = |since_ns| now_ns.saturating_sub(since_ns) >= for_ns;
        self.exchange.is_none() && since_ns.is_some_and(is_late)
    }

    /// Makes as much progress as is possible without waiting. An acceptor also looks whether the peer has called,
    /// since only the peer may know that the connection is lost.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] if the peer lives no more or has reset the connection, [`Error::Line`] if the time is
    /// over, [`Error::Frame`] if the peer does not resume as this end does.
    pub fn poll(&mut self, now_ns: u64, times: ResumeTimes) -> Result<SocketNews, Error> {
        if let Some((error, since_ns @ None)) = &mut self.lost {
            // The kernel has told of a silent host only after the silence.
            let silence_ns = if *error == TIMED_OUT { times.silence_ns } else { 0 };
            *since_ns = Some(now_ns.saturating_sub(silence_ns));
        }
        let mended = self.renewable.mend(now_ns, false, times.within_ns)?;
        if let StreamNews::Renewed { .. } = mended {
            (self.exchange, self.is_fresh) = (Some(Exchange::new()), true);
            self.lost.get_or_insert((StreamError::Closed, Some(now_ns)));
        }
        if let Some(exchange) = &mut self.exchange {
            if exchange.ours.is_none() {
                return Ok(SocketNews::Renewed);
            }
            match exchange.poll(&mut self.renewable.stream) {
                Ok(None) => {}
                Ok(Some(frame)) => {
                    let count = ResumeFrame::parse(&frame).map_err(Error::Frame)?.count;
                    (self.exchange, self.lost, self.is_fresh) = (None, None, false);
                    self.resumed += 1;
                    return Ok(SocketNews::Resumed(count));
                }
                Err(error) => self.lose(error)?,
            }
        }
        if let Some((error, Some(since_ns))) = self.lost {
            let lost_ns = now_ns.saturating_sub(since_ns);
            if lost_ns >= times.within_ns {
                return Err(self.renewable.out_of_time(error, lost_ns));
            }
        }
        Ok(match mended {
            StreamNews::Lost(error) => SocketNews::Lost(error),
            _ => SocketNews::None,
        })
    }

    /// Tells the peer how far this end has come, after [`SocketNews::Renewed`]. Nothing more may be taken from the old
    /// connection.
    pub fn resume(&mut self, count: u64) {
        if let Some(exchange) = &mut self.exchange {
            exchange.ours = Some(ResumeFrame { count }.to_bytes());
        }
    }
}

impl Exchange {
    fn new() -> Self {
        Exchange { ours: None, sent: 0, theirs: [0; FRAME_BYTES], got: 0 }
    }

    /// Makes progress, and returns the peer's frame once both frames have left and arrived.
    fn poll(&mut self, stream: &mut impl Stream) -> Result<Option<[u8; FRAME_BYTES]>, StreamError> {
        let Some(ours) = &self.ours else { return Ok(None) };
        while self.sent < FRAME_BYTES {
            match stream.send(&ours[self.sent..])? {
                0 => return Ok(None),
                sent => self.sent += sent,
            }
        }
        while self.got < FRAME_BYTES {
            match stream.recv(&mut self.theirs[self.got..])? {
                0 => return Ok(None),
                got => self.got += got,
            }
        }
        Ok(Some(self.theirs))
    }
}
