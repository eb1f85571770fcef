//! The errors of a connection, and the party that must look for the cause.
//!
//! An [`Error`] is small, since data-path calls return it. A [`Report`] joins an error with both ends,
//! the device and advice.

mod completion;
mod line;
mod recovery;
mod report;

use core::fmt;

pub(crate) use completion::give_up_ns;
pub use completion::{CompletionError, hint, status_name};
pub use line::LineError;
pub use recovery::{RailFaults, RecoveryError, Suspicion};
pub use report::{Ends, Report};

use crate::auth::AuthError;
use crate::conn::StreamError;
use crate::conn::stage::{Side, Stage};
use crate::conn::wire::{PrefaceError, QpInfoError};
use crate::nic::{LinkLayer, NicError};
use crate::socket::{HelloError, SocketFrameError};

/// The reason why a call on a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The connection's stage does not allow this call.
    State {
        /// The call: `connect`, `accept`.
        call: Side,
        /// Stage of the connection.
        stage: Stage,
    },
    /// A setting or argument is out of its range; the text names it and the allowed range.
    Argument(&'static str),
    /// The token names no live request of this comm.
    UnknownRequest(u32),
    /// A message or buffer is longer than a slot can express (2³¹ − 1 bytes).
    TooLong(u32),
    /// A send is longer than its receive: the two sides disagree about the operation.
    SizeMismatch {
        /// Bytes to send.
        local: u32,
        /// Bytes that the receiver has room for.
        remote: u32,
        /// Tag of the message.
        tag: u32,
    },
    /// The NIC refused a call.
    Nic(NicError),
    /// A work request ended in error.
    Completion(CompletionError),
    /// This end's port has a fault, and its queue pairs do not report what became of messages.
    Port {
        /// The port's fault.
        trouble: &'static str,
        /// Time in ms for which messages have waited.
        waited_ms: u64,
    },
    /// The TCP connection failed while connecting.
    Stream {
        /// Stage of the connection at that time.
        stage: Stage,
        /// The stream's error.
        error: StreamError,
        /// Number of bytes of the peer's message that had arrived.
        got: u16,
        /// Bytes of the whole message.
        want: u16,
    },
    /// The peer did not continue the setup before the deadline.
    Timeout {
        /// Stage of the connection at that time.
        stage: Stage,
        /// Number of bytes of the peer's message that had arrived.
        got: u16,
        /// Bytes of the whole message.
        want: u16,
    },
    /// The peer closed its end of an established connection, or its host is gone.
    PeerClosed(StreamError),
    /// A TCP connection, beside queue pairs or of the socket transport, was lost and could not be made anew.
    Line(LineError),
    /// The peer's end of the connection has failed.
    PeerFailed,
    /// The peer sent bytes over TCP that are no message, or that make no sense.
    Unexpected,
    /// New queue pairs did not work either.
    Recovery(RecoveryError),
    /// The NIC reported a message as delivered, and the peer has not received it.
    NotDelivered {
        /// Number of the peer's receive, counted from 1.
        idx: u64,
    },
    /// The two ends could not prove themselves to each other.
    Auth(AuthError),
    /// The peer's preface is incompatible with this end.
    Preface(PrefaceError),
    /// The peer's QP info has an impossible value.
    QpInfo(QpInfoError),
    /// The ready word was not 1.
    Ready([u8; 4]),
    /// The peer's bytes on a socket of the socket transport are no hello, or a hello with impossible
    /// values.
    Hello(HelloError),
    /// The peer sent a frame that no working peer sends.
    Frame(SocketFrameError),
    /// One end is InfiniBand, the other Ethernet.
    LinkLayer {
        /// Link layer of this end.
        ours: LinkLayer,
        /// Link layer of the peer.
        theirs: LinkLayer,
    },
    /// This end's packets must carry tags, but the peer's packets carry none.
    PacketAuth,
    /// The peer wrote a FIFO slot that no working receiver writes.
    Slot {
        /// The wrong field.
        what: &'static str,
        /// The field's value.
        value: u64,
        /// `idx` of the receive.
        idx: u64,
    },
    /// The peer reports more bytes than the receive has room for.
    Overrun {
        /// Number of bytes reported.
        got: u32,
        /// Number of bytes posted.
        posted: u32,
    },
    /// A completion belongs to no request under way.
    UnknownCompletion {
        /// The completion's `wr_id`.
        wr_id: u64,
        /// Number of the completion's queue pair.
        qpn: u32,
    },
}

/// The party that caused an [`Error`], and so the place to look first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller of this API.
    Usage,
    /// This host: memory, device, limits.
    Local,
    /// A peer that works, but with another protocol or other settings.
    Incompatible,
    /// A peer that misbehaved or died.
    Peer,
    /// The network between the ends, or a peer that cannot be reached.
    Network,
}

impl Error {
    /// The party that caused the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::State { .. }
            | Error::Argument(_)
            | Error::UnknownRequest(_)
            | Error::TooLong(_)
            | Error::SizeMismatch { .. } => ErrorKind::Usage,
            Error::Nic(_)
            | Error::Port { .. }
            | Error::UnknownCompletion { .. }
            | Error::NotDelivered { .. } => ErrorKind::Local,
            Error::Completion(c) => c.kind(),
            Error::Stream { error: StreamError::Os(_), .. } | Error::Timeout { .. } => {
                ErrorKind::Network
            }
            Error::Recovery(_) | Error::Line(_) => ErrorKind::Network,
            Error::Hello(HelloError::Missing { .. }) => ErrorKind::Network,
            Error::Stream { error: StreamError::Closed, .. }
            | Error::PeerClosed(_)
            | Error::PeerFailed
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

    /// Returns whether the peer's end is gone. What it sent before counts.
    pub(crate) fn is_peer_gone(&self) -> bool {
        matches!(self, Error::PeerClosed(_) | Error::Line(_) | Error::PeerFailed)
    }

    /// Returns whether the comm is unusable after this error.
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
                "a send of {local} bytes meets a receive of {remote} bytes (tag {tag:#x}): both ends must \
                 agree on length and tag"
            ),
            Error::Nic(error) => error.fmt(f),
            Error::Completion(error) => error.fmt(f),
            Error::Port { trouble, waited_ms } => write!(
                f,
                "messages have waited for {:.1} s, longer than queue pairs try; look at this end first: \
                 {trouble}",
                *waited_ms as f32 / 1e3
            ),
            Error::Stream { stage, error, got, want } => {
                write!(f, "{error} at stage {stage} of the handshake")?;
                received(f, *got, *want)?;
                f.write_str(match error {
                    StreamError::Os(101 | 113) => "; check the route and NCCL_SOCKET_IFNAME",
                    StreamError::Os(110 | 112) if *stage == Stage::Connect => UNREACHED,
                    StreamError::Os(110 | 112) => "; the host is down or cut off",
                    StreamError::Os(111) => {
                        "; nobody listens there: does the listener's process still run?"
                    }
                    StreamError::Os(_) | StreamError::Closed => "",
                })
            }
            Error::Timeout { stage, got, want } => {
                write!(f, "the peer did not answer in time at stage {stage} of the handshake")?;
                received(f, *got, *want)?;
                f.write_str(if *stage == Stage::Connect { UNREACHED } else { UNANSWERED })
            }
            Error::PeerClosed(error) => write!(f, "{error}; the peer has closed or is dead"),
            Error::Line(error) => error.fmt(f),
            Error::PeerFailed => {
                f.write_str("the peer's end has failed: its error says why, look at its log")
            }
            Error::Recovery(error) => error.fmt(f),
            Error::NotDelivered { idx } => write!(
                f,
                "the NIC reported message {idx} as delivered, but the peer has not received it: \
                 its bytes are lost; check that firmware and driver of both NICs are current"
            ),
            Error::Unexpected => {
                f.write_str("the peer sent bytes over TCP that make no sense after the handshake")
            }
            Error::Auth(error) => write!(f, "no proof of who the peer is: {error}"),
            Error::Preface(error) => write!(f, "incompatible peer: {error}"),
            Error::QpInfo(error) => write!(f, "the peer's QP info is invalid: {error}"),
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

/// Advice if TCP does not reach the peer.
const UNREACHED: &str = "; the host is down, or a firewall drops TCP to that port (INVAR_PORT_RANGE, \
                         INVAR_CONNECT_TIMEOUT_MS)";
/// Advice if TCP has reached the peer, and the peer says nothing.
const UNANSWERED: &str = "; TCP had reached its host: do host and program still run, and does the program \
                          poll the connection (INVAR_CONNECT_TIMEOUT_MS)?";

/// Writes how much of a message arrived, if the connection awaited one.
fn received(f: &mut fmt::Formatter<'_>, got: u16, want: u16) -> fmt::Result {
    if want == 0 { Ok(()) } else { write!(f, " ({got} of {want} bytes received)") }
}
