//! The accepting end: sockets come in any order, of several connections at a time.

use super::connect::{HelloReader, Links, SOCKETS_MAX, Settings};
use super::wire::{HELLO_BYTES, Hello, HelloError};
use crate::conn::Stream;
use crate::conn::stage::{Side, Stage};
use crate::error::{Ends, Error};

/// Sockets that may wait for others of their connection.
const GUESTS_MAX: usize = 256;

/// Where accepted sockets wait until all of their connection are there and it is answered.
#[derive(Debug)]
pub struct Lobby<S> {
    guests: heapless::Vec<Guest<S>, GUESTS_MAX>,
    settings: Settings,
}

/// A socket that leads to no connection, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub error: Error,
    /// Who was there.
    pub ends: Ends,
}

#[derive(Debug)]
struct Guest<S> {
    stream: S,
    reader: HelloReader,
    hello: Option<Hello>,
    /// Bytes of the answer that were sent, on a control socket.
    answered: usize,
    deadline_ns: u64,
}

impl<S: Stream> Lobby<S> {
    /// An empty one.
    pub fn new(settings: Settings) -> Self {
        Lobby { guests: heapless::Vec::new(), settings }
    }

    /// Whether one more may enter.
    pub fn has_room(&self) -> bool {
        !self.guests.is_full()
    }

    /// A socket was accepted. Without room it is dropped, which closes it.
    pub fn enter(&mut self, stream: S, now_ns: u64) {
        let deadline_ns = now_ns.saturating_add(self.settings.timeout_ns);
        let reader = HelloReader::new();
        let guest = Guest { stream, reader, hello: None, answered: 0, deadline_ns };
        if self.guests.push(guest).is_err() {
            warn!("{}: {GUESTS_MAX} sockets wait already; one is turned away", Side::Acceptor);
        }
    }

    /// Goes on as far as it can without waiting. `None`: call again.
    ///
    /// # Errors
    /// One socket that says no hello in time, or one that cannot be. It is closed, and so are
    /// those of its connection; others go on.
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

    /// Reads the hello of a guest, and judges it.
    fn listen_to(&mut self, at: usize, now_ns: u64) -> Result<(), Error> {
        let guest = &mut self.guests[at];
        if guest.hello.is_none() {
            guest.hello = guest.reader.read(&mut guest.stream, Stage::Recv)?;
            if let Some(hello) = guest.hello.clone() {
                self.judge(at, &hello)?;
            }
        }
        let guest = &self.guests[at];
        if now_ns < guest.deadline_ns {
            return Ok(());
        }
        match &guest.hello {
            None => {
                let (got, want) = guest.reader.progress();
                Err(Error::Timeout { stage: Stage::Recv, got, want })
            }
            Some(hello) => {
                let came = self.of_session(hello.session).count() as u16;
                Err(Error::Hello(HelloError::Missing { came, of: hello.sockets }))
            }
        }
    }

    /// Whether a hello fits those of the same connection.
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

    /// Answers the connection whose control socket stands `at`, if all its sockets are there.
    fn complete(&mut self, at: usize) -> Result<Option<Links<S>>, Error> {
        let Some(hello) = self.guests[at].hello.clone().filter(|hello| hello.index == 0) else {
            return Ok(None);
        };
        if self.of_session(hello.session).count() < usize::from(hello.sockets) {
            return Ok(None);
        }
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

    /// The sockets of a connection that is whole.
    fn take_out(&mut self, session: u64, ends: Ends) -> Option<Links<S>> {
        let mut sockets = heapless::Vec::<(u16, S), SOCKETS_MAX>::new();
        let is_of =
            |guest: &Guest<S>| guest.hello.as_ref().filter(|h| h.session == session).is_some();
        while let Some(at) = self.guests.iter().position(is_of) {
            let guest = self.guests.swap_remove(at);
            let index = guest.hello.map_or(0, |hello| hello.index);
            // As many as there are indices, which all differ.
            let _ = sockets.push((index, guest.stream));
        }
        sockets.sort_unstable_by_key(|(index, _)| *index);
        Links::gather(sockets.into_iter().map(|(_, stream)| stream), ends)
    }

    /// Turns a guest away, and whoever is of its connection.
    fn refuse(&mut self, at: usize, error: Error) -> Refused {
        let ends = self.ends(at);
        let guest = self.guests.swap_remove(at);
        // One that says what another has said may be a stranger.
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

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.ends.report(self.error).fmt(f)
    }
}

impl core::error::Error for Refused {}
