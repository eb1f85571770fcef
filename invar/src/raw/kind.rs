//! The kinds of NICs and of their ends.

use invar_core::nic::{Access, Nic, NicError, Verb};
use invar_cuda::gdr::NicReach;
use invar_linux::soft::SoftNic;
use invar_verbs::VerbsNic;

use super::end::{RecvEnd, SendEnd};
use super::keeper::Keeper;
use super::keeper_end::KeeperEnd;
use super::nic::{GpuNic, GpuRange, SharedNic};
use super::on::{RecvOn, SendOn};
use super::socket::{SocketRecv, SocketSend};

/// A sending end on any NIC.
#[non_exhaustive]
pub enum AnySend {
    /// A sending end on an RDMA device.
    Verbs(Box<SendOn<VerbsNic>>),
    /// A sending end over TCP.
    Socket(Box<SocketSend>),
    /// A sending end on the software NIC.
    Soft(Box<SendOn<SoftNic>>),
    /// A sending end on a NIC that the caller brought, or one whose messages the flight recorder times.
    Custom(Box<dyn SendEnd>),
}

/// A receiving end on any NIC.
#[non_exhaustive]
pub enum AnyRecv {
    /// A receiving end on an RDMA device.
    Verbs(Box<RecvOn<VerbsNic>>),
    /// A receiving end over TCP.
    Socket(Box<SocketRecv>),
    /// A receiving end on the software NIC.
    Soft(Box<RecvOn<SoftNic>>),
    /// A receiving end on a NIC that the caller brought, or one whose messages the flight recorder times.
    Custom(Box<dyn RecvEnd>),
}

impl AnySend {
    /// Lets a keeper look after the end. The boxed end hides the NIC's kind.
    pub fn kept(self, keeper: &Keeper) -> Box<dyn SendEnd> {
        match self {
            AnySend::Verbs(end) => Box::new(KeeperEnd::new(*end, keeper)),
            AnySend::Socket(end) => Box::new(KeeperEnd::new(*end, keeper)),
            AnySend::Soft(end) => Box::new(KeeperEnd::new(*end, keeper)),
            AnySend::Custom(end) => Box::new(KeeperEnd::new(end, keeper)),
        }
    }
}

impl AnyRecv {
    /// Lets a keeper look after the end. The boxed end hides the NIC's kind.
    pub fn kept(self, keeper: &Keeper) -> Box<dyn RecvEnd> {
        match self {
            AnyRecv::Verbs(end) => Box::new(KeeperEnd::new(*end, keeper)),
            AnyRecv::Socket(end) => Box::new(KeeperEnd::new(*end, keeper)),
            AnyRecv::Soft(end) => Box::new(KeeperEnd::new(*end, keeper)),
            AnyRecv::Custom(end) => Box::new(KeeperEnd::new(end, keeper)),
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
