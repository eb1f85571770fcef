//! Errors of a rank's connection to the hub.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use invar_core::auth::AuthError;

/// The reason why a communicator cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{text}", Rank(*.reporter))]
pub struct Failure {
    /// The rank that caused the failure, as far as its reporter knows; `None` if no rank did.
    pub rank: Option<u32>,
    /// The rank that failed first and told the others; `None` if no rank did.
    pub reporter: Option<u32>,
    /// The reason in words.
    pub text: String,
}

struct Rank(Option<u32>);

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |rank| write!(f, "rank {rank}: "))
    }
}

/// The reason why a rank could not join or receive.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The rank could not join.
    #[error("rank {rank} joining at {addr}: {text}")]
    Join {
        /// The rank that tried to join.
        rank: u32,
        /// Address of the rendezvous.
        addr: SocketAddr,
        /// The reason why the rank could not join.
        text: String,
    },
    /// The rank and the hub could not authenticate to each other.
    #[error("the rendezvous at {addr}: {error}")]
    Auth {
        /// Address of the rendezvous.
        addr: SocketAddr,
        /// The reason why one end did not accept the other.
        error: AuthError,
    },
    /// A rank has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// This host's system returned an error.
    #[error("a rendezvous: {0}")]
    Io(#[from] io::Error),
    /// No blob came in time.
    #[error("rank {from} said nothing for {within:?}")]
    TimedOut {
        /// The rank that sent nothing.
        from: u32,
        /// The time that this rank waited.
        within: Duration,
    },
}
