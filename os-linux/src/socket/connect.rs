//! Connection setup: from a handle to both ends.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use invar_core::auth::{Calling, Secret, Service};
use invar_core::conn::stage::Stage;
use invar_core::conn::{Handle, HandleError, StreamError, Wire};
use invar_core::error::{Error, Report};
use invar_core::param::PortRange;
use invar_core::socket::{
    self, Layout, Links, PendingConnections, ResumeTimes, SocketConnector, SocketRefused,
};

use super::resume::Resumption;
use super::{RecvComm, SendComm, SocketDevice};
use crate::interest::Interest;
use crate::random::random;
use crate::tcp::{AuthListener, Congestion, DataSettings, OobStream, TurnedAway, os};

/// The settings of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketSettings {
    /// Number of sockets and threads; the connector decides the number of sockets.
    pub layout: Layout,
    /// Maximum time for connect or accept.
    pub timeout_ns: u64,
    /// Time after which this end gives up a silent host. If lost sockets go on over new connections, the kernel gives up
    /// a socket after half of it.
    pub silence: Duration,
    /// Whether lost sockets go on over new connections, if the peer does so too.
    pub resumes: bool,
    /// Congestion control of the sockets, for bytes that this end sends.
    pub congestion: Congestion,
    /// A key that both ends share in addition to the handle.
    pub key: Option<Secret>,
    /// Whether a send longer than its receive is cut to the receive's length; otherwise it is an error.
    /// The sender's setting decides.
    pub truncate: bool,
}

/// Maximum number of sockets that one waiter arms.
const ARMED_MAX: usize = 64;

/// Listens for senders.
#[derive(Debug)]
pub struct Listener {
    callers: AuthListener,
    handle: Handle,
    pending: Box<PendingConnections<OobStream>>,
    ports: PortRange,
    settings: SocketSettings,
}

/// The reason why the listener returns no connection.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// One peer was refused; others may come.
    #[error("{0}")]
    Refused(Box<SocketRefused>),
    /// This host has no descriptors or memory left.
    #[error("accepting a connection: {0}")]
    Host(#[from] io::Error),
}

/// The reason why a connection attempt cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The handle is invalid.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// This host has no socket left, or no route.
    #[error("connecting to {addr}: {error}")]
    Unreached {
        /// Address of the listener.
        addr: SocketAddr,
        /// The reason why the address cannot be reached.
        error: StreamError,
    },
}

/// A pending connection to a listener. Dropping it gives the connection up.
#[must_use = "it goes on only when it is polled"]
#[derive(Debug)]
pub struct Connecting {
    connector: Box<SocketConnector<OobStream>>,
    settings: SocketSettings,
}

impl SocketSettings {
    fn of(&self, device: &SocketDevice) -> socket::HandshakeSettings {
        let name = device.name().chars().filter(char::is_ascii).collect();
        let SocketSettings { timeout_ns, resumes, .. } = *self;
        socket::HandshakeSettings { device: name, timeout_ns, resumes }
    }

    fn data(&self) -> DataSettings {
        let silence = if self.resumes { self.silence / 2 } else { self.silence };
        DataSettings { silence, congestion: self.congestion.clone() }
    }

    /// Bears silence for the whole time, where lost sockets do not go on over new connections.
    fn apply(&self, mut links: Links<OobStream>) -> io::Result<Links<OobStream>> {
        if self.resumes && !links.resumes {
            let data = DataSettings { silence: self.silence, ..self.data() };
            let Links { control, main, lanes, .. } = &mut links;
            let mut sockets = [control, main].into_iter().chain(lanes);
            sockets.try_for_each(|socket| data.apply(socket.stream_mut()))?;
        }
        Ok(links)
    }

    fn resumption(&self) -> Resumption {
        let data = self.data();
        let ns = |time: Duration| time.as_nanos() as u64;
        let times = ResumeTimes { within_ns: ns(self.silence), silence_ns: ns(data.silence) };
        Resumption::new(times, data)
    }
}

impl Listener {
    /// Listens at the device's address, on the first free port of `ports`.
    pub fn bind(
        device: &SocketDevice,
        ports: PortRange,
        settings: &SocketSettings,
    ) -> io::Result<Self> {
        let (service, key) = (Service::Tcp, settings.key.as_ref());
        let (callers, handle) =
            AuthListener::with_handle(device.address, ports, Wire::Invar, service, key)?;
        let pending = Box::new(PendingConnections::new(settings.of(device)));
        Ok(Listener { callers, handle, pending, ports, settings: settings.clone() })
    }

    /// Returns the handle by which senders connect: 128 bytes, which the program passes to each sender.
    /// Any number of senders may use it.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Returns the callers that did not prove that they have the handle.
    pub fn turned_away(&self) -> &TurnedAway {
        self.callers.turned_away()
    }

    /// Returns the next connection without waiting. On `None` call again.
    ///
    /// # Errors
    /// A peer is gone, does not speak Invar's protocol, or takes too long; the error names the peer. Or
    /// this host has no resources left. The listener continues in all cases.
    pub fn poll(&mut self, now_ns: u64) -> Result<Option<RecvComm>, AcceptError> {
        while self.pending.has_room()
            && let Some((mut stream, session)) = self.callers.poll(now_ns)?
        {
            self.settings.data().apply(&mut stream)?;
            if self.settings.resumes {
                stream.answer_renewals(self.ports);
            }
            self.pending.enter(stream, session, now_ns);
        }
        match self.pending.poll(now_ns) {
            Ok(None) => Ok(None),
            Ok(Some(links)) => {
                self.callers.call_waiters();
                let links = self.settings.apply(links)?;
                let SocketSettings { layout, .. } = self.settings;
                Ok(Some(RecvComm::new(links, layout.threads, Some(self.settings.resumption()))))
            }
            Err(refused) => Err(AcceptError::Refused(Box::new(refused))),
        }
    }

    /// Arms what ends the sleep of a waiter after [`Listener::poll`] has returned `None`. While many connections are
    /// made at once, the waiter looks now and then instead.
    pub fn arm(&self, interest: &mut Interest) {
        if self.pending.awaited().count() > ARMED_MAX {
            return interest.blind();
        }
        self.callers.arm(interest);
        interest.awaited(self.pending.awaited());
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
        settings: &SocketSettings,
        now_ns: u64,
    ) -> Result<Self, ConnectError> {
        let addr = device.interface.on_its_link(handle.addr(Wire::Invar)?);
        let secret = handle.secret(settings.key.as_ref())?;
        let unreached = |error| ConnectError::Unreached { addr, error };
        let socket = |_| {
            let nonce = random().map_err(|error| unreached(os(error)))?;
            let (within, data) = (Duration::from_nanos(settings.timeout_ns), settings.data());
            let stream = OobStream::connect_within(addr, within, Some(data)).map_err(unreached)?;
            Ok((stream, Some(Calling::new(secret, Service::Tcp, nonce))))
        };
        let sockets = (0..settings.layout.lanes + 2).map(socket);
        let sockets = sockets.collect::<Result<Vec<_>, ConnectError>>()?;
        let session = u64::from_ne_bytes(random().map_err(|error| unreached(os(error)))?);
        let connector = SocketConnector::new(sockets, session, &settings.of(device), now_ns);
        Ok(Connecting { connector: Box::new(connector), settings: settings.clone() })
    }

    /// Advances the connection without waiting. On `None` call again.
    ///
    /// # Errors
    /// The peer cannot be reached, does not speak Invar's protocol, or takes too long. Every later call
    /// returns the same error.
    pub fn poll(&mut self, now_ns: u64) -> Result<Option<SendComm>, Error> {
        let Some(links) = self.connector.poll(now_ns)? else { return Ok(None) };
        let links = self.settings.apply(links).map_err(|error| {
            let error = os(error);
            Error::Stream { stage: Stage::Connected, error, got: 0, want: 0 }
        })?;
        let SocketSettings { layout, truncate, .. } = self.settings;
        Ok(Some(SendComm::new(links, layout.threads, truncate, Some(self.settings.resumption()))))
    }

    /// Arms what ends the sleep of a waiter after [`Connecting::poll`] has returned `None`.
    pub fn arm(&self, interest: &mut Interest) {
        interest.awaited(self.connector.awaited());
    }

    /// Combines an error of this connection with the names of both ends.
    pub fn report(&self, error: Error) -> Report<'_> {
        self.connector.report(error)
    }
}
