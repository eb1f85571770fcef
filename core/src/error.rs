//! What can go wrong on a connection, and whose fault it is.
//!
//! An [`Error`] is small, since data-path calls return it; [`Report`] joins it with both ends,
//! the device and what to try.

mod completion;
mod report;

use core::fmt;

pub use completion::{CompletionError, hint, status_name};
pub use report::{Ends, Report};

use crate::auth::AuthError;
use crate::conn::StreamError;
use crate::conn::stage::{Side, Stage};
use crate::conn::wire::{PrefaceError, QpInfoError};
use crate::nic::{LinkLayer, NicError};
use crate::socket::{FrameError, HelloError};

/// Why a call on a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A call that this state does not allow.
    State {
        /// The call: `connect`, `accept`.
        call: Side,
        /// Where the connection is.
        stage: Stage,
    },
    /// A setting or argument out of its range; says which and what is allowed.
    Argument(&'static str),
    /// A token that names no live request of this comm.
    UnknownRequest(u32),
    /// A message or buffer longer than a slot can say (2³¹ − 1 bytes).
    TooLong(u32),
    /// A send longer than its receive: the two sides disagree about the operation.
    SizeMismatch {
        /// Bytes to send.
        local: u32,
        /// Bytes that the receiver has room for.
        remote: u32,
        /// The message's tag.
        tag: u32,
    },
    /// The NIC refused a call.
    Nic(NicError),
    /// A work request ended in error.
    Completion(CompletionError),
    /// The TCP connection failed while connecting.
    Stream {
        /// Where the connection was.
        stage: Stage,
        /// What happened.
        error: StreamError,
        /// Bytes of the peer's message that had come.
        got: u16,
        /// Bytes of the whole message.
        want: u16,
    },
    /// The peer did not get on with connecting in time.
    Timeout {
        /// Where the connection was.
        stage: Stage,
        /// Bytes of the peer's message that had come.
        got: u16,
        /// Bytes of the whole message.
        want: u16,
    },
    /// The peer closed its end of an established connection, or its host is gone.
    PeerClosed(StreamError),
    /// The peer sent bytes over TCP after the end of the exchange.
    Unexpected,
    /// The two ends could not prove themselves to each other.
    Auth(AuthError),
    /// The peer speaks something else.
    Preface(PrefaceError),
    /// The peer's QP info cannot be.
    QpInfo(QpInfoError),
    /// The ready word was not 1.
    Ready([u8; 4]),
    /// What the peer says on a socket of the socket transport is no hello, or one that cannot be.
    Hello(HelloError),
    /// The peer sent a frame that no working peer sends.
    Frame(FrameError),
    /// One end is InfiniBand, the other Ethernet.
    LinkLayer {
        /// This end.
        ours: LinkLayer,
        /// The peer.
        theirs: LinkLayer,
    },
    /// This end's packets must carry tags, and the peer's do not.
    PacketAuth,
    /// A FIFO slot that no working receiver writes.
    Slot {
        /// Which field is wrong.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Which receive.
        idx: u64,
    },
    /// The peer reports more bytes than the receive has room for.
    Overrun {
        /// Bytes reported.
        got: u32,
        /// Bytes posted.
        posted: u32,
    },
    /// A completion of no request that is under way.
    UnknownCompletion {
        /// Its `wr_id`.
        wr_id: u64,
        /// Its queue pair.
        qpn: u32,
    },
}

/// Whose fault an [`Error`] is, and so where to look first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller of this API.
    Usage,
    /// This host: memory, device, limits.
    Local,
    /// The peer works, but differently.
    Incompatible,
    /// The peer misbehaved or died.
    Peer,
    /// What lies between, or a peer that is not reachable.
    Network,
}

impl Error {
    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::State { .. }
            | Error::Argument(_)
            | Error::UnknownRequest(_)
            | Error::TooLong(_)
            | Error::SizeMismatch { .. } => ErrorKind::Usage,
            Error::Nic(_) | Error::UnknownCompletion { .. } => ErrorKind::Local,
            Error::Completion(c) => c.kind(),
            Error::Stream { error: StreamError::Os(_), .. } | Error::Timeout { .. } => {
                ErrorKind::Network
            }
            Error::Hello(HelloError::Missing { .. }) => ErrorKind::Network,
            Error::Stream { error: StreamError::Closed, .. }
            | Error::PeerClosed(_)
            | Error::Unexpected
            | Error::QpInfo(_)
            | Error::Ready(_)
            | Error::Frame(_)
            | Error::Slot { .. }
            | Error::Overrun { .. } => ErrorKind::Peer,
            Error::Auth(AuthError::Stream(_)) => ErrorKind::Network,
            Error::Auth(_)
            | Error::Preface(_)
            | Error::Hello(_)
            | Error::LinkLayer { .. }
            | Error::PacketAuth => ErrorKind::Incompatible,
        }
    }

    /// Whether the comm is of no more use after it.
    pub fn is_fatal(&self) -> bool {
        self.kind() != ErrorKind::Usage
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::State { call, stage } => write!(f, "{call} called in state {stage}"),
            Error::Argument(what) => f.write_str(what),
            Error::UnknownRequest(raw) => {
                write!(f, "request {raw:#x} is not under way on this comm (done already?)")
            }
            Error::TooLong(size) => {
                write!(f, "{size} bytes are more than a message may have ({})", i32::MAX)
            }
            Error::SizeMismatch { local, remote, tag } => write!(
                f,
                "collective mismatch: a send of {local} bytes meets a receive of {remote} bytes \
                 (tag {tag:#x})"
            ),
            Error::Nic(error) => error.fmt(f),
            Error::Completion(error) => error.fmt(f),
            Error::Stream { stage, error, got, want } => {
                write!(f, "{error} in state {stage}")?;
                received(f, *got, *want)
            }
            Error::Timeout { stage, got, want } => {
                write!(f, "the peer did not answer in time in state {stage}")?;
                received(f, *got, *want)
            }
            Error::PeerClosed(error) => write!(f, "{error}; the peer has closed or is dead"),
            Error::Unexpected => {
                f.write_str("the peer sent bytes over TCP after the end of the exchange")
            }
            Error::Auth(error) => write!(f, "no proof of who the peer is: {error}"),
            Error::Preface(error) => write!(f, "incompatible peer: {error}"),
            Error::QpInfo(error) => write!(f, "the peer's QP info cannot be: {error}"),
            Error::Ready(got) => write!(f, "the peer's ready word is {got:02x?}, not 1"),
            Error::Hello(error) => write!(f, "incompatible peer: {error}"),
            Error::Frame(error) => error.fmt(f),
            Error::LinkLayer { ours, theirs } => {
                write!(f, "this port is {ours:?}, the peer's is {theirs:?}: choose others")
            }
            Error::PacketAuth => f.write_str(
                "the peer does not authenticate its packets, and this side insists on it \
                 (INVAR_SOFT_AUTH=1): set INVAR_SOFT_AUTH=1 on both sides and have both use the \
                 software NIC, or unset it here",
            ),
            Error::Slot { what, value, idx } => {
                write!(f, "the peer posted receive {idx} with {what} {value:#x}")
            }
            Error::Overrun { got, posted } => {
                write!(f, "the peer reports {got} bytes in a receive of {posted}")
            }
            Error::UnknownCompletion { wr_id, qpn } => {
                write!(f, "completion with wr_id {wr_id:#x} on QP {qpn:#x} is of no request")
            }
        }
    }
}

impl core::error::Error for Error {}

impl From<NicError> for Error {
    fn from(error: NicError) -> Self {
        Error::Nic(error)
    }
}

/// How much of a message came, where one was awaited.
fn received(f: &mut fmt::Formatter<'_>, got: u16, want: u16) -> fmt::Result {
    if want == 0 { Ok(()) } else { write!(f, " ({got} of {want} bytes received)") }
}
