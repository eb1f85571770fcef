//! The NICs of a host behind one face.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use invar_core::comm::{self, Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::conn::{self, Acceptor, Connector, Stream};
use invar_core::error::{Ends, Error as CoreError};
use invar_core::nic::{Access, MemoryKeys, Nic, NicError, PortAttr, Verb};
use invar_cuda::Sysfs;
use invar_cuda::gdr::NicReach;
use invar_linux::clock::now_ns;
use invar_linux::memory::HostMemory;
use invar_linux::soft::SoftNic;
use invar_linux::tcp::OobStream;
use invar_verbs::VerbsNic;

use super::watch::PeerWatch;
use super::{AnyRecv, AnySend, End, Lanes, RecvEnd, SendEnd};
use crate::Error;

/// A NIC that a host may have.
pub trait HostNic:
    Nic<Memory = HostMemory, Pd: Send + Sync, Mr: Send + Sync + 'static, Cq: Send, Qp: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
    /// This NIC for connections with a peer that has come from there.
    #[must_use]
    fn towards(&self, _peer: SocketAddr) -> Self {
        self.clone()
    }
    /// Says what the NIC is.
    fn any_send(end: Box<SendOn<Self>>) -> AnySend;
    /// Says what the NIC is.
    fn any_recv(end: Box<RecvOn<Self>>) -> AnyRecv;
    /// Says what it can do with a GPU's memory.
    fn gpu_reach(&self, pd: &Self::Pd) -> NicReach;
    /// Registers a GPU's memory.
    ///
    /// # Errors
    /// What the NIC says; of one in software, that it does not reach it.
    ///
    /// # Safety
    /// The memory stays until the registration has ended.
    unsafe fn reg_gpu_mr(
        &self,
        pd: &Self::Pd,
        memory: &GpuRange<'_>,
        access: Access,
    ) -> Result<Self::Mr, NicError>;
}

impl HostNic for VerbsNic {
    fn towards(&self, peer: SocketAddr) -> Self {
        VerbsNic::towards(self, peer.ip().to_canonical())
    }

    fn any_send(end: Box<SendOn<Self>>) -> AnySend {
        AnySend::Verbs(end)
    }

    fn any_recv(end: Box<RecvOn<Self>>) -> AnyRecv {
        AnyRecv::Verbs(end)
    }

    fn gpu_reach(&self, pd: &Self::Pd) -> NicReach {
        let pci = Sysfs::default().rdma_device(self.device());
        NicReach::Rdma { pci, dma_buf: self.has_dmabuf(pd) }
    }

    unsafe fn reg_gpu_mr(
        &self,
        pd: &Self::Pd,
        memory: &GpuRange<'_>,
        access: Access,
    ) -> Result<Self::Mr, NicError> {
        let GpuRange { addr, len, dma_buf } = *memory;
        match dma_buf {
            Some((fd, offset)) => self.reg_dmabuf_mr(pd, fd, offset, len, addr, access),
            // SAFETY: the caller's promise.
            None => unsafe { self.reg_foreign_mr(pd, addr, len, access) },
        }
    }
}

impl HostNic for SoftNic {
    fn any_send(end: Box<SendOn<Self>>) -> AnySend {
        AnySend::Soft(end)
    }

    fn any_recv(end: Box<RecvOn<Self>>) -> AnyRecv {
        AnyRecv::Soft(end)
    }

    fn gpu_reach(&self, _: &Self::Pd) -> NicReach {
        NicReach::Software
    }

    unsafe fn reg_gpu_mr(
        &self,
        _: &Self::Pd,
        _: &GpuRange<'_>,
        _: Access,
    ) -> Result<Self::Mr, NicError> {
        Err(NicError::new(Verb::RegMr, 0, "a NIC in software does not reach GPU memory"))
    }
}

/// A range of a GPU's memory.
#[derive(Clone, Copy, Debug)]
pub struct GpuRange<'a> {
    /// First byte, on the GPU.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// A DMA-BUF, and where in it the range begins, by which to register it; otherwise it is by its
    /// address, which a kernel module must know (nvidia-peermem).
    pub dma_buf: Option<(BorrowedFd<'a>, u64)>,
}

/// An open device.
pub(crate) trait Adapter: Send + Sync {
    fn port(&self) -> Result<PortAttr, NicError>;
    fn alloc(&self, len: usize) -> Result<HostMemory, NicError>;
    fn reg_mr(&self, memory: &HostMemory, access: Access) -> Result<Registration, NicError>;
    fn gpu_reach(&self) -> NicReach;
    /// # Safety
    /// As of [`HostNic::reg_gpu_mr`].
    unsafe fn reg_gpu_mr(
        &self,
        memory: &GpuRange<'_>,
        access: Access,
    ) -> Result<Registration, NicError>;
    fn connect(&self, stream: OobStream, settings: conn::Settings) -> Attempt<AnySend>;
    fn accept(&self, stream: OobStream, settings: conn::Settings) -> Attempt<AnyRecv>;
}

/// Ends when it is dropped.
pub(crate) type Registration = Box<dyn MemoryKeys + Send + Sync>;

/// A comm that comes into being.
pub(crate) type Attempt<C> = Box<dyn Poll<C>>;

pub(crate) trait Poll<C>: Send {
    /// `None`: call again.
    fn poll(&mut self, now_ns: u64) -> Result<Option<C>, Error>;
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

impl<N: HostNic> Opened<N> {
    fn nic_for(&self, stream: &OobStream) -> N {
        stream.peer_addr().map_or_else(|| self.nic.clone(), |peer| self.nic.towards(peer))
    }
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

    fn gpu_reach(&self) -> NicReach {
        self.nic.gpu_reach(&self.pd)
    }

    unsafe fn reg_gpu_mr(
        &self,
        memory: &GpuRange<'_>,
        access: Access,
    ) -> Result<Registration, NicError> {
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { self.nic.reg_gpu_mr(&self.pd, memory, access) }?))
    }

    fn connect(&self, stream: OobStream, settings: conn::Settings) -> Attempt<AnySend> {
        let nic = self.nic_for(&stream);
        let side = Connector::new(nic.clone(), self.pd.clone(), stream, settings, now_ns());
        Box::new(Trying { side, nic })
    }

    fn accept(&self, stream: OobStream, settings: conn::Settings) -> Attempt<AnyRecv> {
        let nic = self.nic_for(&stream);
        let side = Acceptor::new(nic.clone(), self.pd.clone(), stream, settings, now_ns());
        Box::new(Trying { side, nic })
    }
}

/// One side of a connection that comes about.
struct Trying<S, N> {
    side: S,
    nic: N,
}

impl<N: HostNic> Poll<AnySend> for Trying<Connector<N, OobStream>, N> {
    fn poll(&mut self, now_ns: u64) -> Result<Option<AnySend>, Error> {
        match self.side.poll(now_ns) {
            Ok(None) => Ok(None),
            Ok(Some(comm)) => Ok(Some(N::any_send(Box::new(On::new(comm, &self.nic))))),
            Err(error) => Err(Error::reported(error, self.side.report(error))),
        }
    }
}

impl<N: HostNic> Poll<AnyRecv> for Trying<Acceptor<N, OobStream>, N> {
    fn poll(&mut self, now_ns: u64) -> Result<Option<AnyRecv>, Error> {
        match self.side.poll(now_ns) {
            Ok(None) => Ok(None),
            Ok(Some(comm)) => Ok(Some(N::any_recv(Box::new(On::new(comm, &self.nic))))),
            Err(error) => Err(Error::reported(error, self.side.report(error))),
        }
    }
}

/// A comm on its NIC, which outlives it.
pub struct On<C, N> {
    comm: C,
    watch: PeerWatch,
    nic: N,
}

/// A sending end on a NIC of one kind.
pub type SendOn<N> = On<comm::SendComm<N, OobStream>, N>;
/// A receiving end on a NIC of one kind.
pub type RecvOn<N> = On<comm::RecvComm<N, OobStream>, N>;

impl<C, N: Clone> On<C, N> {
    fn new(comm: C, nic: &N) -> Self {
        On { comm, watch: PeerWatch::default(), nic: nic.clone() }
    }
}

impl<N: HostNic, S: Stream + Send> End for On<comm::SendComm<N, S>, N> {
    fn ends(&self) -> &Ends {
        self.comm.ends()
    }

    fn lanes(&self) -> Lanes {
        Lanes::QueuePairs(self.comm.qpns().collect())
    }
}

impl<N: HostNic, S: Stream + Send> SendEnd for On<comm::SendComm<N, S>, N> {
    #[inline(always)]
    unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, CoreError> {
        let request = self.comm.isend(buf, tag)?;
        if request.is_none() {
            // The slot that is awaited may wait in a socket.
            self.nic.progress();
            self.watch.idle(|| self.comm.check_peer())?;
        }
        Ok(request)
    }

    #[inline(always)]
    fn test(&mut self, request: &Request) -> Result<Option<u32>, CoreError> {
        let sent = self.comm.test(request)?;
        if sent.is_none() {
            self.watch.idle(|| self.comm.check_peer())?;
        }
        Ok(sent)
    }
}

impl<N: HostNic, S: Stream + Send> End for On<comm::RecvComm<N, S>, N> {
    fn ends(&self) -> &Ends {
        self.comm.ends()
    }

    fn lanes(&self) -> Lanes {
        Lanes::QueuePairs(self.comm.qpns().collect())
    }
}

impl<N: HostNic, S: Stream + Send> RecvEnd for On<comm::RecvComm<N, S>, N> {
    #[inline(always)]
    unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, CoreError> {
        let request = self.comm.irecv(bufs)?;
        if request.is_none() {
            self.watch.idle(|| self.comm.check_peer())?;
        }
        Ok(request)
    }

    unsafe fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, CoreError> {
        self.comm.iflush(bufs)
    }

    #[inline(always)]
    unsafe fn test(
        &mut self,
        request: &Request,
        sizes: *mut u32,
    ) -> Result<Option<usize>, CoreError> {
        if let Some(received) = self.comm.test(request)? {
            if !sizes.is_null() {
                // SAFETY: the caller's promise.
                unsafe {
                    match received {
                        [size] => sizes.write(*size),
                        _ => sizes.copy_from_nonoverlapping(received.as_ptr(), received.len()),
                    }
                }
            }
            return Ok(Some(received.len()));
        }
        self.watch.idle(|| self.comm.check_peer())?;
        Ok(None)
    }
}
