//! Connecting: from a handle to both ends.

use std::io;
use std::net::SocketAddr;

use invar_core::auth::{Calling, Secret, Service};
use invar_core::conn::{Handle, HandleError, StreamError, Wire};
use invar_core::error::{Error, Report};
use invar_core::param::PortRange;
use invar_core::socket::{self, Connector, Layout, Lobby, Refused};

use super::{RecvComm, SendComm, SocketDevice};
use crate::random::random;
use crate::tcp::{AuthListener, Congestion, OobStream, TurnedAway, os};

/// The settings of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Sockets and threads; the connector's number of sockets holds.
    pub layout: Layout,
    /// Time in which connect or accept must come to an end.
    pub timeout_ns: u64,
    /// The congestion control of the sockets, for bytes that this end sends.
    pub congestion: Congestion,
    /// A key that both ends share beside the handle.
    pub key: Option<Secret>,
    /// Whether a send longer than its receive is cut to the receive, rather than refused. The sending
    /// end's holds.
    pub truncate: bool,
}

/// Waits for senders.
#[derive(Debug)]
pub struct Listener {
    callers: AuthListener,
    handle: Handle,
    lobby: Box<Lobby<OobStream>>,
    threads: u16,
    congestion: Congestion,
}

/// Why there is no connection to be had from a listener just now.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// One peer was turned away; others may come.
    #[error("{0}")]
    Refused(Box<Refused>),
    /// This host has no descriptors or memory to give.
    #[error("accepting a connection: {0}")]
    Host(#[from] io::Error),
}

/// Why no connection can even be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The handle is none.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// This host has no socket to give, or no way there.
    #[error("connecting to {addr}: {error}")]
    Unreached {
        /// The address of the listener.
        addr: SocketAddr,
        /// Why it is not reached.
        error: StreamError,
    },
}

/// A connection to a listener that is not there yet. Dropping it gives it up.
#[must_use = "it goes on only when it is polled"]
#[derive(Debug)]
pub struct Connecting {
    connector: Box<Connector<OobStream>>,
    threads: u16,
    truncate: bool,
}

impl Settings {
    fn of(&self, device: &SocketDevice) -> socket::Settings {
        let name = device.name().chars().filter(char::is_ascii).collect();
        socket::Settings { device: name, timeout_ns: self.timeout_ns }
    }
}

impl Listener {
    /// Listens at the device's address, at the first of `ports` that is free.
    pub fn bind(device: &SocketDevice, ports: PortRange, settings: &Settings) -> io::Result<Self> {
        let (service, key) = (Service::Tcp, settings.key.as_ref());
        let (callers, handle) =
            AuthListener::with_handle(device.address, ports, Wire::Invar, service, key)?;
        let lobby = Box::new(Lobby::new(settings.of(device)));
        let (threads, congestion) = (settings.layout.threads, settings.congestion.clone());
        Ok(Listener { callers, handle, lobby, threads, congestion })
    }

    /// The handle by which senders connect: 128 bytes, which the program brings to each sender. Any number
    /// of senders may use it.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Callers who did not prove that they have the handle.
    pub fn turned_away(&self) -> &TurnedAway {
        self.callers.turned_away()
    }

    /// The next connection, without waiting; `None`: call again.
    ///
    /// # Errors
    /// A peer that is gone, is none of ours or takes too long, by name; or this host's own. The
    /// listener goes on.
    pub fn poll(&mut self, now_ns: u64) -> Result<Option<RecvComm>, AcceptError> {
        while self.lobby.has_room()
            && let Some((stream, _)) = self.callers.poll(now_ns)?
        {
            prepare(&stream, &self.congestion)?;
            self.lobby.enter(stream, now_ns);
        }
        match self.lobby.poll(now_ns) {
            Ok(None) => Ok(None),
            Ok(Some(links)) => Ok(Some(RecvComm::new(links, self.threads))),
            Err(refused) => Err(AcceptError::Refused(Box::new(refused))),
        }
    }
}

impl Connecting {
    /// Starts to connect from `device` to the listener of a handle.
    ///
    /// # Errors
    /// The handle or this host is at fault. [`Connecting::poll`] returns all other errors.
    pub fn start(
        device: &SocketDevice,
        handle: &Handle,
        settings: &Settings,
        now_ns: u64,
    ) -> Result<Self, ConnectError> {
        let addr = device.on_this_link(handle.addr(Wire::Invar)?);
        let secret = handle.secret(settings.key.as_ref())?;
        let unreached = |error| ConnectError::Unreached { addr, error };
        let socket = |_| {
            let nonce = random().map_err(|error| unreached(os(error)))?;
            let stream = OobStream::connect(addr).map_err(unreached)?;
            prepare(&stream, &settings.congestion).map_err(|error| unreached(os(error)))?;
            Ok((stream, Some(Calling::new(secret, Service::Tcp, nonce))))
        };
        let sockets = (0..settings.layout.lanes + 2).map(socket);
        let sockets = sockets.collect::<Result<Vec<_>, ConnectError>>()?;
        let session = u64::from_ne_bytes(random().map_err(|error| unreached(os(error)))?);
        let connector = Connector::new(sockets, session, &settings.of(device), now_ns);
        let Settings { layout, truncate, .. } = *settings;
        Ok(Connecting { connector: Box::new(connector), threads: layout.threads, truncate })
    }

    /// Goes on without waiting; `None`: call again.
    ///
    /// # Errors
    /// A peer that is not reached, is none of ours, or takes too long. Every later call gives the
    /// same.
    pub fn poll(&mut self, now_ns: u64) -> Result<Option<SendComm>, Error> {
        let Some(links) = self.connector.poll(now_ns)? else { return Ok(None) };
        Ok(Some(SendComm::new(links, self.threads, self.truncate)))
    }

    /// Joins an error of this connection with both ends.
    pub fn report(&self, error: Error) -> Report<'_> {
        self.connector.report(error)
    }
}

/// Makes a new socket one of a connection for messages. Of these, each end has one at least on which
/// it sends nothing, so that keepalive tells it of a host that has vanished: the sender has control,
/// the receiver has main.
fn prepare(stream: &OobStream, congestion: &Congestion) -> io::Result<()> {
    stream.wait_for_reader()?;
    congestion.control(stream)
}
