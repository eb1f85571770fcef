//! One interface for all NICs of a host.

mod attempt;

use std::net::SocketAddr;
use std::sync::Arc;

use invar_core::comm::{self, Fast, Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::conn::{self, Handle, Stream};
use invar_core::error::{Ends, Error as CoreError};
use invar_core::nic::{Access, MemoryKeys, Nic, NicError, Verb};
use invar_core::param::PortRange;
use invar_cuda::gdr::NicReach;
use invar_linux::clock::now_ns;
use invar_linux::memory::HostMemory;
use invar_linux::soft::SoftNic;
use invar_linux::tcp::OobStream;
use invar_verbs::VerbsNic;

pub(crate) use attempt::{Attempt, Listen, Poll};

use super::end::copy_sizes;
use super::watch::PeerWatch;
use super::{AnyRecv, AnySend, CLOSE_MAX, Carrier, End, GpuRange, RecvEnd, SendEnd};
use crate::Error;

/// A NIC that a host may have.
pub trait HostNic:
    Nic<Memory = HostMemory, Pd: Send + Sync, Mr: Send + Sync + 'static, Cq: Send, Qp: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
    /// Returns the time of the NIC's network, on which the timeouts are based.
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    /// Returns the NIC for connections with a peer at address `_peer`.
    #[must_use]
    fn towards(&self, _peer: SocketAddr) -> Self {
        self.clone()
    }

    /// Wraps a sending end on this kind of NIC.
    fn any_send(end: Box<SendOn<Self>>) -> AnySend;
    /// Wraps a receiving end on this kind of NIC.
    fn any_recv(end: Box<RecvOn<Self>>) -> AnyRecv;
    /// Returns how the NIC can access a GPU's memory.
    fn gpu_reach(&self, pd: &Self::Pd) -> NicReach;
    /// Registers a GPU's memory.
    ///
    /// # Errors
    /// Fails if the NIC refuses the memory. A software NIC always fails, because it can't access GPU
    /// memory.
    ///
    /// # Safety
    /// The memory stays allocated until the registration has ended.
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
        NicReach::Rdma { device: self.device().to_owned(), dma_buf: self.has_dmabuf(pd) }
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
            // SAFETY: the caller has promised that the memory stays until the registration has ended.
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

/// An open device.
pub(crate) trait Adapter: Send + Sync {
    fn alloc(&self, len: usize) -> Result<HostMemory, NicError>;
    fn reg_mr(&self, memory: &HostMemory, access: Access) -> Result<Registration, NicError>;
    fn gpu_reach(&self) -> NicReach;
    /// # Safety
    /// The caller makes the promises of [`HostNic::reg_gpu_mr`].
    unsafe fn reg_gpu_mr(
        &self,
        memory: &GpuRange<'_>,
        access: Access,
    ) -> Result<Registration, NicError>;
    /// Starts to listen. If the device's connections are arranged outside the device, listens at
    /// `addr`.
    fn listen(
        &self,
        addr: SocketAddr,
        ports: PortRange,
        settings: conn::Settings,
    ) -> Result<Box<dyn Listen>, Error>;
    fn connect(&self, handle: &Handle, settings: conn::Settings)
    -> Result<Attempt<AnySend>, Error>;
}

/// A registration, which ends when it is dropped.
pub(crate) type Registration = Box<dyn MemoryKeys + Send + Sync>;

/// A NIC, and the protection domain that all its memory and comms share.
struct Opened<N: HostNic> {
    pd: N::Pd,
    nic: N,
}

/// Opens a device on a NIC.
pub(crate) fn adapt(nic: impl HostNic) -> Result<Arc<dyn Adapter>, NicError> {
    let pd = nic.alloc_pd()?;
    Ok(adapt_in(nic, pd))
}

/// Opens a device on a NIC, in an existing protection domain.
pub(crate) fn adapt_in<N: HostNic>(nic: N, pd: N::Pd) -> Arc<dyn Adapter> {
    Arc::new(Opened { pd, nic })
}

impl<N: HostNic> Adapter for Opened<N> {
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
        // SAFETY: the caller has promised what `HostNic::reg_gpu_mr` demands.
        Ok(Box::new(unsafe { self.nic.reg_gpu_mr(&self.pd, memory, access) }?))
    }

    fn listen(
        &self,
        addr: SocketAddr,
        ports: PortRange,
        settings: conn::Settings,
    ) -> Result<Box<dyn Listen>, Error> {
        attempt::listen((&self.nic, &self.pd), addr, ports, settings)
    }

    fn connect(
        &self,
        handle: &Handle,
        settings: conn::Settings,
    ) -> Result<Attempt<AnySend>, Error> {
        attempt::connect((&self.nic, &self.pd), handle, settings)
    }
}

/// A comm on its NIC. The NIC outlives the comm.
pub struct On<C, N> {
    pub(super) comm: C,
    pub(super) watch: PeerWatch,
    nic: N,
}

/// A sending end on a NIC of one kind.
pub type SendOn<N> = On<comm::SendComm<N, OobStream>, N>;
/// A receiving end on a NIC of one kind.
pub type RecvOn<N> = On<comm::RecvComm<N, OobStream>, N>;

impl<C, N: Clone> On<C, N> {
    /// Wraps a connected comm.
    pub fn new(comm: C, nic: &N) -> Self {
        On { comm, watch: PeerWatch::default(), nic: nic.clone() }
    }
}

impl<N: HostNic, S: Stream + Send> End for On<comm::SendComm<N, S>, N> {
    fn ends(&self) -> &Ends {
        self.comm.ends()
    }

    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        Some(self.comm.work(request)?.map(Carrier::Work).collect())
    }

    #[inline(always)]
    fn test_fast(&mut self, request: &Request) -> Fast<u32> {
        match self.comm.test_fast(request) {
            Fast::Pending if self.watch.is_due() => Fast::Slow,
            tested => tested,
        }
    }
}

impl<N: HostNic, S: Stream + Send> SendEnd for On<comm::SendComm<N, S>, N> {
    unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, CoreError> {
        let request = self.comm.isend(buf, tag)?;
        if request.is_none() {
            // The peer's slot may still be in a socket's buffer.
            self.nic.progress();
            self.watch.idle(|| self.nic.now_ns(), || self.comm.check_peer())?;
        }
        Ok(request)
    }

    #[inline(always)]
    unsafe fn isend_fast(&mut self, buf: &SendBuf, tag: u32) -> Fast<Request> {
        match self.comm.isend_fast(buf, tag) {
            Fast::Pending => {
                self.nic.progress();
                if self.watch.is_due() { Fast::Slow } else { Fast::Pending }
            }
            started => started,
        }
    }

    fn room(&mut self, tag: u32) -> Result<Option<u32>, CoreError> {
        let room = self.comm.room(tag)?;
        if room.is_none() {
            self.nic.progress();
            self.watch.idle(|| self.nic.now_ns(), || self.comm.check_peer())?;
        }
        Ok(room)
    }

    fn test(&mut self, request: &Request) -> Result<Option<u32>, CoreError> {
        let sent = self.comm.test(request)?;
        if sent.is_none() {
            self.watch.idle(|| self.nic.now_ns(), || self.comm.check_peer())?;
        }
        Ok(sent)
    }
}

impl<N: HostNic, S: Stream + Send> End for On<comm::RecvComm<N, S>, N> {
    fn ends(&self) -> &Ends {
        self.comm.ends()
    }

    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        Some(self.comm.work(request).map(Carrier::Work).collect())
    }

    #[inline(always)]
    fn test_fast(&mut self, request: &Request) -> Fast<u32> {
        match self.comm.test_fast(request) {
            Fast::Pending if self.watch.is_due() => Fast::Slow,
            tested => tested,
        }
    }

    fn close(self: Box<Self>) {
        let On { comm, nic, .. } = *self;
        let deadline_ns = now_ns() + CLOSE_MAX.as_nanos() as u64;
        let mut closing = comm.close();
        while !closing.poll() && now_ns() < deadline_ns {
            nic.progress();
            std::thread::yield_now();
        }
    }
}

impl<N: HostNic, S: Stream + Send> RecvEnd for On<comm::RecvComm<N, S>, N> {
    unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, CoreError> {
        let request = self.comm.irecv(bufs)?;
        if request.is_none() {
            self.watch.idle(|| self.nic.now_ns(), || self.comm.check_peer())?;
        }
        Ok(request)
    }

    #[inline(always)]
    unsafe fn irecv_fast(&mut self, buf: &RecvBuf) -> Fast<Request> {
        self.comm.irecv_fast(buf)
    }

    unsafe fn irecv_ahead(&mut self, buf: &RecvBuf) -> Result<Option<Request>, CoreError> {
        let request = self.comm.irecv_ahead(buf)?;
        if request.is_none() {
            self.watch.idle(|| self.nic.now_ns(), || self.comm.check_peer())?;
        }
        Ok(request)
    }

    unsafe fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, CoreError> {
        self.comm.iflush(bufs)
    }

    unsafe fn test(
        &mut self,
        request: &Request,
        sizes: *mut u32,
    ) -> Result<Option<usize>, CoreError> {
        if let Some(received) = self.comm.test(request)? {
            // SAFETY: the caller has promised that `sizes` is null or has room for all sizes.
            unsafe { copy_sizes(received, sizes) };
            return Ok(Some(received.len()));
        }
        if !request.is_flush() {
            self.watch.idle(|| self.nic.now_ns(), || self.comm.check_peer())?;
        }
        Ok(None)
    }
}
