//! Memory that a device may read and write.

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use invar_core::nic::Memory;
use invar_cuda::gdr::Path;
use invar_cuda::{CudaError, Gpu, GpuMemory, flush};
use invar_linux::memory::HostMemory;

use crate::error::Kind;
use crate::raw::{GpuRange, Registration};
use crate::{Device, Error, GpuPath, Settings};

/// Memory of the host, page-aligned, or of a GPU, registered with a device; clones are the same
/// memory.
///
/// Peers and the device change its content at any time, so it is never lent as a slice: it is
/// copied in and out. A comm keeps the regions of its requests until they are done, so a region
/// may be dropped at any time.
///
/// # Who may write to it
///
/// A peer that was told of it, by [`RecvComm::irecv`](crate::RecvComm::irecv), has its key, and a
/// key opens the whole region to every peer that is connected to the device, as long as there is
/// the region. The soft NIC keeps to exactly the region's bytes; hardware protects whole pages,
/// which here are the region's alone.
#[derive(Clone)]
pub struct MemoryRegion(Arc<Inner>);

struct Inner {
    // Ends before the memory and the device.
    _registration: Option<Registration>,
    lkey: u32,
    rkey: u32,
    bytes: Bytes,
    device: Device,
}

/// Where the bytes are.
enum Bytes {
    Host(HostMemory),
    Gpu { memory: GpuMemory, path: GpuPath },
}

impl MemoryRegion {
    /// Zeroed memory of `len` bytes, at least one.
    pub fn new(device: &Device, len: usize) -> Result<Self, Error> {
        if len == 0 {
            return Err(Kind::Usage("a memory region needs at least one byte".into()).into());
        }
        let failed = |error| device.failed(error);
        let memory = device.adapter().alloc(len).map_err(failed)?;
        let access = device.data_access();
        let registration = device.adapter().reg_mr(&memory, access).map_err(failed)?;
        Ok(Self::with(device, Bytes::Host(memory), Some(registration)))
    }

    /// Memory of a GPU, at least one byte. Where the device reaches it, it is registered; where
    /// not, messages pass through host memory. [`MemoryRegion::gpu_path`] says which and why.
    ///
    /// # Errors
    /// What the GPU's driver or the device says.
    pub fn on_gpu(device: &Device, memory: &GpuMemory, settings: &Settings) -> Result<Self, Error> {
        if memory.is_empty() {
            return Err(Kind::Usage("a memory region needs at least one byte".into()).into());
        }
        let gpu = memory.gpu().info();
        let cuda = |error: CudaError| Kind::Gpu(error.into());
        let path = device.memory_path(memory, settings).map_err(cuda)?;
        log::info!("{} and GPU {} ({}): {path}", device.info().name, gpu.ordinal, gpu.name);
        let registration = if path.decision.path.is_direct() {
            memory.sync_memops().map_err(cuda)?;
            let by_dma_buf = path.decision.path == Path::DmaBuf;
            let dma_buf = by_dma_buf.then(|| memory.dma_buf()).transpose().map_err(cuda)?;
            let access = device.data_access();
            let range = GpuRange {
                addr: memory.addr(),
                len: memory.len(),
                dma_buf: dma_buf.as_ref().map(|buf| (buf.as_fd(), buf.offset)),
            };
            // SAFETY: the region has the memory, and lets the registration end first.
            let registered = unsafe { device.adapter().reg_gpu_mr(&range, access) };
            Some(registered.map_err(|error| device.failed(error))?)
        } else {
            None
        };
        let bytes = Bytes::Gpu { memory: memory.clone(), path };
        Ok(Self::with(device, bytes, registration))
    }

    fn with(device: &Device, bytes: Bytes, registration: Option<Registration>) -> Self {
        MemoryRegion(Arc::new(Inner {
            lkey: registration.as_ref().map_or(0, |registration| registration.lkey()),
            rkey: registration.as_ref().map_or(0, |registration| registration.rkey()),
            _registration: registration,
            bytes,
            device: device.clone(),
        }))
    }

    /// Length in bytes; never 0.
    #[expect(clippy::len_without_is_empty, reason = "there is no empty one")]
    pub fn len(&self) -> usize {
        match &self.0.bytes {
            Bytes::Host(memory) => memory.len(),
            Bytes::Gpu { memory, .. } => memory.len(),
        }
    }

    /// Copies bytes out.
    ///
    /// What a receive that is done brought is seen; of what is still coming, each aligned 8-byte
    /// word old or new.
    ///
    /// # Errors
    /// A range that is not within the region; of a GPU's memory, what its driver says.
    #[inline]
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        match &self.0.bytes {
            Bytes::Host(memory) => memory.read_at(offset, bytes).map_err(Kind::Range)?,
            Bytes::Gpu { memory, .. } => memory.read_at(offset, bytes).map_err(Kind::Gpu)?,
        }
        Ok(())
    }

    /// Copies bytes in. A send that is under way sees them or not.
    ///
    /// # Errors
    /// As [`MemoryRegion::read_at`].
    #[inline]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        match &self.0.bytes {
            Bytes::Host(memory) => memory.write_at(offset, bytes).map_err(Kind::Range)?,
            Bytes::Gpu { memory, .. } => memory.write_at(offset, bytes).map_err(Kind::Gpu)?,
        }
        Ok(())
    }

    /// Of host memory, its first byte.
    pub(crate) fn host_start(&self) -> Option<NonNull<u8>> {
        match &self.0.bytes {
            Bytes::Host(memory) => NonNull::new(memory.as_ptr()),
            Bytes::Gpu { .. } => None,
        }
    }

    /// Of a GPU's memory, by which way messages get between it and the device.
    pub fn gpu_path(&self) -> Option<&GpuPath> {
        match &self.0.bytes {
            Bytes::Host(_) => None,
            Bytes::Gpu { path, .. } => Some(path),
        }
    }

    /// The GPU's memory where it is one that the device does not reach.
    #[inline]
    pub(crate) fn staged(&self) -> Option<&GpuMemory> {
        match &self.0.bytes {
            Bytes::Gpu { memory, path, .. } if !path.decision.path.is_direct() => Some(memory),
            _ => None,
        }
    }

    /// How what was received there becomes visible, and on which GPU.
    pub(crate) fn flush(&self) -> Option<(flush::Method, &Gpu)> {
        match &self.0.bytes {
            Bytes::Host(_) => None,
            Bytes::Gpu { memory, path } => Some((path.flush.method, memory.gpu())),
        }
    }

    /// The device that it is registered with.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Address and length of a range, for a work request on `device`.
    #[inline]
    pub(crate) fn locate(
        &self,
        device: &Device,
        range: &Range<usize>,
    ) -> Result<(u64, u32), Error> {
        let region_len = self.len();
        let len = range.end.wrapping_sub(range.start);
        if range.start > range.end || range.end > region_len {
            return Err(Kind::Usage(format!("bytes {range:?} of a region of {region_len}")).into());
        }
        let Ok(len) = u32::try_from(len) else {
            return Err(Kind::Usage(format!("{len} bytes are more than a message may have")).into());
        };
        if !self.0.device.is(device) {
            let (ours, theirs) = (&device.info().name, &self.0.device.info().name);
            let text = format!("a region of {theirs} on a connection of {ours}, opened apart");
            return Err(Kind::Usage(text).into());
        }
        let addr = match &self.0.bytes {
            Bytes::Host(memory) => memory.addr(),
            Bytes::Gpu { memory, .. } => memory.addr(),
        };
        Ok((addr + range.start as u64, len))
    }

    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.0.lkey
    }

    #[inline]
    pub(crate) fn rkey(&self) -> u32 {
        self.0.rkey
    }
}
