//! Connects a rank to the hub.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use invar_core::auth::Service;
use invar_core::conn::StreamError;
use invar_core::rendezvous::{Speaker, UniqueId};

use super::connection::{Connection, Lost};
use super::error::BootstrapError;
use crate::tcp::{self, OobStream};

/// Interval between two attempts to reach a hub that does not listen yet.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// The reason why there is no connection to the hub.
pub(super) enum Unreached {
    /// The hub's host is alive and refuses the connection.
    Nobody,
    /// No packet comes there.
    Os(io::Error),
    Lost(Lost),
}

/// Connects to the hub; retries while nobody listens there, or while no network leads there yet.
pub(super) fn connect(addr: SocketAddr, deadline: Instant) -> Result<OobStream, Unreached> {
    loop {
        let error = match OobStream::connect_by(addr, deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let is_refused = error == StreamError::Os(libc::ECONNREFUSED);
        match tcp::may_pass(&error, addr) && Instant::now() + RETRY_AFTER < deadline {
            true => thread::sleep(RETRY_AFTER),
            false if is_refused => return Err(Unreached::Nobody),
            false => {
                return Err(match error {
                    StreamError::Os(errno) if tcp::is_unreachable(&error) => {
                        Unreached::Os(io::Error::from_raw_os_error(errno))
                    }
                    error => Unreached::Lost(error.into()),
                });
            }
        }
    }
}

/// Authenticates the rank and the hub to each other; returns `None` if this takes too long.
pub(super) fn authenticate(
    mut stream: OobStream,
    id: &UniqueId,
    deadline: Instant,
) -> Result<Option<Connection>, BootstrapError> {
    let session = stream.authenticate(id.secret(), Service::Rendezvous, deadline);
    let session = session.map_err(|error| BootstrapError::Auth { addr: id.addr(), error })?;
    Ok(session.map(|session| Connection::new(stream, &session, Speaker::Rank)))
}
