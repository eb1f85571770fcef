//! GPU memory and pinned host memory.

use std::any::Any;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys::{CUmemRangeHandleType, CUpointer_attribute};
use invar_linux::env::page_size;
use invar_linux::memory::{HostMemory, OutOfRange};

use crate::api::{INVALID_VALUE, NOT_SUPPORTED};
use crate::pointer::attribute;
use crate::{CudaError, Gpu, MemoryError, Pointer};

/// A range of a GPU's memory; clones share it.
///
/// The CPU cannot access the bytes; the driver copies them in and out. If others change the bytes during
/// a copy, the copy may see old or new bytes, as with host memory that a NIC may write.
#[derive(Clone, Debug)]
pub struct GpuMemory {
    gpu: Gpu,
    addr: u64,
    len: usize,
    // The owner frees the bytes when the last clone goes.
    _owner: Arc<dyn Any + Send + Sync>,
}

/// GPU memory as a file descriptor for the drivers of other devices (`ibv_reg_dmabuf_mr(pd, offset, len,
/// iova, fd, access)`). If the program frees the memory first, the bytes live as long as the descriptor
/// and the objects made from it.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    /// Offset in the buffer at which the memory begins.
    pub offset: u64,
    /// Length of the memory in bytes.
    pub len: usize,
    /// Address of the memory on the GPU, which work requests use.
    pub iova: u64,
}

impl GpuMemory {
    /// Allocates `len` bytes on the GPU, at least one; their content is undefined.
    pub fn alloc(gpu: &Gpu, len: usize) -> Result<Self, CudaError> {
        let mut addr = 0;
        // SAFETY: The driver writes an address to `addr`, and `Allocation` frees that memory.
        unsafe { gpu.enter()?.cuMemAlloc_v2(&mut addr, len) }?;
        let owner = Allocation { gpu: gpu.clone(), addr };
        Ok(GpuMemory { gpu: gpu.clone(), addr, len, _owner: Arc::new(owner) })
    }

    /// Wraps memory of the host application: `len` bytes at `addr` on `gpu`. The last clone drops
    /// `keep_alive`.
    ///
    /// # Safety
    ///
    /// Until `keep_alive` is dropped, the bytes stay allocated. Nobody else writes the bytes that an
    /// unfinished copy or transfer reads or writes.
    pub unsafe fn from_raw(
        gpu: &Gpu,
        addr: u64,
        len: usize,
        keep_alive: impl Any + Send + Sync,
    ) -> Self {
        GpuMemory { gpu: gpu.clone(), addr, len, _owner: Arc::new(keep_alive) }
    }

    /// Returns the GPU that the memory belongs to.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the address of the first byte on the GPU.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes into the memory, and waits until they are there.
    ///
    /// The copy does not wait for work that the program has put on its streams, the default stream included.
    /// If such work uses the bytes, wait for it first.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        let to = self.locate(offset, bytes.len())?;
        let from = bytes.as_ptr().expose_provenance() as u64;
        // SAFETY: Both ranges exist, and nobody writes `bytes` during the call.
        Ok(unsafe { self.gpu.copy(to, from, bytes.len()) }?)
    }

    /// Copies bytes out of the memory.
    ///
    /// The copy does not wait for work that the program has put on its streams, the default stream included.
    /// If such work writes the bytes, wait for it first.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.locate(offset, bytes.len())?;
        let to = bytes.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: Both ranges exist, and this call borrows `bytes` exclusively.
        Ok(unsafe { self.gpu.copy(to, from, bytes.len()) }?)
    }

    /// Returns the driver's facts about the memory.
    ///
    /// # Errors
    /// CUDA does not know the memory; this is possible only with [`GpuMemory::from_raw`].
    pub fn pointer(&self) -> Result<Pointer, CudaError> {
        let pointer = Pointer::query(self.gpu.driver(), self.addr)?;
        pointer.ok_or_else(|| CudaError::failed("cuPointerGetAttribute", INVALID_VALUE))
    }

    /// Makes the driver's copies to and from the allocation synchronous, so that a NIC sees them
    /// (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`). Call this before a NIC gets the memory.
    ///
    /// The driver cannot do this for mapped memory (`cuMemMap`). There the call makes all copies of the GPU's primary
    /// context synchronous (`CU_CTX_SYNC_MEMOPS`), which the program shares. Returns false if the driver cannot do that
    /// either (before CUDA 12.1).
    pub fn sync_memops(&self) -> Result<bool, CudaError> {
        let on: c_uint = 1;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as u32;
        let current = self.gpu.enter()?;
        // SAFETY: The driver reads an integer from `on`.
        match unsafe { current.cuPointerSetAttribute((&raw const on).cast(), attribute, self.addr) }
        {
            Ok(()) => Ok(true),
            Err(error) if error.code() != Some(NOT_SUPPORTED) => Err(error),
            Err(_) => {
                let mut flags = 0;
                // SAFETY: The driver writes an integer to `flags`.
                let known = unsafe { current.cuCtxGetFlags(&mut flags) };
                // SAFETY: The call replaces all flags.
                let set = known
                    .and_then(|()| unsafe { current.cuCtxSetFlags(flags | CONTEXT_SYNC_MEMOPS) });
                Ok(set.is_ok())
            }
        }
    }

    /// Whether a NIC may reach the memory itself (`CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE`). Mapped memory
    /// that was created without `gpuDirectRDMACapable` is out of its reach. Returns `None` if the driver does not
    /// report this.
    pub fn gpudirect(&self) -> Option<bool> {
        let kind = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
        let capable: c_int = attribute(self.gpu.driver().api(), kind, self.addr).ok()?;
        Some(capable != 0)
    }

    /// Exports the memory as a DMA-BUF. Call this only if [`GpuInfo::dma_buf`](crate::GpuInfo::dma_buf)
    /// is true. The buffer consists of whole host pages, as the driver demands.
    pub fn dma_buf(&self) -> Result<DmaBuf, CudaError> {
        let page_mask = page_size() as u64 - 1;
        let start = self.addr & !page_mask;
        let end = (self.addr + self.len as u64).next_multiple_of(page_mask + 1);
        let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as u32;
        let mut fd: c_int = -1;
        let to = (&raw mut fd).cast::<c_void>();
        let len = (end - start) as usize;
        let current = self.gpu.enter()?;
        // SAFETY: For this type of handle the driver writes an `int` to `fd`.
        unsafe { current.cuMemGetHandleForAddressRange(to, start, len, kind, 0) }?;
        // SAFETY: The driver made the descriptor for the caller, who owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(DmaBuf { fd, offset: self.addr - start, len: self.len, iova: self.addr })
    }

    /// Returns the address of a range, if the range lies in the memory.
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

    /// A buffer of `cust`. It frees its memory in the current context, so the drop makes the GPU's
    /// context current.
    struct Adopted<T: DeviceCopy>(Gpu, Option<DeviceBuffer<T>>);

    impl<T: DeviceCopy> Drop for Adopted<T> {
        fn drop(&mut self) {
            let current = self.0.enter();
            drop(self.1.take());
            drop(current);
        }
    }

    impl GpuMemory {
        /// Wraps a buffer that the program has from `cust`, allocated on `gpu`.
        pub fn from_cust<T>(gpu: &Gpu, buffer: DeviceBuffer<T>) -> Self
        where
            T: DeviceCopy + Send + Sync + 'static,
        {
            let (addr, len) = (buffer.as_device_ptr().as_raw(), buffer.len() * size_of::<T>());
            let owner = Adopted(gpu.clone(), Some(buffer));
            // SAFETY: The buffer keeps its memory until it is dropped, and nobody else holds the buffer.
            unsafe { GpuMemory::from_raw(gpu, addr, len, owner) }
        }
    }
}

/// GPU memory that is freed on drop.
struct Allocation {
    gpu: Gpu,
    addr: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // An error belongs to an earlier call, or means that the process ends.
        // SAFETY: `GpuMemory::alloc` got this address, and nobody holds the memory any more.
        let _ = self.gpu.enter().and_then(|c| unsafe { c.cuMemFree_v2(self.addr) });
    }
}

/// Pinned host memory that is freed on drop.
struct Pinned {
    gpu: Gpu,
    start: NonNull<u8>,
}

// SAFETY: The value owns its bytes, which belong to no thread.
unsafe impl Send for Pinned {}
// SAFETY: Nobody dereferences the pointer through `&Pinned`.
unsafe impl Sync for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast();
        // An error belongs to an earlier call, or means that the process ends.
        // SAFETY: `pinned` got this address, and nobody holds the memory any more.
        let _ = self.gpu.enter().and_then(|c| unsafe { c.cuMemFreeHost(start) });
    }
}

impl Gpu {
    /// Allocates `len` bytes of zeroed, pinned host memory; `len` is at least 1. The memory keeps its
    /// address, and every GPU copies to and from it without help of the CPU.
    pub fn pinned(&self, len: usize) -> Result<HostMemory, CudaError> {
        let mut start = ptr::null_mut();
        // SAFETY: The driver writes an address to `start`, and `Pinned` frees that memory.
        unsafe { self.enter()?.cuMemHostAlloc(&mut start, len, FOR_EVERY_GPU) }?;
        let start = NonNull::new(start.cast::<u8>()).expect("success is memory");
        let owner = Pinned { gpu: self.clone(), start };
        // Zeroing keeps old content from being sent to a peer.
        // SAFETY: The driver allocated `len` bytes, and nobody else knows their address.
        unsafe { start.write_bytes(0, len) };
        // SAFETY: The memory is valid until `owner` is dropped, and nobody else has the address.
        Ok(unsafe { HostMemory::from_raw(start, len, owner) })
    }
}

/// `CU_CTX_SYNC_MEMOPS`.
const CONTEXT_SYNC_MEMOPS: c_uint = 0x80;
/// `CU_MEMHOSTALLOC_PORTABLE`.
const FOR_EVERY_GPU: c_uint = 1;
