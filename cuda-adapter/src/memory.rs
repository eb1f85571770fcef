//! Memory of a GPU.

use std::any::Any;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys::{CUmemRangeHandleType, CUpointer_attribute};
use invar_linux::env::page_size;
use invar_linux::memory::{HostMemory, OutOfRange};

use crate::api::INVALID_VALUE;
use crate::{CudaError, Gpu, MemoryError, Pointer};

/// A range of a GPU's memory; clones share it.
///
/// The CPU does not reach it: bytes are copied in and out, by the driver. As with host memory that
/// a NIC may write, what others change meanwhile is seen old or new.
#[derive(Clone, Debug)]
pub struct GpuMemory {
    gpu: Gpu,
    addr: u64,
    len: usize,
    // Frees the bytes when the last clone goes.
    _owner: Arc<dyn Any + Send + Sync>,
}

/// GPU memory as a file descriptor that other devices' drivers understand
/// (`ibv_reg_dmabuf_mr(pd, offset, len, iova, fd, access)`). The memory may be freed before it; the
/// bytes then live as long as the descriptor and what was made from it.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    /// Where in the buffer the memory begins.
    pub offset: u64,
    /// Bytes of the memory.
    pub len: usize,
    /// The memory's address on the GPU, by which work requests name it.
    pub iova: u64,
}

impl GpuMemory {
    /// `len` bytes of the GPU, at least one; what they hold is undefined.
    pub fn alloc(gpu: &Gpu, len: usize) -> Result<Self, CudaError> {
        let mut addr = 0;
        // SAFETY: the driver writes an address, which `Allocation` frees.
        unsafe { gpu.enter()?.cuMemAlloc_v2(&mut addr, len) }?;
        let owner = Allocation { gpu: gpu.clone(), addr };
        Ok(GpuMemory { gpu: gpu.clone(), addr, len, _owner: Arc::new(owner) })
    }

    /// Memory of the host application, `len` bytes at `addr` on `gpu`. `keep_alive` is dropped with
    /// the last clone.
    ///
    /// # Safety
    ///
    /// Until `keep_alive` is dropped, the bytes stay allocated, and nobody else writes those that a
    /// copy or a transfer under way reads or writes.
    pub unsafe fn from_raw(
        gpu: &Gpu,
        addr: u64,
        len: usize,
        keep_alive: impl Any + Send + Sync,
    ) -> Self {
        GpuMemory { gpu: gpu.clone(), addr, len, _owner: Arc::new(keep_alive) }
    }

    /// The GPU that it belongs to.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// First byte, on the GPU.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes in, and waits until they are there.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        let to = self.locate(offset, bytes.len())?;
        let current = self.gpu.enter()?;
        // SAFETY: both ranges are there, and nobody writes `bytes`.
        Ok(unsafe { current.cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()) }?)
    }

    /// Copies bytes out.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.locate(offset, bytes.len())?;
        let current = self.gpu.enter()?;
        // SAFETY: both ranges are there, and `bytes` is ours alone.
        Ok(unsafe { current.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, bytes.len()) }?)
    }

    /// What the driver says about it.
    ///
    /// # Errors
    /// Memory that CUDA does not know, which only [`GpuMemory::from_raw`] can be given.
    pub fn pointer(&self) -> Result<Pointer, CudaError> {
        let pointer = Pointer::query(self.gpu.driver(), self.addr)?;
        pointer.ok_or_else(|| CudaError::failed("cuPointerGetAttribute", INVALID_VALUE))
    }

    /// Makes the driver's own copies to and from the allocation wait until they are done, so that a
    /// NIC sees them (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`). To be called before a NIC is given it.
    pub fn sync_memops(&self) -> Result<(), CudaError> {
        let on: c_uint = 1;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as u32;
        let current = self.gpu.enter()?;
        // SAFETY: the driver reads an integer.
        unsafe { current.cuPointerSetAttribute((&raw const on).cast(), attribute, self.addr) }
    }

    /// Exports it as a DMA-BUF; only where [`GpuInfo::dma_buf`](crate::GpuInfo::dma_buf) says so.
    /// The buffer is of whole host pages, as the driver demands.
    pub fn dma_buf(&self) -> Result<DmaBuf, CudaError> {
        let page_mask = page_size() as u64 - 1;
        let start = self.addr & !page_mask;
        let end = (self.addr + self.len as u64).next_multiple_of(page_mask + 1);
        let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as u32;
        let mut fd: c_int = -1;
        let to = (&raw mut fd).cast::<c_void>();
        let len = (end - start) as usize;
        let current = self.gpu.enter()?;
        // SAFETY: for this type of handle the driver writes an `int`.
        unsafe { current.cuMemGetHandleForAddressRange(to, start, len, kind, 0) }?;
        // SAFETY: a descriptor made for the caller.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(DmaBuf { fd, offset: self.addr - start, len: self.len, iova: self.addr })
    }

    /// The address of a range.
    pub(crate) fn locate(&self, offset: usize, len: usize) -> Result<u64, OutOfRange> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.addr + offset as u64),
            _ => Err(OutOfRange { offset, len, region_len: self.len }),
        }
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(feature = "cust")]
mod adopted {
    use cust::memory::{DeviceBuffer, DeviceCopy};

    use super::GpuMemory;
    use crate::Gpu;

    /// A buffer of `cust`; it frees its memory in whatever context is current.
    struct Adopted<T: DeviceCopy>(Gpu, Option<DeviceBuffer<T>>);

    impl<T: DeviceCopy> Drop for Adopted<T> {
        fn drop(&mut self) {
            let current = self.0.enter();
            drop(self.1.take());
            drop(current);
        }
    }

    impl GpuMemory {
        /// Memory that a program has from `cust`, which was allocated on `gpu`.
        pub fn from_cust<T>(gpu: &Gpu, buffer: DeviceBuffer<T>) -> Self
        where
            T: DeviceCopy + Send + Sync + 'static,
        {
            let (addr, len) = (buffer.as_device_ptr().as_raw(), buffer.len() * size_of::<T>());
            let owner = Adopted(gpu.clone(), Some(buffer));
            // SAFETY: the buffer, which nobody else holds, keeps its memory until it is dropped.
            unsafe { GpuMemory::from_raw(gpu, addr, len, owner) }
        }
    }
}

/// Memory to be freed.
struct Allocation {
    gpu: Gpu,
    addr: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // An error is that of an earlier call, or the process ends.
        // SAFETY: exactly what `GpuMemory::alloc` got, and nobody holds it any more.
        let _ = self.gpu.enter().and_then(|c| unsafe { c.cuMemFree_v2(self.addr) });
    }
}

/// Pinned host memory to be freed.
struct Pinned {
    gpu: Gpu,
    start: NonNull<u8>,
}

// SAFETY: owns its bytes, which have no thread affinity.
unsafe impl Send for Pinned {}
// SAFETY: never dereferenced through `&Pinned`.
unsafe impl Sync for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast();
        // As for `Allocation`.
        // SAFETY: exactly what `pinned` got, and nobody holds it any more.
        let _ = self.gpu.enter().and_then(|c| unsafe { c.cuMemFreeHost(start) });
    }
}

/// See [`Gpu::pinned`].
pub(crate) fn pinned(gpu: &Gpu, len: usize) -> Result<HostMemory, CudaError> {
    let mut start = ptr::null_mut();
    // SAFETY: the driver writes an address, which `Pinned` frees.
    unsafe { gpu.enter()?.cuMemHostAlloc(&mut start, len, FOR_EVERY_GPU) }?;
    let start = NonNull::new(start.cast::<u8>()).expect("success is memory");
    let owner = Pinned { gpu: gpu.clone(), start };
    // What lay there before is nobody's to be sent.
    // SAFETY: so many bytes were allocated, and nobody else knows of them.
    unsafe { start.write_bytes(0, len) };
    // SAFETY: valid until `owner` is dropped; nobody else has the address.
    Ok(unsafe { HostMemory::from_raw(start, len, owner) })
}

/// `CU_MEMHOSTALLOC_PORTABLE`.
const FOR_EVERY_GPU: c_uint = 1;
