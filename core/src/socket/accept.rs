//! The accepting end of connections. Sockets arrive in any order, for several connections at a time.

use super::connect::{HelloReader, Links, SOCKETS_MAX, Settings};
use super::wire::{HELLO_BYTES, Hello, HelloError};
use crate::conn::Stream;
use crate::conn::stage::{Side, Stage};
use crate::error::{Ends, Error};

/// Maximum number of waiting sockets: enough for 1,024 connections without lanes, and some strangers.
const GUESTS_MAX: usize = 2304;

/// Accepted sockets that wait. A socket leaves when all sockets of its connection have arrived and the
/// connection is answered.
#[derive(Debug)]
pub struct Lobby<S> {
    guests: heapless::Vec<Guest<S>, GUESTS_MAX>,
    settings: Settings,
}

/// A socket that leads to no connection, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Reason for the refusal.
    pub error: Error,
    /// Both ends of the refused socket.
    pub ends: Ends,
}

#[derive(Debug)]
struct Guest<S> {
    stream: S,
    reader: HelloReader,
    hello: Option<Hello>,
    /// The acceptor has tried to read from this socket since it arrived.
    was_heard: bool,
    /// All sockets of the connection have arrived. Only a control socket has this flag.
    is_whole: bool,
    /// Number of answer bytes sent. Only a control socket is answered.
    answered: usize,
    deadline_ns: u64,
}

impl<S: Stream> Lobby<S> {
    /// Creates a lobby without sockets.
    pub fn new(settings: Settings) -> Self {
        Lobby { guests: heapless::Vec::new(), settings }
    }

    /// Returns whether one more socket may enter. If the lobby is full, a socket must have stayed
    /// silent in a call of [`Lobby::poll`].
    pub fn has_room(&self) -> bool {
        !self.guests.is_full() || self.oldest_silent().is_some()
    }

    /// Adds an accepted socket. If the lobby is full, the socket that has been silent for longest is
    /// closed. If no socket has been silent, the new socket is closed.
    pub fn enter(&mut self, stream: S, now_ns: u64) {
        if self.guests.is_full()
            && let Some(at) = self.oldest_silent()
        {
            warn!("{}: {GUESTS_MAX} sockets wait; the oldest stranger gives way", Side::Acceptor);
            self.refuse(at, self.guests[at].overdue());
        }
        let deadline_ns = now_ns.saturating_add(self.settings.timeout_ns);
        let reader = HelloReader::new();
        let guest = Guest {
            stream,
            reader,
            hello: None,
            was_heard: false,
            is_whole: false,
            answered: 0,
            deadline_ns,
        };
        if self.guests.push(guest).is_err() {
            warn!("{}: {GUESTS_MAX} sockets wait already; one is turned away", Side::Acceptor);
        }
    }

    /// Makes as much progress as is possible without waiting. `None` means: call again.
    ///
    /// # Errors
    /// A socket failed, sent no valid hello in time, or waited too long for others of its connection.
    /// The lobby closes it. The lobby also closes the other sockets of that connection, unless the
    /// hello contradicts theirs. Other connections go on.
    #[expect(clippy::result_large_err, reason = "the core has no boxes, and connections are few")]
    pub fn poll(&mut self, now_ns: u64) -> Result<Option<Links<S>>, Refused> {
        for at in 0..self.guests.len() {
            if let Err(error) = self.listen_to(at, now_ns) {
                return Err(self.refuse(at, error));
            }
        }
        for at in 0..self.guests.len() {
            match self.complete(at) {
                Ok(None) => {}
                Ok(links) => return Ok(links),
                Err(error) => return Err(self.refuse(at, error)),
            }
        }
        Ok(None)
    }

    /// Finds the socket that has waited longest, among those that were read and have not said hello.
    fn oldest_silent(&self) -> Option<usize> {
        let guests = self.guests.iter().enumerate();
        let silent = guests.filter(|(_, guest)| guest.was_heard && guest.hello.is_none());
        silent.min_by_key(|(_, guest)| guest.deadline_ns).map(|(at, _)| at)
    }

    /// Reads the hello of a socket and checks it.
    fn listen_to(&mut self, at: usize, now_ns: u64) -> Result<(), Error> {
        let guest = &mut self.guests[at];
        guest.was_heard = true;
        if guest.hello.is_none() {
            guest.hello = guest.reader.read(&mut guest.stream, Stage::Recv)?;
            if let Some(hello) = guest.hello.clone() {
                self.judge(at, &hello)?;
                self.count(&hello);
            }
        }
        let guest = &self.guests[at];
        if now_ns < guest.deadline_ns {
            return Ok(());
        }
        match &guest.hello {
            None => Err(guest.overdue()),
            Some(hello) => {
                let came = self.of_session(hello.session).count() as u16;
                Err(Error::Hello(HelloError::Missing { came, of: hello.sockets }))
            }
        }
    }

    /// Checks that a hello fits the other hellos of its connection.
    fn judge(&self, at: usize, hello: &Hello) -> Result<(), Error> {
        let others = self.guests.iter().enumerate().filter(|(other, _)| *other != at);
        for other in others.filter_map(|(_, guest)| guest.hello.as_ref()) {
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
    fn count(&mut self, hello: &Hello) {
        if self.of_session(hello.session).count() < usize::from(hello.sockets) {
            return;
        }
        let is_control = |guest: &&mut Guest<S>| {
            let theirs = guest.hello.as_ref();
            theirs.is_some_and(|other| other.session == hello.session && other.index == 0)
        };
        if let Some(control) = self.guests.iter_mut().find(is_control) {
            control.is_whole = true;
        }
    }

    /// Answers the connection whose control socket is at index `at`, if all its sockets have arrived.
    fn complete(&mut self, at: usize) -> Result<Option<Links<S>>, Error> {
        let guest = &self.guests[at];
        if !guest.is_whole {
            return Ok(None);
        }
        let Some(hello) = guest.hello.clone() else { return Ok(None) };
        let answer = Hello { device: self.settings.device.clone(), ..hello }.to_bytes();
        let guest = &mut self.guests[at];
        let failed = |error| Error::Stream { stage: Stage::Send, error, got: 0, want: 0 };
        guest.answered += guest.stream.send(&answer[guest.answered..]).map_err(failed)?;
        if guest.answered < HELLO_BYTES {
            return Ok(None);
        }
        let ends = self.ends(at);
        Ok(self.take_out(hello.session, ends))
    }

    /// Takes the sockets of a complete connection.
    fn take_out(&mut self, session: u64, ends: Ends) -> Option<Links<S>> {
        let mut sockets = heapless::Vec::<(u16, S), SOCKETS_MAX>::new();
        let is_of =
            |guest: &Guest<S>| guest.hello.as_ref().filter(|h| h.session == session).is_some();
        while let Some(at) = self.guests.iter().position(is_of) {
            let guest = self.guests.swap_remove(at);
            let index = guest.hello.map_or(0, |hello| hello.index);
            // The push succeeds: there are at most as many sockets as indices, and all indices differ.
            let _ = sockets.push((index, guest.stream));
        }
        sockets.sort_unstable_by_key(|(index, _)| *index);
        Links::gather(sockets.into_iter().map(|(_, stream)| stream), ends)
    }

    /// Closes a socket and the other sockets of its connection.
    fn refuse(&mut self, at: usize, error: Error) -> Refused {
        let ends = self.ends(at);
        let guest = self.guests.swap_remove(at);
        // A socket that repeats the hello of another one may be a stranger's, so that connection
        // stays.
        let is_doubtful =
            matches!(error, Error::Hello(HelloError::Index(_) | HelloError::Sockets(_)));
        if let Some(hello) = guest.hello.filter(|_| !is_doubtful) {
            drop(self.take_out(hello.session, Ends::default()));
        }
        warn!("{}: {}", Side::Acceptor, ends.report(error));
        Refused { error, ends }
    }

    fn of_session(&self, session: u64) -> impl Iterator<Item = &Hello> {
        let hellos = self.guests.iter().filter_map(|guest| guest.hello.as_ref());
        hellos.filter(move |hello| hello.session == session)
    }

    fn ends(&self, at: usize) -> Ends {
        let Guest { stream, hello, .. } = &self.guests[at];
        let peer_device = hello.as_ref().map(|hello| hello.device.clone()).unwrap_or_default();
        let device = self.settings.device.clone();
        Ends { device, peer: stream.peer_addr(), peer_device, ..Ends::default() }
    }
}

impl<S> Guest<S> {
    /// The timeout error for a socket that had its time to say hello.
    fn overdue(&self) -> Error {
        let (got, want) = self.reader.progress();
        Error::Timeout { stage: Stage::Recv, got, want }
    }
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.ends.report(self.error).fmt(f)
    }
}

impl core::error::Error for Refused {}

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
        let hello = Hello { index, sockets: 2, session, device: DeviceName::default() };
        Caller(heapless::Vec::from_slice(&hello.to_bytes()).unwrap())
    }

    fn lobby() -> Lobby<Caller> {
        Lobby::new(Settings { device: DeviceName::default(), timeout_ns: 1_000_000 })
    }

    #[test]
    fn where_strangers_have_all_places_the_oldest_gives_way() {
        let mut lobby = lobby();
        // A socket that arrives before all others, and whose connection is not complete yet.
        lobby.enter(rank(1, 0), 0);
        for now_ns in 1..GUESTS_MAX as u64 {
            lobby.enter(stranger(), now_ns);
        }
        assert!(!lobby.has_room(), "nobody has been listened to");
        assert!(matches!(lobby.poll(300), Ok(None)));
        for index in 0..2 {
            assert!(lobby.has_room());
            lobby.enter(rank(2, index), 300);
        }
        assert!(matches!(lobby.poll(300), Ok(Some(_))), "both sockets are there");
        lobby.enter(rank(1, 1), 300);
        assert!(matches!(lobby.poll(300), Ok(Some(_))), "who said hello has kept its place");
        let left: heapless::Vec<u64, GUESTS_MAX> =
            lobby.guests.iter().map(|guest| guest.deadline_ns - 1_000_000).collect();
        assert_eq!(left.iter().min(), Some(&3), "1 and 2 had to go");
    }

    #[test]
    fn who_has_said_hello_gives_way_to_nobody() {
        let mut lobby = lobby();
        for session in 0..GUESTS_MAX as u64 {
            lobby.enter(rank(session, 0), 0);
        }
        assert!(matches!(lobby.poll(1), Ok(None)));
        assert!(!lobby.has_room());
        lobby.enter(stranger(), 1);
        assert!(lobby.guests.iter().all(|guest| guest.hello.is_some()));
    }
}
