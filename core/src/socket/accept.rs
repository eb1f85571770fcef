//! The accepting end of connections. Sockets arrive in any order, for several connections at a time.

use super::ResumableSocket;
use super::connect::{HandshakeSettings, HelloReader, Links, SOCKETS_MAX};
use super::wire::{HELLO_BYTES, HelloError, SocketHello};
use crate::auth::Session;
use crate::conn::stage::{Side, Stage};
use crate::conn::wire::TIME_BYTES;
use crate::conn::{AwaitedStream, Stream};
use crate::error::{Ends, Error};

/// Maximum number of waiting sockets: enough for 1,024 connections without lanes, and some strangers.
const PENDING_MAX: usize = 2304;

/// Accepted sockets that wait. A socket leaves when all sockets of its connection have arrived and the
/// connection is answered.
#[derive(Debug)]
pub struct PendingConnections<S> {
    sockets: heapless::Vec<PendingSocket<S>, PENDING_MAX>,
    settings: HandshakeSettings,
}

/// A socket that leads to no connection, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketRefused {
    /// Reason for the refusal.
    pub error: Error,
    /// Both ends of the refused socket.
    pub ends: Ends,
}

#[derive(Debug)]
struct PendingSocket<S> {
    stream: S,
    session: Session,
    reader: HelloReader,
    hello: Option<SocketHello>,
    /// The acceptor has tried to read from this socket since it arrived.
    was_heard: bool,
    /// All sockets of the connection have arrived. Only a control socket has this flag.
    is_whole: bool,
    /// Number of answer bytes sent. Only a control socket is answered.
    answered: usize,
    /// Time of the answer.
    answered_ns: Option<u64>,
    deadline_ns: u64,
}

impl<S: Stream> PendingConnections<S> {
    /// Creates an empty set of pending connections.
    pub fn new(settings: HandshakeSettings) -> Self {
        PendingConnections { sockets: heapless::Vec::new(), settings }
    }

    /// Returns whether one more socket may enter. If there is no room, a socket must have stayed
    /// silent in a call of [`PendingConnections::poll`].
    pub fn has_room(&self) -> bool {
        !self.sockets.is_full() || self.oldest_silent().is_some()
    }

    /// Returns the sockets for which this end waits. A socket that waits for others of its connection is one of
    /// them, because the peer may close it.
    pub fn awaited(&self) -> impl Iterator<Item = AwaitedStream<'_, S>> {
        self.sockets.iter().map(|PendingSocket { stream, is_whole, .. }| match is_whole {
            false => AwaitedStream::Bytes(stream),
            true => AwaitedStream::Room(stream),
        })
    }

    /// Adds an accepted socket, and the session in which its caller has proved itself. If there is no room, the socket
    /// that has been silent for longest is
    /// closed. If no socket has been silent, the new socket is closed.
    pub fn enter(&mut self, stream: S, session: Session, now_ns: u64) {
        if self.sockets.is_full()
            && let Some(at) = self.oldest_silent()
        {
            warn!("{}: {PENDING_MAX} sockets wait; the oldest stranger gives way", Side::Acceptor);
            self.refuse(at, self.sockets[at].overdue());
        }
        let deadline_ns = now_ns.saturating_add(self.settings.timeout_ns);
        let reader = HelloReader::new();
        let socket = PendingSocket {
            stream,
            session,
            reader,
            hello: None,
            was_heard: false,
            is_whole: false,
            answered: 0,
            answered_ns: None,
            deadline_ns,
        };
        if self.sockets.push(socket).is_err() {
            warn!("{}: {PENDING_MAX} sockets wait already; one is turned away", Side::Acceptor);
        }
    }

    /// Makes as much progress as is possible without waiting. `None` means: call again.
    ///
    /// # Errors
    /// A socket failed, sent no valid hello in time, or waited too long for others of its connection.
    /// This call closes that socket. It also closes the other sockets of the connection, unless the
    /// hello contradicts theirs. Other connections go on.
    #[expect(clippy::result_large_err, reason = "the core has no boxes, and connections are few")]
    pub fn poll(&mut self, now_ns: u64) -> Result<Option<Links<S>>, SocketRefused> {
        for at in 0..self.sockets.len() {
            if let Err(error) = self.listen_to(at, now_ns) {
                return Err(self.refuse(at, error));
            }
        }
        for at in 0..self.sockets.len() {
            match self.complete(at, now_ns) {
                Ok(None) => {}
                Ok(links) => return Ok(links),
                Err(error) => return Err(self.refuse(at, error)),
            }
        }
        Ok(None)
    }

    /// Finds the socket that has waited longest, among those that were read and have not said hello.
    fn oldest_silent(&self) -> Option<usize> {
        let sockets = self.sockets.iter().enumerate();
        let silent = sockets.filter(|(_, socket)| socket.was_heard && socket.hello.is_none());
        silent.min_by_key(|(_, socket)| socket.deadline_ns).map(|(at, _)| at)
    }

    /// Reads the hello of a socket and checks it. Notices whether a peer that has said hello ends before the answer.
    fn listen_to(&mut self, at: usize, now_ns: u64) -> Result<(), Error> {
        let socket = &mut self.sockets[at];
        socket.was_heard = true;
        if socket.hello.is_none() {
            socket.hello = socket.reader.read(&mut socket.stream, Stage::Recv)?;
            if let Some(hello) = socket.hello.clone() {
                self.judge(at, &hello)?;
                let SocketHello { index, sockets, .. } = hello;
                debug!("{}: the hello of socket {index} of {sockets} is here", Side::Acceptor);
                self.count(&hello);
            }
        }
        let socket = &mut self.sockets[at];
        if socket.hello.is_some() && !socket.is_whole {
            socket.expect_silence()?;
        }
        let socket = &self.sockets[at];
        if now_ns < socket.deadline_ns {
            return Ok(());
        }
        match &socket.hello {
            None => Err(socket.overdue()),
            Some(hello) => {
                let came = self.of_session(hello.session).count() as u16;
                Err(Error::Hello(HelloError::Missing { came, of: hello.sockets }))
            }
        }
    }

    /// Checks that a hello fits the other hellos of its connection.
    fn judge(&self, at: usize, hello: &SocketHello) -> Result<(), Error> {
        let others = self.sockets.iter().enumerate().filter(|(other, _)| *other != at);
        for other in others.filter_map(|(_, socket)| socket.hello.as_ref()) {
            if other.session == hello.session {
                if other.sockets != hello.sockets {
                    return Err(Error::Hello(HelloError::Sockets(hello.sockets)));
                }
                if other.index == hello.index {
                    return Err(Error::Hello(HelloError::Index(hello.index)));
                }
            }
        }
        Ok(())
    }

    /// Marks the control socket of a connection if the last socket of the connection has arrived.
    fn count(&mut self, hello: &SocketHello) {
        if self.of_session(hello.session).count() < usize::from(hello.sockets) {
            return;
        }
        let is_control = |socket: &&mut PendingSocket<S>| {
            let theirs = socket.hello.as_ref();
            theirs.is_some_and(|other| other.session == hello.session && other.index == 0)
        };
        if let Some(control) = self.sockets.iter_mut().find(is_control) {
            control.is_whole = true;
        }
    }

    /// Answers the connection whose control socket is at index `at`, if all its sockets have arrived.
    fn complete(&mut self, at: usize, now_ns: u64) -> Result<Option<Links<S>>, Error> {
        let socket = &self.sockets[at];
        if !socket.is_whole {
            return Ok(None);
        }
        let Some(hello) = socket.hello.clone() else { return Ok(None) };
        let device = self.settings.device.clone();
        let socket = &mut self.sockets[at];
        let mut answer = SocketHello { device, renewal_port: 0, ..hello };
        answer.resumes &= self.settings.resumes && socket.stream.renewal_port() != 0;
        if answer.resumes {
            answer.renewal_port = socket.stream.renewal_port();
        }
        let port = answer.resumes.then_some(0);
        let time_ns = *socket.answered_ns.get_or_insert(now_ns);
        let mut bytes = [0; HELLO_BYTES + TIME_BYTES];
        bytes[..HELLO_BYTES].copy_from_slice(&answer.to_bytes());
        bytes[HELLO_BYTES..].copy_from_slice(&time_ns.to_le_bytes());
        let answer = if hello.tells_time { &bytes[..] } else { &bytes[..HELLO_BYTES] };
        let failed = |error| Error::Stream { stage: Stage::Send, error, got: 0, want: 0 };
        socket.answered += socket.stream.send(&answer[socket.answered..]).map_err(failed)?;
        if socket.answered < answer.len() {
            return Ok(None);
        }
        let ends = self.ends(at);
        info!("{}: connected over {} sockets: {ends}", Side::Acceptor, hello.sockets);
        Ok(self.take_out(hello.session, ends, hello.shares_views, port))
    }

    /// Takes the sockets of a complete connection. With a `port`, which an acceptor never calls, they are resumed.
    fn take_out(
        &mut self,
        session: u64,
        ends: Ends,
        shares_views: bool,
        port: Option<u16>,
    ) -> Option<Links<S>> {
        let mut sockets = heapless::Vec::<(u16, ResumableSocket<S>), SOCKETS_MAX>::new();
        let is_of = |socket: &PendingSocket<S>| {
            socket.hello.as_ref().filter(|h| h.session == session).is_some()
        };
        while let Some(at) = self.sockets.iter().position(is_of) {
            let socket = self.sockets.swap_remove(at);
            let index = socket.hello.as_ref().map_or(0, |hello| hello.index);
            // The push succeeds: there are at most as many sockets as indices, and all indices differ.
            let PendingSocket { stream, session, .. } = socket;
            let _ =
                sockets.push((index, ResumableSocket::new(stream, Side::Acceptor, session, port)));
        }
        sockets.sort_unstable_by_key(|(index, _)| *index);
        let sockets = sockets.into_iter().map(|(_, socket)| socket);
        Links::gather(sockets, ends, shares_views, port.is_some())
    }

    /// Closes a socket and the other sockets of its connection.
    fn refuse(&mut self, at: usize, error: Error) -> SocketRefused {
        let ends = self.ends(at);
        let socket = self.sockets.swap_remove(at);
        // A socket that repeats the hello of another one may be a stranger's, so that connection
        // stays.
        let is_doubtful =
            matches!(error, Error::Hello(HelloError::Index(_) | HelloError::Sockets(_)));
        if let Some(hello) = socket.hello.filter(|_| !is_doubtful) {
            drop(self.take_out(hello.session, Ends::default(), false, None));
        }
        warn!("{}: {}", Side::Acceptor, ends.report(error));
        SocketRefused { error, ends }
    }

    fn of_session(&self, session: u64) -> impl Iterator<Item = &SocketHello> {
        let hellos = self.sockets.iter().filter_map(|socket| socket.hello.as_ref());
        hellos.filter(move |hello| hello.session == session)
    }

    fn ends(&self, at: usize) -> Ends {
        let PendingSocket { stream, hello, .. } = &self.sockets[at];
        let peer_device = hello.as_ref().map(|hello| hello.device.clone()).unwrap_or_default();
        let device = self.settings.device.clone();
        let number = hello.as_ref().map_or(0, |hello| hello.session);
        Ends { device, peer: stream.peer_addr(), peer_device, number, ..Ends::default() }
    }
}

impl<S: Stream> PendingSocket<S> {
    /// Fails if the peer has closed this socket, or has sent more than its hello before the answer.
    fn expect_silence(&mut self) -> Result<(), Error> {
        let (got, want) = self.reader.progress();
        let failed = |error| Error::Stream { stage: Stage::Recv, error, got, want };
        match self.stream.recv(&mut [0]).map_err(failed)? {
            0 => Ok(()),
            _ => Err(Error::Unexpected),
        }
    }

    /// The timeout error for a socket that had its time to say hello.
    fn overdue(&self) -> Error {
        let (got, want) = self.reader.progress();
        Error::Timeout { stage: Stage::Recv, got, want }
    }
}

impl core::fmt::Display for SocketRefused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.ends.report(self.error).fmt(f)
    }
}

impl core::error::Error for SocketRefused {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::StreamError;
    use crate::conn::wire::DeviceName;

    /// A stream that delivers these bytes and then stays silent.
    struct Caller(heapless::Vec<u8, HELLO_BYTES>);

    impl Stream for Caller {
        fn peer_addr(&self) -> Option<core::net::SocketAddr> {
            None
        }

        fn poll_connected(&mut self) -> Result<bool, StreamError> {
            Ok(true)
        }

        fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
            Ok(bytes.len())
        }

        fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
            let n = buf.len().min(self.0.len());
            buf[..n].copy_from_slice(&self.0[..n]);
            self.0.drain(..n);
            Ok(n)
        }
    }

    fn stranger() -> Caller {
        Caller(heapless::Vec::new())
    }

    fn rank(session: u64, index: u16) -> Caller {
        let device = DeviceName::default();
        let hello = SocketHello {
            index,
            sockets: 2,
            session,
            device,
            shares_views: true,
            tells_time: true,
            resumes: false,
            renewal_port: 0,
        };
        Caller(heapless::Vec::from_slice(&hello.to_bytes()).unwrap())
    }

    fn pending() -> PendingConnections<Caller> {
        PendingConnections::new(HandshakeSettings {
            device: DeviceName::default(),
            timeout_ns: 1_000_000,
            resumes: false,
        })
    }

    #[test]
    fn where_strangers_have_all_places_the_oldest_gives_way() {
        let mut pending = pending();
        // A socket that arrives before all others, and whose connection is not complete yet.
        pending.enter(rank(1, 0), Session::UNKNOWN_PEER, 0);
        for now_ns in 1..PENDING_MAX as u64 {
            pending.enter(stranger(), Session::UNKNOWN_PEER, now_ns);
        }
        assert!(!pending.has_room(), "nobody has been listened to");
        assert!(matches!(pending.poll(300), Ok(None)));
        for index in 0..2 {
            assert!(pending.has_room());
            pending.enter(rank(2, index), Session::UNKNOWN_PEER, 300);
        }
        assert!(matches!(pending.poll(300), Ok(Some(_))), "both sockets are there");
        pending.enter(rank(1, 1), Session::UNKNOWN_PEER, 300);
        assert!(matches!(pending.poll(300), Ok(Some(_))), "who said hello has kept its place");
        let left: heapless::Vec<u64, PENDING_MAX> =
            pending.sockets.iter().map(|socket| socket.deadline_ns - 1_000_000).collect();
        assert_eq!(left.iter().min(), Some(&3), "1 and 2 had to go");
    }

    #[test]
    fn who_has_said_hello_gives_way_to_nobody() {
        let mut pending = pending();
        for session in 0..PENDING_MAX as u64 {
            pending.enter(rank(session, 0), Session::UNKNOWN_PEER, 0);
        }
        assert!(matches!(pending.poll(1), Ok(None)));
        assert!(!pending.has_room());
        pending.enter(stranger(), Session::UNKNOWN_PEER, 1);
        assert!(pending.sockets.iter().all(|socket| socket.hello.is_some()));
    }
}
