//! GPU memory for Invar.
//!
//! A NIC reads and writes GPU memory itself where the machine allows it (GPUDirect RDMA: by DMA-BUF
//! or by the module nvidia-peermem); elsewhere the bytes go through pinned host memory (staging).
//! [`gdr`] decides for each pair of GPU and NIC and says why; [`flush`] decides what makes received
//! bytes visible to the GPU.
//!
//! CUDA's driver is loaded at run time. Where there is none, [`Driver::open`] says so ([`NoCuda`])
//! and nothing else of CUDA is called.
//!
//! - [`Driver`], [`Gpu`]: what there is, and a GPU in use.
//! - [`GpuMemory`]: memory of a GPU, its [`DmaBuf`], copies to and from it; [`Pointer`] says what
//!   an address is.
//! - [`StagingBuffer`]: pinned host memory and asynchronous copies in and out of it, for the
//!   pipeline of [`invar_core::staging`].
//! - [`BufferDomains`]: keeps registrations of memory that was freed apart from those of memory
//!   that came to lie at the same address.
//! - [`Sysfs`]: what the kernel tells.
//!
//! With the feature `cust`, the driver may also be the one that the bindings of `cust` call
//! (`Driver::open_cust`), and a program that uses `cust` starts where there is no CUDA.

mod api;
mod domain;
mod driver;
mod error;
pub mod flush;
pub mod gdr;
mod gpu;
mod memory;
mod pointer;
mod staging;
mod sysfs;

#[cfg(feature = "cust")]
pub use cust;
pub use domain::BufferDomains;
pub use driver::Driver;
pub use error::{CudaError, MemoryError, NoCuda};
pub use gpu::{Gpu, GpuInfo};
pub use memory::{DmaBuf, GpuMemory};
pub use pointer::{Pointer, PointerKind};
pub use staging::{Direction, StagingBuffer};
pub use sysfs::{PciDevice, Peermem, Sysfs};
