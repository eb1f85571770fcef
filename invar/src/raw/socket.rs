//! The TCP transport as an adapter. It registers nothing, and keys are only names.

mod key;

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use invar_core::comm::{Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::conn::stage::Stage;
use invar_core::conn::{self, Handle};
use invar_core::error::{Ends, Error as CoreError};
use invar_core::nic::{Access, NicError, Verb};
use invar_core::param::PortRange;
use invar_core::socket::Layout;
use invar_cuda::gdr::NicReach;
use invar_linux::clock::now_ns;
use invar_linux::memory::HostMemory;
use invar_linux::socket::{
    self, AcceptError, ConnectError, Connecting, RecvComm, SendComm, SocketDevice, SocketSettings,
};
use invar_linux::tcp::{Congestion, TurnedAway};

use super::adapter::{Adapter, Attempt, Listen, On, Poll, Registration};
use super::{AnyRecv, AnySend, Carrier, End, GpuRange, RecvEnd, SendEnd};
use crate::Error;
use crate::error::Kind;
use key::Keys;

/// A sending end over TCP.
pub type SocketSend = On<SendComm, ()>;
/// A receiving end over TCP.
pub type SocketRecv = On<RecvComm, ()>;

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
        SocketSettings { layout, timeout_ns, congestion, key, truncate }
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
        Ok(Box::new(Listening { handle: listener.handle(), listener: Mutex::new(listener) }))
    }

    fn connect(
        &self,
        handle: &Handle,
        settings: conn::CommSettings,
    ) -> Result<Attempt<AnySend>, Error> {
        match Connecting::start(&self.device, handle, &self.settings(settings), now_ns()) {
            Ok(connecting) => Ok(Box::new(connecting)),
            Err(ConnectError::Handle(error)) => Err(Kind::Handle(error).into()),
            Err(ConnectError::Unreached { addr, error }) => {
                let error = CoreError::Stream { stage: Stage::Connect, error, got: 0, want: 0 };
                Err(Error::unreached(self.device.name(), addr, error))
            }
        }
    }
}

struct Listening {
    handle: Handle,
    listener: Mutex<socket::Listener>,
}

impl Listen for Listening {
    fn handle(&self) -> Handle {
        self.handle
    }

    fn accept(&self) -> Result<Option<Attempt<AnyRecv>>, Error> {
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        match listener.poll(now_ns()) {
            Ok(comm) => Ok(comm.map(|comm| Box::new(Connected(Some(comm))) as Attempt<AnyRecv>)),
            // The core has already logged the caller.
            Err(AcceptError::Refused(_)) => Ok(None),
            Err(AcceptError::Host(error)) => Err(Error::io("accepting a connection", error)),
        }
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
        Ok(self.0.take().map(|comm| AnyRecv::Socket(Box::new(On::new(comm, &())))))
    }
}

impl Poll<AnySend> for Connecting {
    fn poll(&mut self, now_ns: u64) -> Result<Option<AnySend>, Error> {
        match Connecting::poll(self, now_ns) {
            Ok(comm) => Ok(comm.map(|comm| AnySend::Socket(Box::new(On::new(comm, &()))))),
            Err(error) => Err(Error::reported(error, self.report(error))),
        }
    }
}

impl End for SocketSend {
    fn ends(&self) -> &Ends {
        self.comm.ends()
    }

    fn carriers(&mut self, _: &Request) -> Option<Vec<Carrier>> {
        Some(vec![Carrier::Socket(self.comm.main_socket().as_raw_fd())])
    }

    fn needs_calls(&self) -> bool {
        true
    }
}

impl SendEnd for SocketSend {
    fn room(&mut self, tag: u32) -> Result<Option<u32>, CoreError> {
        self.comm.room(tag)
    }

    unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller has promised what `isend` demands.
        let request = unsafe { self.comm.isend(buf, tag) }?;
        if request.is_none() {
            self.watch.idle(now_ns, |_| self.comm.check_peer())?;
        }
        Ok(request)
    }

    fn test(&mut self, request: &Request) -> Result<Option<u32>, CoreError> {
        let sent = self.comm.test(request)?;
        if sent.is_none() {
            self.watch.idle(now_ns, |_| self.comm.check_peer())?;
        }
        Ok(sent)
    }

    fn way_back(&mut self) -> Result<Option<Box<dyn RecvEnd>>, Error> {
        match self.comm.way_back() {
            Ok(comm) => Ok(Some(Box::new(SocketRecv::new(comm, &())))),
            Err(error) => Err(no_way_back(error)),
        }
    }
}

impl End for SocketRecv {
    fn ends(&self) -> &Ends {
        self.comm.ends()
    }

    fn carriers(&mut self, _: &Request) -> Option<Vec<Carrier>> {
        Some(vec![Carrier::Socket(self.comm.main_socket().as_raw_fd())])
    }

    fn needs_calls(&self) -> bool {
        true
    }
}

impl RecvEnd for SocketRecv {
    unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller has promised what `irecv` demands.
        unsafe { self.comm.irecv(bufs) }
    }

    unsafe fn iflush(&mut self, _: &[FlushBuf]) -> Result<Flush, CoreError> {
        Ok(Flush::NotNeeded)
    }

    unsafe fn test(
        &mut self,
        request: &Request,
        sizes: *mut u32,
    ) -> Result<Option<usize>, CoreError> {
        if let Some(received) = self.comm.test(request)? {
            // SAFETY: the caller has promised that `sizes` is null or has room for all sizes.
            unsafe { super::end::copy_sizes(received, sizes) };
            return Ok(Some(received.len()));
        }
        self.watch.idle(now_ns, |_| self.comm.check_peer())?;
        Ok(None)
    }

    fn way_back(&mut self) -> Result<Option<Box<dyn SendEnd>>, Error> {
        match self.comm.way_back() {
            Ok(comm) => Ok(Some(Box::new(SocketSend::new(comm, &())))),
            Err(error) => Err(no_way_back(error)),
        }
    }
}

fn no_way_back(error: std::io::Error) -> Error {
    Error::io("using a connection both ways", error)
}
