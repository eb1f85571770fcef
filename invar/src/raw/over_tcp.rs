//! The TCP transport as an adapter. It registers nothing, and keys are only names.

mod key;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use invar_core::conn::stage::{Side, Stage};
use invar_core::conn::{self, Handle};
use invar_core::error::Error as CoreError;
use invar_core::nic::{Access, NicError, Verb};
use invar_core::param::PortRange;
use invar_core::socket::{Layout, SocketRefused};
use invar_core::stall::StallSettings;
use invar_cuda::gdr::NicReach;
use invar_linux::clock::now_ns;
use invar_linux::interest::Interest;
use invar_linux::memory::HostMemory;
use invar_linux::socket::{
    self, AcceptError, ConnectError, Connecting, RecvComm, SocketDevice, SocketSettings,
};
use invar_linux::tcp::{Congestion, TurnedAway};

use super::adapter::{Adapter, Attempt, Listen, Poll, Reached, Registration};
use super::kind::{AnyRecv, AnySend};
use super::nic::GpuRange;
use super::on::On;
use super::queue_pair::QueuePair;
use super::timed::{recv_end, send_end};
use crate::Error;
use crate::error::Kind;
use crate::raw::Session;
use crate::settings::tcp_silence;
use key::Keys;

/// An open network interface.
pub(crate) struct OverTcp {
    device: SocketDevice,
    layout: Layout,
    congestion: Congestion,
    keys: Keys,
}

impl OverTcp {
    pub(crate) fn new(device: SocketDevice, layout: Layout, congestion: Congestion) -> Self {
        OverTcp { device, layout, congestion, keys: Keys::default() }
    }

    fn settings(&self, settings: conn::CommSettings) -> SocketSettings {
        let (layout, congestion) = (self.layout, self.congestion.clone());
        let conn::CommSettings { timeout_ns, key, truncate, .. } = settings;
        let (silence, resumes) = (tcp_silence(&settings), settings.recovery_timeout_ns > 0);
        SocketSettings { layout, timeout_ns, silence, resumes, congestion, key, truncate }
    }
}

impl Adapter for OverTcp {
    fn alloc(&self, len: usize) -> Result<HostMemory, NicError> {
        HostMemory::for_nic(len)
    }

    fn reg_mr(&self, _: &HostMemory, _: Access) -> Result<Registration, NicError> {
        let key = self.keys.take();
        Ok(Box::new(key.ok_or(NicError::new(Verb::RegMr, 0, "all 2³² - 1 keys are taken"))?))
    }

    fn gpu_reach(&self) -> NicReach {
        NicReach::Software
    }

    unsafe fn reg_gpu_mr(&self, _: &GpuRange<'_>, _: Access) -> Result<Registration, NicError> {
        Err(NicError::new(Verb::RegMr, 0, "TCP does not reach GPU memory"))
    }

    /// Listens at the device's own address, because the data goes there.
    fn listen(
        &self,
        _: SocketAddr,
        ports: PortRange,
        settings: conn::CommSettings,
    ) -> Result<Box<dyn Listen>, Error> {
        let ip = self.device.address.ip();
        let failed = |error| Error::io(format_args!("listening at {ip}"), error);
        let listener = socket::Listener::bind(&self.device, ports, &self.settings(settings));
        let listener = listener.map_err(failed)?;
        let (handle, stall) = (listener.handle(), settings.stall);
        Ok(Box::new(Listening { handle, listener: Mutex::new(listener), stall }))
    }

    /// Calls from the device's own interface, because the data goes there.
    fn connect(
        &self,
        handle: &Handle,
        _: Reached<'_>,
        settings: conn::CommSettings,
    ) -> Result<Attempt<AnySend>, Error> {
        match Connecting::start(&self.device, handle, &self.settings(settings), now_ns()) {
            Ok(connecting) => {
                let stall = settings.stall;
                Ok(Box::new(Connection { connecting, stall }))
            }
            Err(ConnectError::Handle(error)) => Err(Kind::Handle(error).into()),
            Err(ConnectError::Unreached { addr, error }) => {
                let error = CoreError::Stream { stage: Stage::Connect, error, got: 0, want: 0 };
                Err(Error::unreached(self.device.name(), addr, error))
            }
        }
    }
    fn queue_pair(
        &self,
        _: (Side, Session),
        _: IpAddr,
        _: conn::CommSettings,
        _: usize,
    ) -> Result<Box<dyn QueuePair>, Error> {
        Err(Kind::Usage(format!("{}: TCP has no queue pairs", self.device.name())).into())
    }
}

struct Listening {
    handle: Handle,
    listener: Mutex<socket::Listener>,
    stall: StallSettings,
}

impl Listen for Listening {
    fn handle(&self) -> Handle {
        self.handle
    }

    fn accept(&self) -> Result<Option<Attempt<AnyRecv>>, Error> {
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        match listener.poll(now_ns()) {
            Ok(comm) => {
                let connected = |comm: RecvComm| Connected(Some(comm.watching(self.stall)));
                Ok(comm.map(|comm| Box::new(connected(comm)) as Attempt<AnyRecv>))
            }
            Err(AcceptError::Refused(caller)) => Ok(Some(Box::new(Refused(*caller)))),
            Err(AcceptError::Host(error)) => Err(Error::io("accepting a connection", error)),
        }
    }

    fn arm(&self, interest: &mut Interest) {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).arm(interest);
    }

    fn turned_away(&self) -> TurnedAway {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        listener.turned_away().clone()
    }
}

/// A connection that was completed while its caller waited for it.
struct Connected(Option<RecvComm>);

impl Poll<AnyRecv> for Connected {
    fn poll(&mut self, _: u64) -> Result<Option<AnyRecv>, Error> {
        Ok(self.0.take().map(|comm| {
            let recorder = comm.watch().recorder();
            recv_end(Box::new(On::new(comm, &())), recorder, AnyRecv::Socket)
        }))
    }

    fn arm(&self, _: &mut Interest) {}
}

/// A caller that has proved that it has the handle, and whose connection failed. The core has logged the error.
struct Refused(SocketRefused);

impl Poll<AnyRecv> for Refused {
    fn poll(&mut self, _: u64) -> Result<Option<AnyRecv>, Error> {
        let SocketRefused { error, ends } = &self.0;
        Err(Error::reported(*error, ends.report(*error)))
    }

    fn arm(&self, _: &mut Interest) {}
}

/// A connection that is being made.
struct Connection {
    connecting: Connecting,
    stall: StallSettings,
}

impl Poll<AnySend> for Connection {
    fn poll(&mut self, now_ns: u64) -> Result<Option<AnySend>, Error> {
        match self.connecting.poll(now_ns) {
            Ok(comm) => Ok(comm.map(|comm| {
                let end = Box::new(On::new(comm.watching(self.stall), &()));
                send_end(end, self.stall.recorder, AnySend::Socket)
            })),
            Err(error) => Err(Error::reported(error, self.connecting.report(error))),
        }
    }

    fn arm(&self, interest: &mut Interest) {
        self.connecting.arm(interest);
    }
}
