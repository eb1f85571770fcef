//! Messages over a TCP connection, without blocking.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use invar_core::conn::{Stream, StreamError};
use invar_core::rendezvous::{FrameError, Header, Incoming, Message};
use rustix::event::PollFlags;

use crate::tcp::OobStream;

/// Bytes that may wait to be sent: who takes in nothing for so long is given up.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("its connection was closed: its process has ended, or was killed")]
    Closed,
    #[error("its connection broke: {0}")]
    Os(io::Error),
    #[error("it says what cannot be: {0}")]
    Frame(#[from] FrameError),
    #[error("it does not take in what it is told")]
    Deaf,
}

impl From<StreamError> for Lost {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Os(errno) => Lost::Os(io::Error::from_raw_os_error(errno)),
            _ => Lost::Closed,
        }
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: OobStream,
    incoming: Incoming,
    /// What is still to be sent.
    out: Vec<u8>,
}

impl Connection {
    pub(super) fn new(stream: OobStream) -> Self {
        Connection { stream, incoming: Incoming::default(), out: Vec::new() }
    }

    /// Receives what is there, until a message is whole.
    pub(super) fn recv(&mut self) -> Result<Option<(Header, Vec<u8>)>, Lost> {
        loop {
            let n = self.stream.recv(self.incoming.space())?;
            if n == 0 {
                return Ok(None);
            }
            if let Some((header, body)) = self.incoming.filled(n)? {
                return Ok(Some((header, body.to_vec())));
            }
        }
    }

    /// Puts a message behind those that are still to be sent, and sends what fits.
    pub(super) fn send(&mut self, header: Header, body: &[u8]) -> Result<(), Lost> {
        if self.out.len() > WAITING_BYTES_MAX {
            return Err(Lost::Deaf);
        }
        self.out.extend_from_slice(&header.to_bytes());
        self.out.extend_from_slice(body);
        self.flush()
    }

    pub(super) fn say(&mut self, message: &Message) -> Result<(), Lost> {
        self.send(message.header, &message.body)
    }

    /// Sends what fits.
    pub(super) fn flush(&mut self) -> Result<(), Lost> {
        while !self.out.is_empty() {
            match self.stream.send(&self.out)? {
                0 => break,
                n => _ = self.out.drain(..n),
            }
        }
        Ok(())
    }

    /// Says nothing more, and hears nothing more.
    pub(super) fn shutdown(&self) {
        self.stream.shutdown();
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        match self.out.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
