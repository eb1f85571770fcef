//! What a NIC needs to be a device of this crate, and the kinds of NICs.

use invar_core::nic::{Access, Nic, NicError, Verb};
use invar_cuda::gdr::NicReach;
use invar_linux::memory::HostMemory;
use invar_linux::soft::SoftNic;
use invar_verbs::VerbsNic;

use super::{AnyRecv, AnySend, GpuRange, RecvOn, SendOn};

/// A [`Nic`] for memory of the host that several threads can share. Every NIC that meets these bounds
/// has this trait, and [`Device::on`](crate::Device::on) makes a device of it.
pub trait SharedNic:
    Nic<Memory = HostMemory, Pd: Send + Sync, Mr: Send + Sync + 'static, Cq: Send, Qp: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<N> SharedNic for N where
    N: Nic<Memory = HostMemory, Pd: Send + Sync, Mr: Send + Sync + 'static, Cq: Send, Qp: Send>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// A NIC that can access the memory of GPUs. [`Device::on_gpu_nic`](crate::Device::on_gpu_nic) makes a
/// device of it. Any other NIC refuses GPU memory, and messages from and to GPUs are staged.
pub trait GpuNic: SharedNic {
    /// Returns how the NIC can access a GPU's memory.
    fn gpu_reach(&self, pd: &Self::Pd) -> NicReach;
    /// Registers a GPU's memory.
    ///
    /// # Errors
    /// Fails if the NIC refuses the memory.
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

impl GpuNic for VerbsNic {
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

/// The kind of a NIC: the variants of its ends, and its access to GPU memory.
pub(crate) struct NicKind<N: SharedNic> {
    pub(super) send: fn(Box<SendOn<N>>) -> AnySend,
    pub(super) recv: fn(Box<RecvOn<N>>) -> AnyRecv,
    gpu_reach: fn(&N, &N::Pd) -> NicReach,
    reg_gpu_mr: RegGpuMr<N>,
}

/// [`GpuNic::reg_gpu_mr`] of a NIC.
type RegGpuMr<N> =
    unsafe fn(&N, &<N as Nic>::Pd, &GpuRange<'_>, Access) -> Result<<N as Nic>::Mr, NicError>;

impl<N: SharedNic> NicKind<N> {
    /// A NIC that the program brings.
    pub(crate) const CUSTOM: Self =
        Self::without_gpu(|end| AnySend::Custom(end), |end| AnyRecv::Custom(end));

    const fn without_gpu(
        send: fn(Box<SendOn<N>>) -> AnySend,
        recv: fn(Box<RecvOn<N>>) -> AnyRecv,
    ) -> Self {
        const REFUSED: NicError =
            NicError::new(Verb::RegMr, 0, "a NIC in software does not reach GPU memory");
        NicKind {
            send,
            recv,
            gpu_reach: |_, _| NicReach::Software,
            reg_gpu_mr: |_, _, _, _| Err(REFUSED),
        }
    }

    pub(super) fn gpu_reach(&self, nic: &N, pd: &N::Pd) -> NicReach {
        (self.gpu_reach)(nic, pd)
    }

    /// # Safety
    /// The caller makes the promises of [`GpuNic::reg_gpu_mr`].
    pub(super) unsafe fn reg_gpu_mr(
        &self,
        nic: &N,
        pd: &N::Pd,
        memory: &GpuRange<'_>,
        access: Access,
    ) -> Result<N::Mr, NicError> {
        // SAFETY: the caller has promised what the NIC's function demands.
        unsafe { (self.reg_gpu_mr)(nic, pd, memory, access) }
    }
}

impl<N: GpuNic> NicKind<N> {
    /// A NIC that the program brings, and that can access GPU memory.
    pub(crate) const CUSTOM_WITH_GPU: Self = Self::CUSTOM.with_gpu();

    const fn with_gpu(self) -> Self {
        NicKind { gpu_reach: N::gpu_reach, reg_gpu_mr: N::reg_gpu_mr, ..self }
    }
}

impl NicKind<VerbsNic> {
    /// An RDMA device.
    pub(crate) const VERBS: Self = Self::without_gpu(AnySend::Verbs, AnyRecv::Verbs).with_gpu();
}

impl NicKind<SoftNic> {
    /// The software NIC.
    pub(crate) const SOFT: Self = Self::without_gpu(AnySend::Soft, AnyRecv::Soft);
}
