//! The rendezvous of a communicator's ranks.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use invar_core::auth::Secret;
use invar_core::param::PortRange;
use invar_core::rendezvous::UniqueId;
use invar_linux::rendezvous;

use crate::connect::oob_addr;
use crate::error::Kind;
use crate::{Device, Error, Settings};

/// A place where ranks can meet, before their number is known. Ranks that join meanwhile wait.
#[derive(Debug)]
pub struct HubListener {
    listener: rendezvous::HubListener,
}

/// The place where the ranks of one communicator meet. One process of the program has it.
///
/// A thread of its own serves the ranks and ends with the last one. Dropping a hub waits at most two
/// seconds for the ranks to leave. Ranks that stay longer are served until the process ends.
#[derive(Debug)]
pub struct Hub {
    hub: rendezvous::Hub,
}

impl HubListener {
    /// Listens at the address at which a [`Listener`](crate::Listener) of the device listens, on a port
    /// of [`Settings::listen_ports`], with a secret of its own.
    ///
    /// # Errors
    /// The settings do not allow the device, no such interface exists, or no port is free.
    pub fn bind(device: &Device, settings: &Settings) -> Result<Self, Error> {
        settings.check(device.info())?;
        let addr = oob_addr(device, settings)?;
        match rendezvous::HubListener::bind(addr, settings.tcp_ports(), None) {
            Ok(listener) => Ok(HubListener { listener }),
            Err(error) => Err(Error::io(format_args!("listening for ranks at {addr}"), error)),
        }
    }

    /// The id that every rank needs to join the communicator. The id contains the secret.
    pub fn id(&self) -> UniqueId {
        self.listener.id()
    }

    /// Starts to serve `nranks` ranks, which must all join `within` that time.
    ///
    /// # Errors
    /// `nranks` is 0 or too large.
    pub fn start(self, nranks: u32, within: Duration) -> Result<Hub, Error> {
        let addr = self.id().addr();
        started(self.listener.start(nranks, within), addr)
    }
}

/// The hub that a rendezvous has started at `addr`, or the error in words.
fn started(hub: io::Result<rendezvous::Hub>, addr: SocketAddr) -> Result<Hub, Error> {
    match hub {
        Ok(hub) => Ok(Hub { hub }),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Err(Kind::Usage(error.to_string()).into())
        }
        Err(error) => Err(Error::io(format_args!("listening for ranks at {addr}"), error)),
    }
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
        started(rendezvous::Hub::listen(addr, ports, nranks, secret, within), addr)
    }

    /// The id that every rank needs to join the communicator. The id contains the secret.
    pub fn id(&self) -> UniqueId {
        self.hub.id()
    }
}
