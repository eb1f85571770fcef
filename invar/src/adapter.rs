//! The NICs of a host behind one face.
//!
//! A kind of NIC is chosen once, where a device is opened. What is behind the traits here is the
//! protocol compiled for that kind: a call of the data path costs one indirect jump.

use std::sync::Arc;

use invar_core::comm::{self, Flush, FlushBuf, RecvBuf, SendBuf};
use invar_core::conn::{self, Acceptor, Connector, Stream};
use invar_core::error::{Ends, Error as CoreError};
use invar_core::nic::{Access, MemoryKeys, Nic, NicError, PortAttr};
use invar_linux::memory::HostMemory;
use invar_linux::tcp::OobStream;

use crate::{Error, Received};

/// A NIC that a host may have.
pub(crate) trait HostNic:
    Nic<Memory = HostMemory, Pd: Send + Sync, Mr: Send + Sync + 'static, Cq: Send, Qp: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<N> HostNic for N where
    N: Nic<Memory = HostMemory, Pd: Send + Sync, Mr: Send + Sync + 'static, Cq: Send, Qp: Send>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// An open device.
pub(crate) trait Adapter: Send + Sync {
    fn port(&self) -> Result<PortAttr, NicError>;
    fn alloc(&self, len: usize) -> Result<HostMemory, NicError>;
    fn reg_mr(&self, memory: &HostMemory, access: Access) -> Result<Registration, NicError>;
    fn connect(&self, stream: OobStream, settings: conn::Settings) -> Attempt<dyn SendEnd>;
    fn accept(&self, stream: OobStream, settings: conn::Settings) -> Attempt<dyn RecvEnd>;
}

/// Ends when it is dropped.
pub(crate) type Registration = Box<dyn MemoryKeys + Send + Sync>;

/// A comm that comes into being.
pub(crate) type Attempt<C> = Box<dyn Poll<C>>;

pub(crate) trait Poll<C: ?Sized>: Send {
    /// `None`: call again.
    fn poll(&mut self, now_ns: u64) -> Result<Option<Box<C>>, Error>;
}

/// What both ends of a connection have.
pub(crate) trait End: Send {
    fn check_peer(&mut self) -> Result<(), CoreError>;
    fn ends(&self) -> &Ends;

    /// An error of this end.
    #[cold]
    fn failed(&self, error: CoreError) -> Error {
        Error::reported(error, self.ends().report(error))
    }
}

/// The sending end of a connection; see [`comm::SendComm`].
pub(crate) trait SendEnd: End {
    fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<comm::Request>, CoreError>;
    fn test(&mut self, request: &comm::Request) -> Result<Option<u32>, CoreError>;
}

/// The receiving end of a connection; see [`comm::RecvComm`].
pub(crate) trait RecvEnd: End {
    fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<comm::Request>, CoreError>;
    fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, CoreError>;
    fn test(&mut self, request: &comm::Request) -> Result<Option<Received>, CoreError>;
}

/// A NIC, and the protection domain that all its memory and comms share.
struct Opened<N: HostNic> {
    pd: N::Pd,
    nic: N,
}

/// Opens a device on a NIC.
pub(crate) fn adapt(nic: impl HostNic) -> Result<Arc<dyn Adapter>, NicError> {
    Ok(Arc::new(Opened { pd: nic.alloc_pd()?, nic }))
}

impl<N: HostNic> Adapter for Opened<N> {
    fn port(&self) -> Result<PortAttr, NicError> {
        self.nic.query_port()
    }

    fn alloc(&self, len: usize) -> Result<HostMemory, NicError> {
        self.nic.alloc(len)
    }

    fn reg_mr(&self, memory: &HostMemory, access: Access) -> Result<Registration, NicError> {
        Ok(Box::new(self.nic.reg_mr(&self.pd, memory, access)?))
    }

    fn connect(&self, stream: OobStream, settings: conn::Settings) -> Attempt<dyn SendEnd> {
        let now_ns = invar_linux::clock::now_ns();
        let (nic, pd) = (self.nic.clone(), self.pd.clone());
        let side = Connector::new(nic, pd, stream, settings, now_ns);
        Box::new(On { side, nic: self.nic.clone() })
    }

    fn accept(&self, stream: OobStream, settings: conn::Settings) -> Attempt<dyn RecvEnd> {
        let now_ns = invar_linux::clock::now_ns();
        let (nic, pd) = (self.nic.clone(), self.pd.clone());
        let side = Acceptor::new(nic, pd, stream, settings, now_ns);
        Box::new(On { side, nic: self.nic.clone() })
    }
}

/// One side of a connection on its NIC, which outlives it.
struct On<S, N> {
    side: S,
    nic: N,
}

impl<N: HostNic, S: Stream + Send + 'static> Poll<dyn SendEnd> for On<Connector<N, S>, N> {
    fn poll(&mut self, now_ns: u64) -> Result<Option<Box<dyn SendEnd>>, Error> {
        match self.side.poll(now_ns) {
            Ok(None) => Ok(None),
            Ok(Some(comm)) => Ok(Some(Box::new(On { side: comm, nic: self.nic.clone() }))),
            Err(error) => Err(Error::reported(error, self.side.report(error))),
        }
    }
}

impl<N: HostNic, S: Stream + Send + 'static> Poll<dyn RecvEnd> for On<Acceptor<N, S>, N> {
    fn poll(&mut self, now_ns: u64) -> Result<Option<Box<dyn RecvEnd>>, Error> {
        match self.side.poll(now_ns) {
            Ok(None) => Ok(None),
            Ok(Some(comm)) => Ok(Some(Box::new(On { side: comm, nic: self.nic.clone() }))),
            Err(error) => Err(Error::reported(error, self.side.report(error))),
        }
    }
}

impl<N: HostNic, S: Stream + Send> End for On<comm::SendComm<N, S>, N> {
    fn check_peer(&mut self) -> Result<(), CoreError> {
        self.side.check_peer()
    }

    fn ends(&self) -> &Ends {
        self.side.ends()
    }
}

impl<N: HostNic, S: Stream + Send> SendEnd for On<comm::SendComm<N, S>, N> {
    #[inline]
    fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<comm::Request>, CoreError> {
        let request = self.side.isend(buf, tag)?;
        if request.is_none() {
            // The slot that is awaited may wait in a socket.
            self.nic.progress();
        }
        Ok(request)
    }

    fn test(&mut self, request: &comm::Request) -> Result<Option<u32>, CoreError> {
        self.side.test(request)
    }
}

impl<N: HostNic, S: Stream + Send> End for On<comm::RecvComm<N, S>, N> {
    fn check_peer(&mut self) -> Result<(), CoreError> {
        self.side.check_peer()
    }

    fn ends(&self) -> &Ends {
        self.side.ends()
    }
}

impl<N: HostNic, S: Stream + Send> RecvEnd for On<comm::RecvComm<N, S>, N> {
    fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<comm::Request>, CoreError> {
        self.side.irecv(bufs)
    }

    fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, CoreError> {
        self.side.iflush(bufs)
    }

    fn test(&mut self, request: &comm::Request) -> Result<Option<Received>, CoreError> {
        Ok(self.side.test(request)?.map(Received::new))
    }
}
