//! The trait of NICs that can be devices of this crate.

use std::os::fd::BorrowedFd;

use invar_core::nic::{Access, Nic, NicError};
use invar_cuda::gdr::NicReach;
use invar_linux::memory::HostMemory;
use invar_linux::rails::Rails;
use invar_verbs::VerbsNic;

/// A range of a GPU's memory.
#[derive(Clone, Copy, Debug)]
pub struct GpuRange<'a> {
    /// The address of the first byte, on the GPU.
    pub addr: u64,
    /// Number of bytes.
    pub len: usize,
    /// A DMA-BUF for the registration, and the offset at which the range begins in it. If there is
    /// none, the range is registered by its address, which a kernel module must know (nvidia-peermem).
    pub dma_buf: Option<(BorrowedFd<'a>, u64)>,
}

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
        NicReach::Rdma { devices: vec![self.device().to_owned()], dma_buf: self.has_dmabuf(pd) }
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

/// Several ports reach GPU memory as far as each of them does.
impl GpuNic for Rails<VerbsNic> {
    fn gpu_reach(&self, pd: &Self::Pd) -> NicReach {
        let reaches = self.with_pds(pd).map(|(nic, pd)| nic.gpu_reach(pd));
        let both = |one: NicReach, other: NicReach| match (one, other) {
            (
                NicReach::Rdma { devices, dma_buf },
                NicReach::Rdma { devices: others, dma_buf: too },
            ) => NicReach::Rdma { devices: [devices, others].concat(), dma_buf: dma_buf && too },
            _ => NicReach::Software,
        };
        reaches.reduce(both).unwrap_or(NicReach::Software)
    }

    unsafe fn reg_gpu_mr(
        &self,
        pd: &Self::Pd,
        memory: &GpuRange<'_>,
        access: Access,
    ) -> Result<Self::Mr, NicError> {
        let mrs = self.with_pds(pd).map(|(nic, pd)| {
            // SAFETY: the caller has promised that the memory stays until the registration has ended.
            unsafe { nic.reg_gpu_mr(pd, memory, access) }
        });
        self.join_mrs(mrs.collect::<Result<_, _>>()?)
    }
}
