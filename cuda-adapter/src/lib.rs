//! GPU memory for Invar.
//!
//! Where the machine allows it, a NIC reads and writes GPU memory itself (GPUDirect RDMA: by DMA-BUF or
//! by the kernel module nvidia-peermem). Elsewhere the bytes go through pinned host memory (staging).
//! [`gdr`] chooses the path for each pair of GPU and NIC and gives the reason. [`flush`] chooses how
//! received bytes become visible to the GPU.
//!
//! The crate loads CUDA's driver at run time. Without a driver, [`Driver::open`] returns [`NoCuda`], and
//! the crate calls nothing else of CUDA.
//!
//! - [`Driver`], [`Gpu`]: the driver with its list of GPUs, and an opened GPU.
//! - [`GpuMemory`]: memory of a GPU, its [`DmaBuf`], and copies to and from it. [`Pointer`] tells what
//!   lies at an address.
//! - [`StagingBuffer`]: pinned host memory with asynchronous copies in and out of it, for the pipeline
//!   of [`invar_core::staging`].
//! - [`BufferDomains`]: separates registrations of freed memory from those of new memory at the same
//!   address.
//! - [`Sysfs`]: the kernel's facts about devices and modules.
//!
//! With the feature `cust`, the crate can also call the driver through the bindings of `cust`
//! (`Driver::open_cust`). A program that uses `cust` then starts on hosts without CUDA.

mod api;
mod domain;
mod driver;
mod error;
pub mod flush;
pub mod gdr;
mod gpu;
mod library;
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
