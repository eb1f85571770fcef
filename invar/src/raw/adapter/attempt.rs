//! Attempts to connect NICs.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use invar_core::auth::{Calling, Service};
use invar_core::conn::stage::Stage;
use invar_core::conn::{self, Acceptor, Connector, Handle, Stream, Wire};
use invar_core::error::Error as CoreError;
use invar_core::param::PortRange;
use invar_linux::clock::now_ns;
use invar_linux::interest::Interest;
use invar_linux::random::random;
use invar_linux::tcp::{AuthListener, OobStream, TurnedAway};

use crate::Error;
use crate::error::Kind;
use crate::raw::kind::{AnyRecv, AnySend};
use crate::raw::nic::SharedNic;
use crate::raw::on::{On, RecvOn, SendOn};
use crate::raw::timed::{recv_end, send_end};

/// A listener that peers connect to.
pub(crate) trait Listen: Send + Sync {
    fn handle(&self) -> Handle;
    /// Returns the attempt of the next caller, if there is one.
    fn accept(&self) -> Result<Option<Attempt<AnyRecv>>, Error>;
    /// Arms what ends the sleep of a waiter after `accept` has returned `None`.
    fn arm(&self, interest: &mut Interest);
    /// Returns the callers that did not prove that they have the handle.
    fn turned_away(&self) -> TurnedAway;
}

/// An attempt to make a comm.
pub(crate) type Attempt<C> = Box<dyn Poll<C>>;

pub(crate) trait Poll<C>: Send {
    /// Continues the attempt. Returns `None` if the caller must call again.
    fn poll(&mut self, now_ns: u64) -> Result<Option<C>, Error>;
    /// Arms what ends the sleep of a waiter after `poll` has returned `None`.
    fn arm(&self, interest: &mut Interest);
}

/// Listens by TCP for peers that want to send to a NIC.
pub(super) fn listen<N: SharedNic>(
    (nic, pd): (&N, &N::Pd),
    wrap: WrapRecv<N>,
    addr: SocketAddr,
    ports: PortRange,
    settings: conn::CommSettings,
) -> Result<Box<dyn Listen>, Error> {
    let failed = |error| Error::io(format_args!("listening at {}", addr.ip()), error);
    let (service, key) = (Service::Rdma, settings.key.as_ref());
    let listener = AuthListener::with_handle(addr, ports, settings.wire, service, key);
    let (callers, handle) = listener.map_err(failed)?;
    let callers = Mutex::new(callers);
    Ok(Box::new(Listening {
        callers,
        handle,
        ports,
        settings,
        wrap,
        pd: pd.clone(),
        nic: nic.clone(),
    }))
}

/// Connects a NIC to the listener of a handle, at the address at which this host reaches the listener.
pub(super) fn connect<N: SharedNic>(
    (nic, pd): (&N, &N::Pd),
    wrap: WrapSend<N>,
    (handle, addr): (&Handle, SocketAddr),
    settings: conn::CommSettings,
) -> Result<Attempt<AnySend>, Error> {
    let calling = match settings.wire {
        Wire::Invar => {
            let secret = handle.secret(settings.key.as_ref()).map_err(Kind::Handle)?;
            let nonce = random().map_err(|error| Error::io("random numbers", error))?;
            Some(Calling::new(secret, Service::Rdma, nonce))
        }
        Wire::Nccl214 => None,
    };
    let within = Duration::from_nanos(settings.timeout_ns);
    let stream = OobStream::connect_within(addr, within, None).map_err(|error| {
        let error = CoreError::Stream { stage: Stage::Connect, error, got: 0, want: 0 };
        Error::unreached(nic.name(), addr, error)
    })?;
    let nic = towards_peer(nic, &stream);
    let side = Connector::new(nic.clone(), pd.clone(), stream, calling, settings, now_ns());
    Ok(Box::new(Trying { side, wrap, nic }))
}

/// A TCP listener on which peers arrange connections of NICs.
struct Listening<N: SharedNic> {
    callers: Mutex<AuthListener>,
    handle: Handle,
    ports: PortRange,
    settings: conn::CommSettings,
    wrap: WrapRecv<N>,
    pd: N::Pd,
    nic: N,
}

impl<N: SharedNic> Listen for Listening<N> {
    fn handle(&self) -> Handle {
        self.handle
    }

    fn accept(&self) -> Result<Option<Attempt<AnyRecv>>, Error> {
        let failed = |error| Error::io("accepting a connection", error);
        let now_ns = now_ns();
        let mut callers = self.callers();
        let caller = callers.poll(now_ns).map_err(failed)?;
        let Some((mut stream, session)) = caller else { return Ok(None) };
        callers.call_waiters();
        drop(callers);
        if self.settings.recovery_timeout_ns > 0 && self.settings.wire == Wire::Invar {
            stream.answer_renewals(self.ports);
        }
        let (nic, pd) = (towards_peer(&self.nic, &stream), self.pd.clone());
        let side = Acceptor::new(nic.clone(), pd, stream, session, self.settings, now_ns);
        Ok(Some(Box::new(Trying { side, wrap: self.wrap, nic })))
    }

    fn arm(&self, interest: &mut Interest) {
        self.callers().arm(interest);
    }

    fn turned_away(&self) -> TurnedAway {
        self.callers().turned_away().clone()
    }
}

impl<N: SharedNic> Listening<N> {
    fn callers(&self) -> MutexGuard<'_, AuthListener> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the NIC for connections with the peer at the other end of a stream.
fn towards_peer<N: SharedNic>(nic: &N, stream: &OobStream) -> N {
    stream.peer_addr().map_or_else(|| nic.clone(), |peer| nic.towards(peer.ip().to_canonical()))
}

/// One side of a connection that is being made.
struct Trying<S, W, N> {
    side: S,
    wrap: W,
    nic: N,
}

/// Wraps the end that a connection gets.
type WrapSend<N> = fn(Box<SendOn<N>>) -> AnySend;
type WrapRecv<N> = fn(Box<RecvOn<N>>) -> AnyRecv;

impl<N: SharedNic> Poll<AnySend> for Trying<Connector<N, OobStream>, WrapSend<N>, N> {
    fn poll(&mut self, now_ns: u64) -> Result<Option<AnySend>, Error> {
        match self.side.poll(now_ns) {
            Ok(None) => Ok(None),
            Ok(Some(comm)) => {
                let recorder = comm.watch().recorder();
                let end = Box::new(On::new(comm, &self.nic));
                Ok(Some(send_end(end, recorder, self.wrap)))
            }
            Err(error) => Err(Error::reported(error, self.side.report(error))),
        }
    }

    fn arm(&self, interest: &mut Interest) {
        interest.awaited(self.side.awaited());
    }
}

impl<N: SharedNic> Poll<AnyRecv> for Trying<Acceptor<N, OobStream>, WrapRecv<N>, N> {
    fn poll(&mut self, now_ns: u64) -> Result<Option<AnyRecv>, Error> {
        match self.side.poll(now_ns) {
            Ok(None) => Ok(None),
            Ok(Some(comm)) => {
                let recorder = comm.watch().recorder();
                let end = Box::new(On::new(comm, &self.nic));
                Ok(Some(recv_end(end, recorder, self.wrap)))
            }
            Err(error) => Err(Error::reported(error, self.side.report(error))),
        }
    }

    fn arm(&self, interest: &mut Interest) {
        interest.awaited(self.side.awaited());
    }
}
