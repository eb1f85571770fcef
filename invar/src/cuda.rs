//! GPU memory, for [`MemoryRegion::on_gpu`](crate::MemoryRegion::on_gpu).
//!
//! CUDA's driver is loaded at run time. On a host without the driver [`Driver::open`] returns
//! [`NoCuda`], and nothing else of CUDA is called.

pub use invar_cuda::{
    CudaError, DmaBuf, Driver, Gpu, GpuInfo, GpuMemory, MemoryError, NoCuda, Pointer, PointerKind,
};
pub use invar_linux::memory::OutOfRange;

/// How messages get between a GPU and a NIC: the [`decision`](crate::GpuPath::decision) and its reason.
pub mod gdr {
    pub use invar_cuda::gdr::{Decision, Path};
}

/// How received bytes become visible to a GPU: the [`flush`](crate::GpuPath::flush) of a path.
pub mod flush {
    pub use invar_cuda::flush::{Flush, Method, WritesOrdering};
}
