//! Non-blocking messages over a TCP connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use invar_core::auth::Session;
use invar_core::conn::{Stream, StreamError};
use invar_core::rendezvous::{
    FrameError, Incoming, RendezvousHeader, RendezvousMessage, Seal, Speaker,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::TICK;
use crate::tcp::OobStream;
use crate::unix::wait;

/// The reason why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("its connection was closed: its process has ended, or was killed")]
    Closed,
    #[error("its connection broke: {0}")]
    Os(io::Error),
    #[error("it sent an invalid message: {0}")]
    Frame(#[from] FrameError),
    #[error("a message failed its authentication: it was changed on the way, or is a stranger's")]
    Forged,
}

impl From<StreamError> for Lost {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Os(errno) => Lost::Os(io::Error::from_raw_os_error(errno)),
            _ => Lost::Closed,
        }
    }
}

/// One end of an authenticated connection between a rank and the hub.
#[derive(Debug)]
pub(super) struct Connection {
    stream: OobStream,
    incoming: Incoming,
    /// The unsent bytes.
    out: Vec<u8>,
    /// `ours` seals the messages of this end, `theirs` those of the other end.
    ours: Seal,
    theirs: Seal,
}

impl Connection {
    /// Makes the end of `speaker`.
    pub(super) fn new(stream: OobStream, session: &Session, speaker: Speaker) -> Self {
        let other = match speaker {
            Speaker::Hub => Speaker::Rank,
            Speaker::Rank => Speaker::Hub,
        };
        let (ours, theirs) = (Seal::new(session, speaker), Seal::new(session, other));
        Connection { stream, incoming: Incoming::default(), out: Vec::new(), ours, theirs }
    }

    /// Makes another handle of this end, so that one thread can send while another receives. From now on
    /// this handle sends, and the other one receives.
    pub(super) fn receiver(&mut self) -> io::Result<Self> {
        Ok(Connection {
            stream: self.stream.try_clone()?,
            incoming: std::mem::take(&mut self.incoming),
            out: Vec::new(),
            ours: self.ours.clone(),
            theirs: self.theirs.clone(),
        })
    }

    /// Gives up the other end if its host is silent for `silence`.
    pub(super) fn bear_silence(&mut self, silence: Duration) {
        // If the connection is gone, receiving will show it.
        let _ = self.stream.bear_silence(silence);
    }

    /// The stream, for what the kernel knows about it.
    pub(super) fn stream(&self) -> &OobStream {
        &self.stream
    }

    /// Receives available bytes until a message is complete.
    pub(super) fn recv(&mut self) -> Result<Option<(RendezvousHeader, Vec<u8>)>, Lost> {
        loop {
            let n = self.stream.recv(self.incoming.space())?;
            if n == 0 {
                return Ok(None);
            }
            if let Some((header, body)) = self.incoming.filled(n)? {
                let body = self.theirs.open(header, body).ok_or(Lost::Forged)?;
                return Ok(Some((header, body.to_vec())));
            }
        }
    }

    /// Queues a message behind the unsent ones, and sends as much as fits now. [`flush`](Self::flush) or
    /// [`drain`](Self::drain) sends the rest.
    pub(super) fn send(&mut self, header: RendezvousHeader, body: &[u8]) -> Result<(), Lost> {
        let (header, tag) = self.ours.seal(header, body);
        self.out.extend_from_slice(&header);
        self.out.extend_from_slice(body);
        self.out.extend_from_slice(&tag);
        self.flush()
    }

    pub(super) fn say(&mut self, message: &RendezvousMessage) -> Result<(), Lost> {
        self.send(message.header, &message.body)
    }

    /// Sends as much as fits now.
    pub(super) fn flush(&mut self) -> Result<(), Lost> {
        while !self.out.is_empty() {
            match self.stream.send(&self.out)? {
                0 => break,
                n => _ = self.out.drain(..n),
            }
        }
        Ok(())
    }

    /// Sends the rest, and waits for room while `go_on` returns true. The kernel ends the connection if
    /// the peer makes no room for the time of [`bear_silence`](Self::bear_silence).
    pub(super) fn drain(&mut self, go_on: impl Fn() -> bool) -> Result<(), Lost> {
        while !self.out.is_empty() && go_on() {
            wait(&mut [PollFd::new(&*self, PollFlags::OUT)], TICK).map_err(Lost::Os)?;
            self.flush()?;
        }
        Ok(())
    }

    /// Returns the number of unsent bytes.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.out.len()
    }

    /// Whether the other end sends no more.
    pub(super) fn has_ended(&self) -> bool {
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds[0].revents().intersects(ends)
    }

    /// Ends sending and receiving.
    pub(super) fn shutdown(&self) {
        self.stream.shutdown();
    }

    /// Returns the events to wait for; `receives` says whether this end receives more.
    pub(super) fn interest(&self, receives: bool) -> PollFlags {
        let mut interest = if receives { PollFlags::IN } else { PollFlags::RDHUP };
        interest.set(PollFlags::OUT, !self.out.is_empty());
        interest
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
