//! The connecting end: proves itself and says hello on every socket, and awaits one answer.

use super::LANES_MAX;
use super::wire::{HELLO_BYTES, Hello, HelloError};
use crate::auth::Calling;
use crate::conn::Stream;
use crate::conn::stage::{Side, Stage};
use crate::conn::wire::DeviceName;
use crate::error::{Ends, Error, Report};

/// Sockets of a connection: control, main, lanes.
pub(super) const SOCKETS_MAX: usize = LANES_MAX + 2;

/// What a connection is set up with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of this end's device.
    pub device: DeviceName,
    /// Time in which connect or accept must come to an end.
    pub timeout_ns: u64,
}

/// The sockets of a connection that is up.
#[derive(Debug)]
pub struct Links<S> {
    /// From the receiver to the sender.
    pub control: S,
    /// From the sender to the receiver, in order.
    pub main: S,
    /// From the sender to the receiver, chunks.
    pub lanes: heapless::Vec<S, LANES_MAX>,
    /// Who is at both ends.
    pub ends: Ends,
}

/// Becomes the sender's [`Links`]: call [`Connector::poll`] until it does, or fails.
#[derive(Debug)]
pub struct Connector<S> {
    /// In their order; empty once they are given away.
    sockets: heapless::Vec<Outbound<S>, SOCKETS_MAX>,
    session: u64,
    stage: Stage,
    answer: HelloReader,
    deadline_ns: u64,
    ends: Ends,
    failed: Option<Error>,
}

/// A socket on which hello is said, once both ends have proved themselves.
#[derive(Debug)]
struct Outbound<S> {
    stream: S,
    calling: Option<Calling>,
    stage: Stage,
    sent: usize,
}

impl<S: Stream> Connector<S> {
    /// A connection over `sockets`, control first and then main, which may still be connecting, each
    /// with the proof that this end knows the handle's secret (`None`: the peer may be anybody);
    /// `session` is a random number.
    pub fn new(
        sockets: impl IntoIterator<Item = (S, Option<Calling>)>,
        session: u64,
        settings: &Settings,
        now_ns: u64,
    ) -> Self {
        let stage = Stage::Connect;
        let outbound = |(stream, calling)| Outbound { stream, calling, stage, sent: 0 };
        let sockets: heapless::Vec<_, SOCKETS_MAX> =
            sockets.into_iter().take(SOCKETS_MAX).map(outbound).collect();
        let peer = sockets.first().and_then(|control| control.stream.peer_addr());
        let few = Error::Argument("a connection needs a control and a main socket");
        Connector {
            failed: (sockets.len() < 2).then_some(few),
            sockets,
            session,
            stage: Stage::Connect,
            answer: HelloReader::new(),
            deadline_ns: now_ns.saturating_add(settings.timeout_ns),
            ends: Ends { device: settings.device.clone(), peer, ..Ends::default() },
        }
    }

    /// Joins an error of this connection with both ends.
    pub fn report(&self, error: Error) -> Report<'_> {
        self.ends.report(error)
    }

    /// Goes on as far as it can without waiting. `None`: call again.
    ///
    /// After an error, every call gives the same error; after the links, [`Error::State`].
    pub fn poll(&mut self, now_ns: u64) -> Result<Option<Links<S>>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = match self.step() {
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

    fn step(&mut self) -> Result<Option<Links<S>>, Error> {
        if self.stage == Stage::Connected {
            return Err(Error::State { call: Side::Connector, stage: self.stage });
        }
        let mut are_sent = true;
        let sockets = self.sockets.len() as u16;
        for (index, socket) in (0..).zip(&mut self.sockets) {
            let device = self.ends.device.clone();
            let hello = Hello { index, sockets, session: self.session, device };
            are_sent &= socket.say(&hello)?;
        }
        let Some(control) = self.sockets.first_mut() else { return Ok(None) };
        if !are_sent {
            return Ok(None);
        }
        self.stage = Stage::Connecting;
        let Some(hello) = self.answer.read(&mut control.stream, self.stage)? else {
            return Ok(None);
        };
        if hello.session != self.session {
            return Err(Error::Hello(HelloError::Session(hello.session)));
        }
        if hello.sockets != sockets {
            return Err(Error::Hello(HelloError::Sockets(hello.sockets)));
        }
        self.ends.peer_device = hello.device;
        self.stage = Stage::Connected;
        let streams = core::mem::take(&mut self.sockets).into_iter().map(|socket| socket.stream);
        Ok(Links::gather(streams, self.ends.clone()))
    }
}

impl<S: Stream> Outbound<S> {
    /// Whether the hello is sent.
    fn say(&mut self, hello: &Hello) -> Result<bool, Error> {
        let stage = self.stage;
        let failed = |error| Error::Stream { stage, error, got: 0, want: 0 };
        if self.stage == Stage::Connect && self.stream.poll_connected().map_err(failed)? {
            self.stage = Stage::Authenticate;
        }
        if self.stage == Stage::Authenticate && self.is_proved()? {
            self.stage = Stage::Send;
        }
        if self.stage == Stage::Send && self.sent < HELLO_BYTES {
            self.sent += self.stream.send(&hello.to_bytes()[self.sent..]).map_err(failed)?;
        }
        Ok(self.sent >= HELLO_BYTES)
    }

    /// Whether both ends have proved themselves, as far as they are to.
    fn is_proved(&mut self) -> Result<bool, Error> {
        let Some(calling) = &mut self.calling else { return Ok(true) };
        calling.poll(&mut self.stream).map(|session| session.is_some()).map_err(Error::Auth)
    }
}

impl<S> Links<S> {
    /// From the sockets in their order; `None` where not even two are there.
    pub(super) fn gather(mut streams: impl Iterator<Item = S>, ends: Ends) -> Option<Self> {
        let (control, main) = (streams.next()?, streams.next()?);
        Some(Links { control, main, lanes: streams.take(LANES_MAX).collect(), ends })
    }
}

/// A hello that comes in.
#[derive(Debug)]
pub(super) struct HelloReader {
    bytes: [u8; HELLO_BYTES],
    got: usize,
}

impl HelloReader {
    pub(super) const fn new() -> Self {
        HelloReader { bytes: [0; HELLO_BYTES], got: 0 }
    }

    /// The hello, once all of it is there.
    pub(super) fn read(
        &mut self,
        stream: &mut impl Stream,
        stage: Stage,
    ) -> Result<Option<Hello>, Error> {
        while self.got < HELLO_BYTES {
            let (got, want) = self.progress();
            match stream.recv(&mut self.bytes[self.got..]) {
                Ok(0) => return Ok(None),
                Ok(n) => self.got += n,
                Err(error) => return Err(Error::Stream { stage, error, got, want }),
            }
        }
        Hello::parse(&self.bytes).map(Some).map_err(Error::Hello)
    }

    /// Bytes that are there, and all.
    pub(super) fn progress(&self) -> (u16, u16) {
        (self.got as u16, HELLO_BYTES as u16)
    }
}
