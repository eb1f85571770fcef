//! The connecting end: proves itself and says hello on every socket, then awaits one answer.

use super::wire::{HELLO_BYTES, HelloError, SocketHello};
use super::{LANES_MAX, ResumableSocket};
use crate::auth::{Calling, Session};
use crate::conn::stage::{Side, Stage};
use crate::conn::wire::{DeviceName, TIME_BYTES};
use crate::conn::{AwaitedStream, Stream};
use crate::error::{Ends, Error, Report};
use crate::peer_clock::PeerClock;

/// Maximum number of sockets of a connection: control, main and lanes.
pub(super) const SOCKETS_MAX: usize = LANES_MAX + 2;

/// Settings of a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeSettings {
    /// Name of this end's device.
    pub device: DeviceName,
    /// Time limit for a connect or an accept.
    pub timeout_ns: u64,
    /// Whether lost sockets go on over new connections, if the peer does so too.
    pub resumes: bool,
}

/// The sockets of an open connection.
#[derive(Debug)]
pub struct Links<S> {
    /// Carries frames from the receiver to the sender, and views in both directions.
    pub control: ResumableSocket<S>,
    /// Carries frames and short payload from the sender to the receiver, in order.
    pub main: ResumableSocket<S>,
    /// Carry chunks of long messages from the sender to the receiver.
    pub lanes: heapless::Vec<ResumableSocket<S>, LANES_MAX>,
    /// Device and address of both ends.
    pub ends: Ends,
    /// Whether both ends exchange views over control.
    pub shares_views: bool,
    /// Whether lost sockets go on over new connections. The receiver then acknowledges.
    pub resumes: bool,
}

/// A connection that is being opened. Call [`SocketConnector::poll`] until it returns the sender's [`Links`]
/// or fails.
#[derive(Debug)]
pub struct SocketConnector<S> {
    /// Sockets in the order of their numbers. The list is empty after a success or a failure.
    sockets: heapless::Vec<Outbound<S>, SOCKETS_MAX>,
    session: u64,
    resumes: bool,
    stage: Stage,
    answer: HelloReader,
    /// Time at which all hellos were sent.
    asked_ns: u64,
    deadline_ns: u64,
    ends: Ends,
    failed: Option<Error>,
}

/// A socket on which the connector says hello, once both ends have proved themselves.
#[derive(Debug)]
struct Outbound<S> {
    stream: S,
    calling: Option<Calling>,
    /// The session in which both ends have proved themselves.
    session: Session,
    stage: Stage,
    sent: usize,
}

impl<S: Stream> SocketConnector<S> {
    /// Opens a connection over `sockets`: control first, then main, then lanes. The sockets may still
    /// be connecting. Each socket comes with the proof that this end knows the handle's secret. With
    /// `None`, the peer may be anybody. `session` is a random number.
    pub fn new(
        sockets: impl IntoIterator<Item = (S, Option<Calling>)>,
        session: u64,
        settings: &HandshakeSettings,
        now_ns: u64,
    ) -> Self {
        let stage = Stage::Connect;
        let outbound = |(stream, calling)| {
            let session = Session::UNKNOWN_PEER;
            Outbound { stream, calling, session, stage, sent: 0 }
        };
        let sockets: heapless::Vec<_, SOCKETS_MAX> =
            sockets.into_iter().take(SOCKETS_MAX).map(outbound).collect();
        let peer = sockets.first().and_then(|control| control.stream.peer_addr());
        let few = Error::Argument("a connection needs a control and a main socket");
        SocketConnector {
            failed: (sockets.len() < 2).then_some(few),
            sockets,
            session,
            resumes: settings.resumes,
            stage: Stage::Connect,
            answer: HelloReader::new(),
            deadline_ns: now_ns.saturating_add(settings.timeout_ns),
            asked_ns: now_ns,
            ends: Ends {
                device: settings.device.clone(),
                peer,
                number: session,
                ..Ends::default()
            },
        }
    }

    /// Adds both ends of this connection to an error.
    pub fn report(&self, error: Error) -> Report<'_> {
        self.ends.report(error)
    }

    /// Returns the streams for which this end waits.
    pub fn awaited(&self) -> impl Iterator<Item = AwaitedStream<'_, S>> {
        let answers = self.stage == Stage::Connecting;
        self.sockets.iter().enumerate().filter_map(move |(index, socket)| match socket.stage {
            Stage::Authenticate => Some(AwaitedStream::Bytes(&socket.stream)),
            Stage::Send if socket.sent >= HELLO_BYTES => {
                (answers && index == 0).then_some(AwaitedStream::Bytes(&socket.stream))
            }
            _ => Some(AwaitedStream::Room(&socket.stream)),
        })
    }

    /// Makes as much progress as is possible without waiting. `None` means: call again.
    ///
    /// # Errors
    /// The connection failed. After an error, each call returns that error again. After the links,
    /// each call returns [`Error::State`].
    pub fn poll(&mut self, now_ns: u64) -> Result<Option<Links<S>>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = match self.step(now_ns) {
            Ok(None) if now_ns >= self.deadline_ns => {
                let (got, want) = self.answer.progress();
                Err(Error::Timeout { stage: self.stage, got, want })
            }
            result => result,
        };
        if let Err(error) = &result {
            warn!("{}: {}", Side::Connector, self.ends.report(*error));
            self.failed = Some(*error);
            self.sockets.clear();
        }
        result
    }

    fn step(&mut self, now_ns: u64) -> Result<Option<Links<S>>, Error> {
        if self.stage == Stage::Connected {
            return Err(Error::State { call: Side::Connector, stage: self.stage });
        }
        let mut are_sent = true;
        let sockets = self.sockets.len() as u16;
        for (index, socket) in (0..).zip(&mut self.sockets) {
            let device = self.ends.device.clone();
            let hello = SocketHello {
                index,
                sockets,
                session: self.session,
                device,
                shares_views: true,
                tells_time: true,
                resumes: self.resumes,
                renewal_port: 0,
            };
            are_sent &= socket.say(&hello)?;
        }
        let Some(control) = self.sockets.first_mut() else { return Ok(None) };
        if !are_sent {
            return Ok(None);
        }
        if self.stage != Stage::Connecting {
            let (side, from, to) = (Side::Connector, self.stage, Stage::Connecting);
            debug!("{side}: the handshake of {sockets} sockets goes from {from} to {to}");
            (self.stage, self.asked_ns) = (to, now_ns);
        }
        let Some(hello) = self.answer.read(&mut control.stream, self.stage)? else {
            return Ok(None);
        };
        if hello.session != self.session {
            return Err(Error::Hello(HelloError::Session(hello.session)));
        }
        if hello.sockets != sockets {
            return Err(Error::Hello(HelloError::Sockets(hello.sockets)));
        }
        if hello.tells_time {
            let time_ns = self.answer.read_time(&mut control.stream, self.stage)?;
            let Some(time_ns) = time_ns else { return Ok(None) };
            self.ends.peer_clock = PeerClock::estimate(self.asked_ns, time_ns, now_ns);
        }
        self.ends.peer_device = hello.device;
        self.stage = Stage::Connected;
        info!("{}: connected over {sockets} sockets: {}", Side::Connector, self.ends);
        let resumes = self.resumes && hello.resumes;
        let port = resumes.then_some(hello.renewal_port);
        let sockets = core::mem::take(&mut self.sockets).into_iter().map(|socket| {
            ResumableSocket::new(socket.stream, Side::Connector, socket.session, port)
        });
        let (ends, shares_views) = (self.ends.clone(), hello.shares_views);
        Ok(Links::gather(sockets, ends, shares_views, resumes))
    }
}

impl<S: Stream> Outbound<S> {
    /// Makes progress and returns whether the whole hello is sent.
    fn say(&mut self, hello: &SocketHello) -> Result<bool, Error> {
        let stage = self.stage;
        let failed = |error| Error::Stream { stage, error, got: 0, want: 0 };
        if self.stage == Stage::Connect && self.stream.poll_connected().map_err(failed)? {
            self.advance(Stage::Authenticate, hello.index);
        }
        if self.stage == Stage::Authenticate && self.is_proved()? {
            self.advance(Stage::Send, hello.index);
        }
        if self.stage == Stage::Send && self.sent < HELLO_BYTES {
            self.sent += self.stream.send(&hello.to_bytes()[self.sent..]).map_err(failed)?;
        }
        Ok(self.sent >= HELLO_BYTES)
    }

    fn advance(&mut self, to: Stage, index: u16) {
        let (side, from) = (Side::Connector, self.stage);
        debug!("{side}: the handshake of socket {index} goes from {from} to {to}");
        self.stage = to;
    }

    /// Makes progress and returns whether both ends have proved themselves, or need no proof.
    fn is_proved(&mut self) -> Result<bool, Error> {
        let Some(calling) = &mut self.calling else { return Ok(true) };
        let session = calling.poll(&mut self.stream).map_err(Error::Auth)?;
        self.session = session.unwrap_or(self.session);
        Ok(session.is_some())
    }
}

impl<S> Links<S> {
    /// Builds the links from the sockets in the order of their numbers. `None` means that control or
    /// main is missing.
    pub(super) fn gather(
        mut sockets: impl Iterator<Item = ResumableSocket<S>>,
        ends: Ends,
        shares_views: bool,
        resumes: bool,
    ) -> Option<Self> {
        let (control, main) = (sockets.next()?, sockets.next()?);
        let lanes = sockets.take(LANES_MAX).collect();
        Some(Links { control, main, lanes, ends, shares_views, resumes })
    }
}

/// A hello that is being received, and the acceptor's time behind it.
#[derive(Debug)]
pub(super) struct HelloReader {
    bytes: [u8; HELLO_BYTES + TIME_BYTES],
    got: usize,
    want: usize,
}

impl HelloReader {
    pub(super) const fn new() -> Self {
        HelloReader { bytes: [0; HELLO_BYTES + TIME_BYTES], got: 0, want: HELLO_BYTES }
    }

    /// Reads and returns the hello, once all of its bytes have arrived.
    pub(super) fn read(
        &mut self,
        stream: &mut impl Stream,
        stage: Stage,
    ) -> Result<Option<SocketHello>, Error> {
        let bytes = self.read_up_to(HELLO_BYTES, stream, stage)?.and_then(|all| all.first_chunk());
        bytes.map(SocketHello::parse).transpose().map_err(Error::Hello)
    }

    /// Reads and returns the acceptor's time, once all of its bytes have arrived.
    fn read_time(&mut self, stream: &mut impl Stream, stage: Stage) -> Result<Option<u64>, Error> {
        let bytes = self.read_up_to(HELLO_BYTES + TIME_BYTES, stream, stage)?;
        Ok(bytes.and_then(|all| all.last_chunk()).copied().map(u64::from_le_bytes))
    }

    /// Reads until `len` bytes are there, and returns them then.
    fn read_up_to(
        &mut self,
        len: usize,
        stream: &mut impl Stream,
        stage: Stage,
    ) -> Result<Option<&[u8]>, Error> {
        self.want = len;
        while self.got < len {
            let (got, want) = self.progress();
            match stream.recv(&mut self.bytes[self.got..len]) {
                Ok(0) => return Ok(None),
                Ok(n) => self.got = len.min(self.got + n),
                Err(error) => return Err(Error::Stream { stage, error, got, want }),
            }
        }
        Ok(self.bytes.get(..len))
    }

    /// Number of bytes that have arrived, and number of all bytes.
    pub(super) fn progress(&self) -> (u16, u16) {
        (self.got as u16, self.want as u16)
    }
}
