//! The error of the library, in words for people.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use invar_core::auth::AuthError;
use invar_core::conn::{HandleError, StreamError};
use invar_core::error::{Ends, Error as CoreError, ErrorKind, Report};
use invar_core::mr_cache::MrCacheError;
use invar_core::nic::{NicError, WcStatus};
use invar_core::rendezvous::UniqueIdError;
use invar_cuda::{CudaError, MemoryError, NoCuda};
use invar_linux::interface::NoInterface;
use invar_linux::memory::OutOfRange;
use invar_linux::rendezvous::{BootstrapError, Failure};

/// An error of this library. Its display is one line that names what failed, where, and why.
///
/// A program can ask an error what it needs to go on: [`kind`](Error::kind) says whose fault it is,
/// [`is_connection_lost`](Error::is_connection_lost) whether to connect again, and
/// [`is_timeout`](Error::is_timeout) whether to wait longer.
///
/// ```
/// use invar::{Device, ErrorKind};
///
/// let error = Device::open("no such device").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Usage);
/// assert!(!error.is_connection_lost() && !error.is_timeout());
/// ```
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    cause: Kind,
    about: About,
}

/// Facts about an error that stay when a rank's number is put in front of it.
#[derive(Clone, Debug, Default)]
struct About {
    device: Option<String>,
    peer: Option<SocketAddr>,
    is_connection_lost: bool,
    is_timeout: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Kind {
    /// A variable with a value that is not allowed: its name, the value, and the allowed ones.
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
    #[error("opening {name}: {source}")]
    Provided { name: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(transparent)]
    Range(#[from] OutOfRange),
    #[error(transparent)]
    MrCache(#[from] MrCacheError),
    #[error(transparent)]
    Handle(#[from] HandleError),
    #[error(transparent)]
    UniqueId(#[from] UniqueIdError),
    #[error(transparent)]
    NoCuda(#[from] NoCuda),
    #[error(transparent)]
    Gpu(#[from] MemoryError),
    #[error("{text}")]
    Staging { kind: ErrorKind, text: String },
    #[error("{text}")]
    Connection {
        #[source]
        error: CoreError,
        text: String,
        device: String,
        peer: Option<SocketAddr>,
    },
    /// This rank's end of a link failed, through no fault of the peer.
    #[error("{text}")]
    Link { kind: ErrorKind, text: String },
    #[error("rank {rank}: {text}")]
    Rank { rank: u32, text: String },
    /// A rank did not do its part in time. The rank is the one that this rank waited for, or the one at fault.
    #[error("rank {rank}: {text}")]
    SilentRank { rank: u32, text: String },
    /// Ranks make different calls. The rank is the one at fault, or the peer.
    #[error("{text}")]
    Mismatch { rank: u32, text: String },
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error("the communicator was aborted")]
    Aborted,
    /// A wait for a peer, or on a connection, took longer than its caller allows.
    #[error("{text}")]
    TimedOut { text: String, device: String, peer: Option<SocketAddr> },
}

impl Error {
    /// Whose fault the error is: the caller's, this host's, the peer's, or the network's.
    pub fn kind(&self) -> ErrorKind {
        match &self.0.cause {
            Kind::Setting(_)
            | Kind::Usage(_)
            | Kind::NoDevice { .. }
            | Kind::Range(_)
            | Kind::MrCache(_)
            | Kind::Handle(_)
            | Kind::UniqueId(_) => ErrorKind::Usage,
            Kind::NoInterface(_)
            | Kind::Io { .. }
            | Kind::Rdma(_)
            | Kind::Nic { .. }
            | Kind::Provided { .. } => ErrorKind::Local,
            Kind::Gpu(MemoryError::Range(_) | MemoryError::Busy(_)) => ErrorKind::Usage,
            Kind::Gpu(MemoryError::Cuda(_)) | Kind::NoCuda(_) => ErrorKind::Local,
            Kind::Staging { kind, .. } | Kind::Link { kind, .. } => *kind,
            Kind::Connection { error, .. } => error.kind(),
            Kind::Rank { .. }
            | Kind::SilentRank { .. }
            | Kind::Mismatch { .. }
            | Kind::Bootstrap(BootstrapError::Failed(_)) => ErrorKind::Peer,
            Kind::Bootstrap(BootstrapError::Io(_)) => ErrorKind::Local,
            Kind::Bootstrap(_) => ErrorKind::Network,
            Kind::Aborted => ErrorKind::Local,
            Kind::TimedOut { .. } => ErrorKind::Network,
        }
    }

    /// The rank of the communicator that the error is about.
    pub fn rank(&self) -> Option<u32> {
        match &self.0.cause {
            Kind::Rank { rank, .. }
            | Kind::SilentRank { rank, .. }
            | Kind::Mismatch { rank, .. }
            | Kind::Bootstrap(BootstrapError::TimedOut { from: rank, .. }) => Some(*rank),
            Kind::Bootstrap(BootstrapError::Failed(failure)) => failure.rank,
            _ => None,
        }
    }

    /// The TCP address of the peer, or of the rendezvous, that the error is about.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.0.about.peer
    }

    /// The name of this host's device that the error is about, as [`DeviceInfo`](crate::DeviceInfo)
    /// has it.
    pub fn device(&self) -> Option<&str> {
        self.0.about.device.as_deref()
    }

    /// Whether the connection, or the communicator, has ended or never came about. Each later call
    /// on it fails too. To go on, a program connects or joins again.
    pub fn is_connection_lost(&self) -> bool {
        self.0.about.is_connection_lost
    }

    /// Whether a peer or a rank did not answer within the time that the caller, a setting, or the
    /// network allows.
    pub fn is_timeout(&self) -> bool {
        self.0.about.is_timeout
    }

    /// The protocol's own error, if a connection failed.
    pub fn connection(&self) -> Option<&CoreError> {
        match &self.0.cause {
            Kind::Connection { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Whether this end has found that the other end makes a different call, such as one of another length.
    pub(crate) fn is_mismatch(&self) -> bool {
        matches!(self.connection(), Some(CoreError::SizeMismatch { .. }))
            || matches!(&self.0.cause, Kind::Mismatch { .. })
    }

    /// Returns the kind of an error that this rank's program or host has caused, whatever the peer does.
    fn own_kind(&self) -> Option<ErrorKind> {
        match &self.0.cause {
            Kind::Setting(_) | Kind::Usage(_) => Some(ErrorKind::Usage),
            Kind::Io { .. } | Kind::Nic { .. } | Kind::Provided { .. } => Some(ErrorKind::Local),
            Kind::Connection { error, .. } => is_of_host(error).then_some(ErrorKind::Local),
            _ => None,
        }
    }

    /// Puts the rank at the other end of a link in front of the error. The error is about that rank, unless this rank
    /// has caused it.
    #[cold]
    pub(crate) fn of_rank(&self, rank: u32) -> Self {
        let text = self.to_string();
        let cause = match self.own_kind() {
            _ if self.is_mismatch() => {
                Kind::Mismatch { rank, text: format!("rank {rank}: {text}") }
            }
            Some(kind) => Kind::Link { kind, text: format!("link with rank {rank}: {text}") },
            None => Kind::Rank { rank, text },
        };
        let about = About { is_connection_lost: true, ..self.0.about.clone() };
        Error(Box::new(Inner { cause, about }))
    }

    /// Adds the verdict on the stall that preceded this error.
    #[cold]
    pub(crate) fn after(mut self, verdict: &str) -> Self {
        if let Kind::Connection { text, .. }
        | Kind::Link { text, .. }
        | Kind::Rank { text, .. }
        | Kind::SilentRank { text, .. } = &mut self.0.cause
        {
            *text += &format!("; before that: {verdict}");
        }
        self
    }

    /// Replaces the rank and the text of a mismatch.
    #[cold]
    pub(crate) fn explained(mut self, rank: u32, text: String) -> Self {
        self.0.cause = Kind::Mismatch { rank, text };
        self
    }

    /// Marks the error as one that ends its connection.
    #[cold]
    pub(crate) fn ending_connection(mut self) -> Self {
        self.0.about.is_connection_lost = true;
        self
    }

    /// Replaces the line that a connection's error displays.
    pub(crate) fn reworded(mut self, line: String) -> Self {
        if let Kind::Connection { text, .. } = &mut self.0.cause {
            *text = line;
        }
        self
    }

    pub(crate) fn reported(error: CoreError, report: Report<'_>) -> Self {
        let Ends { device, peer, .. } = report.ends();
        let (device, peer) = (device.as_str().to_owned(), *peer);
        Kind::Connection { error, text: report.to_string(), device, peer }.into()
    }

    /// An error of a wait that took too long, with the verdict on the stall if there is one. `what` names the
    /// request.
    #[cold]
    pub(crate) fn timed_out(ends: &Ends, what: &str, within: Duration) -> Self {
        let why = match ends.stall {
            Some(verdict) => verdict.to_string(),
            None => format!(
                "`invar inspect {}` shows what this end waits for, and on the peer's host what the other end does",
                std::process::id()
            ),
        };
        let text =
            format!("{ends}: {what} was not complete within {} ms: {why}", within.as_millis());
        let (device, peer) = (ends.device.as_str().to_owned(), ends.peer);
        Kind::TimedOut { text, device, peer }.into()
    }

    #[cold]
    pub(crate) fn foreign_request() -> Self {
        let text = "this request is of another connection end: test it at the `SendComm` or `RecvComm` that \
                    returned it";
        Kind::Usage(text.to_owned()).into()
    }

    pub(crate) fn io(what: impl fmt::Display, source: io::Error) -> Self {
        Kind::Io { what: what.to_string(), source }.into()
    }

    /// An error of a connection that did not even begin.
    pub(crate) fn unreached(device: &str, peer: SocketAddr, error: CoreError) -> Self {
        let text = format!("{device} to peer {peer}: {error}");
        Kind::Connection { error, text, device: device.to_owned(), peer: Some(peer) }.into()
    }

    /// An error of the rendezvous.
    pub(crate) fn bootstrap(error: BootstrapError) -> Self {
        Kind::Bootstrap(error).into()
    }

    /// Why the communicator has ended.
    pub(crate) fn failure(failure: Failure) -> Self {
        Self::bootstrap(BootstrapError::Failed(failure))
    }
}

impl About {
    fn of(cause: &Kind) -> Self {
        let device = match cause {
            Kind::Connection { device, .. }
            | Kind::TimedOut { device, .. }
            | Kind::Nic { device, .. } => Some(device.clone()),
            Kind::Provided { name, .. } => Some(name.clone()),
            _ => None,
        };
        let peer = match cause {
            Kind::Connection { peer, .. } | Kind::TimedOut { peer, .. } => *peer,
            Kind::Bootstrap(
                BootstrapError::Join { addr, .. } | BootstrapError::Auth { addr, .. },
            ) => Some(*addr),
            _ => None,
        };
        let is_connection_lost = match cause {
            Kind::Connection { error, .. } => error.is_fatal(),
            Kind::Rank { .. }
            | Kind::SilentRank { .. }
            | Kind::Mismatch { .. }
            | Kind::Bootstrap(_) => true,
            _ => false,
        };
        let is_timeout = match cause {
            Kind::TimedOut { .. }
            | Kind::SilentRank { .. }
            | Kind::Bootstrap(BootstrapError::TimedOut { .. }) => true,
            Kind::Io { source, .. } | Kind::Bootstrap(BootstrapError::Io(source)) => {
                source.kind() == io::ErrorKind::TimedOut
            }
            Kind::Connection { error, .. } => is_silence(error),
            _ => false,
        };
        About { device, peer, is_connection_lost, is_timeout }
    }
}

/// Whether a connection failed because the peer did not answer in time.
fn is_silence(error: &CoreError) -> bool {
    match error {
        CoreError::Timeout { .. } | CoreError::Port { .. } => true,
        CoreError::Completion(error) => {
            matches!(error.status, WcStatus::RETRY_EXC_ERR | WcStatus::RESP_TIMEOUT_ERR)
        }
        CoreError::Stream { error: StreamError::Os(errno), .. }
        | CoreError::PeerClosed(StreamError::Os(errno)) => {
            io::Error::from_raw_os_error(*errno).kind() == io::ErrorKind::TimedOut
        }
        _ => false,
    }
}

/// Whether a connection failed because this host lacks memory or descriptors. Other refusals of a NIC may come from the
/// network or the peer, which break queue pairs.
fn is_of_host(error: &CoreError) -> bool {
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ENOBUFS: i32 = 105;
    let errno = match error {
        CoreError::Nic(error) => error.errno,
        CoreError::Stream { error: StreamError::Os(errno), .. }
        | CoreError::PeerClosed(StreamError::Os(errno))
        | CoreError::Auth(AuthError::Stream(StreamError::Os(errno))) => *errno,
        _ => return false,
    };
    matches!(errno, ENOMEM | ENFILE | EMFILE | ENOBUFS)
}

impl From<Kind> for Error {
    fn from(cause: Kind) -> Self {
        let about = About::of(&cause);
        Error(Box::new(Inner { cause, about }))
    }
}

impl From<HandleError> for Error {
    fn from(error: HandleError) -> Self {
        Kind::Handle(error).into()
    }
}

impl From<UniqueIdError> for Error {
    fn from(error: UniqueIdError) -> Self {
        Kind::UniqueId(error).into()
    }
}

impl From<NoCuda> for Error {
    fn from(error: NoCuda) -> Self {
        Kind::NoCuda(error).into()
    }
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Self {
        Kind::Gpu(error.into()).into()
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        Kind::Gpu(error).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.cause.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.0.cause)
    }
}

#[cfg(test)]
mod tests {
    use invar_core::nic::Verb;

    use super::*;

    fn connection(error: CoreError) -> Error {
        let (text, device) = (error.to_string(), "nic0".to_owned());
        Kind::Connection { error, text, device, peer: None }.into()
    }

    #[test]
    fn an_error_of_a_link_is_about_the_peer_unless_this_rank_has_caused_it() {
        let (nic, nofile) = (NicError::new(Verb::RegMr, 12, "no memory"), StreamError::Os(24));
        let own: [(Error, ErrorKind); 5] = [
            (Kind::Nic { device: "nic0".to_owned(), source: nic }.into(), ErrorKind::Local),
            (Error::io("a socket", io::Error::from_raw_os_error(24)), ErrorKind::Local),
            (Kind::Usage("no such device".to_owned()).into(), ErrorKind::Usage),
            (connection(CoreError::Nic(nic)), ErrorKind::Local),
            (connection(CoreError::PeerClosed(nofile)), ErrorKind::Local),
        ];
        for (error, kind) in own {
            let named = error.of_rank(3);
            assert_eq!((named.rank(), named.kind()), (None, kind), "{named}");
            assert_eq!(named.to_string(), format!("link with rank 3: {error}"));
            assert!(named.is_connection_lost(), "{named}");
        }
        let lost = connection(CoreError::PeerClosed(StreamError::Closed)).of_rank(3);
        assert_eq!((lost.rank(), lost.kind()), (Some(3), ErrorKind::Peer));
        let (local, remote) = (8, 4);
        let differs = connection(CoreError::SizeMismatch { local, remote, tag: 0 }).of_rank(3);
        assert!(differs.is_mismatch() && differs.rank() == Some(3), "{differs}");
    }
}
