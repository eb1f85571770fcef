//! What can go wrong, in words for people.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use invar_core::conn::HandleError;
use invar_core::error::{Error as CoreError, ErrorKind, Report};
use invar_core::mr_cache::MrCacheError;
use invar_core::nic::NicError;
use invar_cuda::{MemoryError, NoCuda};
use invar_linux::interface::NoInterface;
use invar_linux::memory::OutOfRange;
use invar_linux::rendezvous::{BootstrapError, Failure};

/// What went wrong, where, and with what; [`Error::kind`] says whose fault it is.
///
/// Displayed it is one line. What ended a connection names both of its ends.
#[derive(Debug)]
pub struct Error(Box<Kind>);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Kind {
    /// Of a variable: its name, value, and what is allowed.
    #[error("{0}")]
    Setting(String),
    #[error("{0}")]
    Usage(String),
    #[error("no device is called '{name}'; there is: {there_is}")]
    NoDevice { name: String, there_is: String },
    #[error(transparent)]
    NoInterface(#[from] NoInterface),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error(transparent)]
    Rdma(#[from] invar_verbs::OpenError),
    #[error("{device}: {source}")]
    Nic { device: String, source: NicError },
    #[error(transparent)]
    Range(#[from] OutOfRange),
    #[error(transparent)]
    MrCache(#[from] MrCacheError),
    #[error(transparent)]
    Handle(#[from] HandleError),
    #[error(transparent)]
    NoCuda(#[from] NoCuda),
    #[error(transparent)]
    Gpu(#[from] MemoryError),
    #[error("{text}")]
    Staging { kind: ErrorKind, text: String },
    #[error("{text}")]
    Connection { error: CoreError, text: String },
    #[error("rank {rank}: {text}")]
    Rank { rank: u32, text: String },
    /// The ranks do not do the same.
    #[error("rank {rank}: {text}")]
    Mismatch { rank: u32, text: String },
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error("the communicator was aborted")]
    Aborted,
    #[error("{what} did not come about within {} ms", .within.as_millis())]
    TimedOut { what: &'static str, within: Duration },
    #[error("a connection from a peer did not come about within {} ms{turned_away}", .within.as_millis())]
    NoPeer { within: Duration, turned_away: String },
}

impl Error {
    /// Whose fault it is: the caller's, this host's, the peer's, the network's.
    pub fn kind(&self) -> ErrorKind {
        match &*self.0 {
            Kind::Setting(_)
            | Kind::Usage(_)
            | Kind::NoDevice { .. }
            | Kind::Range(_)
            | Kind::MrCache(_)
            | Kind::Handle(_) => ErrorKind::Usage,
            Kind::NoInterface(_) | Kind::Io { .. } | Kind::Rdma(_) | Kind::Nic { .. } => {
                ErrorKind::Local
            }
            Kind::Gpu(MemoryError::Range(_) | MemoryError::Busy(_)) => ErrorKind::Usage,
            Kind::Gpu(MemoryError::Cuda(_)) | Kind::NoCuda(_) => ErrorKind::Local,
            Kind::Staging { kind, .. } => *kind,
            Kind::Connection { error, .. } => error.kind(),
            Kind::Rank { .. }
            | Kind::Mismatch { .. }
            | Kind::Bootstrap(BootstrapError::Failed(_)) => ErrorKind::Peer,
            Kind::Bootstrap(BootstrapError::Io(_)) => ErrorKind::Local,
            Kind::Bootstrap(_) => ErrorKind::Network,
            Kind::Aborted => ErrorKind::Local,
            Kind::TimedOut { .. } | Kind::NoPeer { .. } => ErrorKind::Network,
        }
    }

    /// What the protocol says, where it is about a connection.
    pub fn connection(&self) -> Option<&CoreError> {
        match &*self.0 {
            Kind::Connection { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Whether this end has found that the other does something else.
    pub(crate) fn is_mismatch(&self) -> bool {
        matches!(self.connection(), Some(CoreError::SizeMismatch { .. }))
            || matches!(&*self.0, Kind::Mismatch { .. })
    }

    /// The same, as one of a rank.
    #[cold]
    pub(crate) fn of_rank(&self, rank: u32) -> Self {
        let text = self.to_string();
        match self.is_mismatch() {
            true => Kind::Mismatch { rank, text }.into(),
            false => Kind::Rank { rank, text }.into(),
        }
    }

    pub(crate) fn reported(error: CoreError, report: Report<'_>) -> Self {
        Kind::Connection { error, text: report.to_string() }.into()
    }

    #[cold]
    pub(crate) fn foreign_request() -> Self {
        Kind::Usage("a request of another comm".to_owned()).into()
    }

    pub(crate) fn io(what: impl fmt::Display, source: io::Error) -> Self {
        Kind::Io { what: what.to_string(), source }.into()
    }

    /// A connection that did not even begin.
    pub(crate) fn unreached(device: &str, peer: SocketAddr, error: CoreError) -> Self {
        Kind::Connection { error, text: format!("{device} to peer {peer}: {error}") }.into()
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Self {
        Error(Box::new(kind))
    }
}

impl From<BootstrapError> for Error {
    fn from(error: BootstrapError) -> Self {
        Kind::Bootstrap(error).into()
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        BootstrapError::Failed(failure).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&*self.0)
    }
}
