//! The rendezvous of a communicator's ranks.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use invar_core::auth::Secret;
use invar_core::param::PortRange;
use invar_core::rendezvous::UniqueId;
use invar_linux::rendezvous;

use crate::Error;
use crate::error::Kind;

/// The place where the ranks of one communicator meet. One process of the program has it.
///
/// A thread of its own serves the ranks and ends with the last one. Dropping a hub waits at most two
/// seconds for the ranks to leave. Ranks that stay longer are served until the process ends.
#[derive(Debug)]
pub struct Hub {
    hub: rendezvous::Hub,
}

impl Hub {
    /// Listens at `addr` for `nranks` ranks, which must all join `within` that time.
    ///
    /// The ranks must be able to reach `addr`. If its port is 0, the hub takes the first free port of
    /// `ports`. Without a `secret` the hub makes one up.
    ///
    /// # Errors
    /// `nranks` is 0 or too large, or no such port is free.
    pub fn listen(
        addr: SocketAddr,
        ports: PortRange,
        nranks: u32,
        secret: Option<Secret>,
        within: Duration,
    ) -> Result<Self, Error> {
        match rendezvous::Hub::listen(addr, ports, nranks, secret, within) {
            Ok(hub) => Ok(Hub { hub }),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(Kind::Usage(error.to_string()).into())
            }
            Err(error) => Err(Error::io(format_args!("listening for ranks at {addr}"), error)),
        }
    }

    /// The id that every rank needs to join the communicator. The id contains the secret.
    pub fn id(&self) -> UniqueId {
        self.hub.id()
    }
}
