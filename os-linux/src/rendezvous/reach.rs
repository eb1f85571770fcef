//! How a rank reaches the hub.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use invar_core::auth::{Calling, Service};
use invar_core::conn::{Stream, StreamError};
use invar_core::rendezvous::{Speaker, UniqueId};
use rustix::event::{PollFd, PollFlags};

use super::connection::{Connection, Lost};
use super::{BootstrapError, TICK};
use crate::random::random;
use crate::tcp::OobStream;
use crate::unix::wait;

/// Between two attempts to reach a hub that does not listen yet.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Why there is no connection with the hub.
pub(super) enum Unreached {
    /// Its host is there, and refuses.
    Nobody,
    Lost(Lost),
}

/// Connects; tries again while nobody listens there.
pub(super) fn connect(addr: SocketAddr, deadline: Instant) -> Result<OobStream, Unreached> {
    loop {
        let error = match attempt(addr, deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if error != StreamError::Os(libc::ECONNREFUSED) {
            return Err(Unreached::Lost(error.into()));
        }
        if Instant::now() + RETRY_AFTER >= deadline {
            return Err(Unreached::Nobody);
        }
        thread::sleep(RETRY_AFTER);
    }
}

fn attempt(addr: SocketAddr, deadline: Instant) -> Result<OobStream, StreamError> {
    let mut stream = OobStream::connect(addr)?;
    while !stream.poll_connected()? {
        if Instant::now() >= deadline {
            return Err(StreamError::Os(libc::ETIMEDOUT));
        }
        let slept = wait(&mut [PollFd::new(&stream, PollFlags::OUT)], TICK);
        slept.map_err(|error| StreamError::Os(error.raw_os_error().unwrap_or(libc::EIO)))?;
    }
    Ok(stream)
}

/// Proves this rank to the hub, and has it prove itself; `None` where that takes too long.
pub(super) fn authenticate(
    mut stream: OobStream,
    id: &UniqueId,
    deadline: Instant,
) -> Result<Option<Connection>, BootstrapError> {
    let mut calling = Calling::new(id.secret(), Service::Rendezvous, random()?);
    loop {
        match calling.poll(&mut stream) {
            Ok(Some(session)) => return Ok(Some(Connection::new(stream, &session, Speaker::Rank))),
            Ok(None) if Instant::now() >= deadline => return Ok(None),
            Ok(None) => wait(&mut [PollFd::new(&stream, PollFlags::IN)], TICK)?,
            Err(error) => return Err(BootstrapError::Auth { addr: id.addr(), error }),
        };
    }
}
