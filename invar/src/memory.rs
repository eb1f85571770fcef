//! Memory that a device may read and write.

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Once};

use invar_core::nic::{Memory, NicError, Verb};
use invar_cuda::gdr::Path;
use invar_cuda::{CudaError, Gpu, GpuMemory, flush};
use invar_linux::memory::HostMemory;

use crate::error::Kind;
use crate::raw::{GpuRange, Registration};
use crate::{Device, Error, GpuPath, Settings};

/// Memory that is registered with a device: page-aligned memory of the host, or memory of a GPU.
/// Clones are handles of the same memory.
///
/// Peers and the device may change the content at any time. So no function lends the memory as a slice;
/// the program copies bytes in and out. A comm keeps the regions of its requests until they are done,
/// so a program may drop a region at any time.
///
/// # Access of peers
///
/// [`RecvComm::irecv`](crate::RecvComm::irecv) tells the region's key to the peer. With the key, any peer
/// of an RDMA device can reach the whole region for as long as the region exists. The software NIC lets a
/// peer reach only the regions that its own connection has told it of, and only their exact bytes.
/// Hardware protects whole pages, which the region does not share with other memory.
#[derive(Clone)]
pub struct MemoryRegion(Arc<Inner>);

struct Inner {
    // The registration ends before the memory and the device.
    _registration: Option<Registration>,
    lkey: u32,
    rkey: u32,
    bytes: Bytes,
    device: Device,
}

/// The memory of a region.
enum Bytes {
    Host(HostMemory),
    Gpu { memory: GpuMemory, path: GpuPath },
}

impl MemoryRegion {
    /// Allocates and registers `len` zeroed bytes of the host.
    ///
    /// # Errors
    /// `len` is 0, or the device cannot register so much memory.
    pub fn new(device: &Device, len: usize) -> Result<Self, Error> {
        if len == 0 {
            return Err(Kind::Usage("a memory region needs at least one byte".into()).into());
        }
        let failed = |error| device.failed(error);
        let memory = device.adapter().alloc(len).map_err(failed)?;
        if memory.len() < len {
            let cause = "the NIC gave less memory than it was asked for";
            return Err(failed(NicError::new(Verb::AllocMemory, 0, cause)));
        }
        let access = device.data_access();
        let registration = device.adapter().reg_mr(&memory, access).map_err(failed)?;
        Ok(Self::with(device, Bytes::Host(memory), Some(registration)))
    }

    /// Makes a region of a GPU's memory.
    ///
    /// If the device reaches the memory, this registers it. Otherwise messages pass through pinned host
    /// memory. [`MemoryRegion::gpu_path`] says which, and why.
    ///
    /// # Errors
    /// The memory is empty, or the GPU's driver or the device fails.
    pub fn on_gpu(device: &Device, memory: &GpuMemory, settings: &Settings) -> Result<Self, Error> {
        if memory.is_empty() {
            return Err(Kind::Usage("a memory region needs at least one byte".into()).into());
        }
        let gpu = memory.gpu().info();
        let cuda = |error: CudaError| Kind::Gpu(error.into());
        let path = device.memory_path(memory, settings).map_err(cuda)?;
        log::info!("{} and GPU {} ({}): {path}", device.info().name, gpu.ordinal, gpu.name);
        let is_direct = path.decision.path.is_direct();
        // Copies that stage the memory, too, must find what the program has copied into it.
        match memory.sync_memops() {
            Ok(true) => {}
            Err(error) if is_direct => return Err(cuda(error).into()),
            Ok(false) | Err(_) => {
                static WARNED: Once = Once::new();
                WARNED.call_once(|| {
                    log::warn!(
                        "CUDA's driver cannot make copies to and from this memory of GPU {} ({}) synchronous, so {} \
                         may send bytes before a copy has written them: wait for copies before each send, or use a \
                         driver of CUDA 12.1 or later",
                        gpu.ordinal,
                        gpu.name,
                        device.info().name
                    );
                });
            }
        }
        let registration = if is_direct {
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

    /// The length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "there is no empty one")]
    pub fn len(&self) -> usize {
        match &self.0.bytes {
            Bytes::Host(memory) => memory.len(),
            Bytes::Gpu { memory, .. } => memory.len(),
        }
    }

    /// Copies bytes from the region, from byte `offset` on, until `bytes` is full.
    ///
    /// The copy has all bytes of receives that are done. While a message arrives, each aligned word of 8
    /// bytes is either old or new. A copy from GPU memory does not wait for work on the program's streams,
    /// the default stream included.
    ///
    /// # Errors
    /// The bytes are not within the region, or the GPU's driver fails.
    #[inline]
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        match &self.0.bytes {
            Bytes::Host(memory) => memory.read_at(offset, bytes).map_err(Kind::Range)?,
            Bytes::Gpu { memory, .. } => memory.read_at(offset, bytes).map_err(Kind::Gpu)?,
        }
        Ok(())
    }

    /// Copies `bytes` into the region, from byte `offset` on. A send that is under way may carry the old
    /// or the new bytes. A copy into GPU memory does not wait for work on the program's streams, the default stream
    /// included.
    ///
    /// # Errors
    /// The bytes are not within the region, or the GPU's driver fails.
    #[inline]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        match &self.0.bytes {
            Bytes::Host(memory) => memory.write_at(offset, bytes).map_err(Kind::Range)?,
            Bytes::Gpu { memory, .. } => memory.write_at(offset, bytes).map_err(Kind::Gpu)?,
        }
        Ok(())
    }

    /// The first byte of host memory; `None` for GPU memory.
    pub(crate) fn host_start(&self) -> Option<NonNull<u8>> {
        match &self.0.bytes {
            Bytes::Host(memory) => NonNull::new(memory.as_ptr()),
            Bytes::Gpu { .. } => None,
        }
    }

    /// The way by which messages get between the GPU and the device; `None` for host memory.
    pub fn gpu_path(&self) -> Option<&GpuPath> {
        match &self.0.bytes {
            Bytes::Host(_) => None,
            Bytes::Gpu { path, .. } => Some(path),
        }
    }

    /// The GPU's memory, if the device does not reach it.
    #[inline]
    pub(crate) fn staged(&self) -> Option<&GpuMemory> {
        match &self.0.bytes {
            Bytes::Gpu { memory, path, .. } if !path.decision.path.is_direct() => Some(memory),
            _ => None,
        }
    }

    /// The flush that makes received bytes visible, and the GPU.
    pub(crate) fn flush(&self) -> Option<(flush::Method, &Gpu)> {
        match &self.0.bytes {
            Bytes::Host(_) => None,
            Bytes::Gpu { memory, path } => Some((path.flush.method, memory.gpu())),
        }
    }

    /// The device that the region is registered with.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The address and the length of a range, for a work request on `device`.
    #[inline]
    pub(crate) fn locate(
        &self,
        device: &Device,
        range: &Range<usize>,
    ) -> Result<(u64, u32), Error> {
        let region_len = self.len();
        let len = range.end.wrapping_sub(range.start);
        if range.start > range.end || range.end > region_len {
            let text =
                format!("bytes {range:?} are not within the region, which has {region_len} bytes");
            return Err(Kind::Usage(text).into());
        }
        let Ok(len) = u32::try_from(len) else {
            return Err(Kind::Usage(format!("{len} bytes are more than a message may have")).into());
        };
        if !self.0.device.is(device) {
            let (ours, theirs) = (&device.info().name, &self.0.device.info().name);
            let text = format!(
                "the region belongs to device {theirs} and the connection to device {ours}, which \
                 were opened apart; use one open device for both"
            );
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
