//! Pinned host memory in the place of GPU memory, for work that processors do.

use invar_cuda::{Direction, Driver, Gpu, GpuMemory, Pointer, PointerKind, StagingBuffer};

use super::budget::Share;
use crate::error::Kind;
use crate::{Error, Settings};

/// The least length of a copy. Lengths are powers of two, so that a copy serves again for other memory.
const BYTES_MIN: usize = 64 << 10;

/// Pinned host memory that stands for a range of GPU memory. The bytes are fetched from the GPU, or stored
/// to it, in the background.
pub struct HostCopy {
    buffer: StagingBuffer,
    _share: Share<'static>,
}

impl HostCopy {
    /// Allocates memory for at least `len` bytes of `gpu`. Returns `None` if too little is left of
    /// `INVAR_STAGING_BYTES`.
    ///
    /// # Errors
    /// Fails if the setting is less than `len`, or if the driver fails.
    pub fn new(gpu: &Gpu, len: usize, settings: &Settings) -> Result<Option<Self>, Error> {
        let bytes = len.max(BYTES_MIN).checked_next_power_of_two().unwrap_or(usize::MAX);
        let bytes_max = settings.gpu.staging.bytes_max;
        if bytes as u64 > bytes_max {
            let text = format!(
                "{len} bytes of GPU memory take {bytes} bytes of pinned host memory, beyond \
                 INVAR_STAGING_BYTES={bytes_max}"
            );
            return Err(Kind::Usage(text).into());
        }
        let Some(share) = Share::of_process(bytes_max, bytes as u64) else { return Ok(None) };
        let buffer = StagingBuffer::new(gpu, 1, bytes).map_err(|error| Kind::Gpu(error.into()))?;
        Ok(Some(HostCopy { buffer, _share: share }))
    }

    /// The GPU of the memory.
    pub fn gpu(&self) -> &Gpu {
        self.buffer.gpu()
    }

    /// Number of bytes that there is room for.
    pub fn capacity(&self) -> usize {
        self.buffer.slot_bytes()
    }

    /// The first byte.
    pub fn start(&self) -> *mut u8 {
        self.buffer.memory().as_ptr()
    }

    /// Starts to copy `len` bytes from `addr` on the GPU to the first bytes of this memory.
    ///
    /// # Errors
    /// The memory is too short, a copy is not done, or the driver fails.
    ///
    /// # Safety
    /// The bytes at `addr` stay allocated, and nobody accesses the bytes of this memory, until
    /// [`is_done`](Self::is_done) says so.
    pub unsafe fn fetch(&mut self, addr: u64, len: usize) -> Result<(), Error> {
        // SAFETY: the caller has promised what `copy` demands.
        unsafe { self.copy(Direction::ToHost, addr, len) }
    }

    /// Starts to copy the first `len` bytes of this memory to `addr` on the GPU.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    ///
    /// # Safety
    /// As [`fetch`](Self::fetch), and nobody else accesses the bytes at `addr` meanwhile.
    pub unsafe fn store(&mut self, addr: u64, len: usize) -> Result<(), Error> {
        // SAFETY: the caller has promised what `copy` demands.
        unsafe { self.copy(Direction::ToGpu, addr, len) }
    }

    /// # Safety
    /// As [`fetch`](Self::fetch).
    unsafe fn copy(&mut self, direction: Direction, addr: u64, len: usize) -> Result<(), Error> {
        // SAFETY: the caller keeps the memory until the copy is done.
        let memory = unsafe { GpuMemory::from_raw(self.buffer.gpu(), addr, len, ()) };
        let started = self.buffer.start(0, direction, &memory, 0, len);
        started.map_err(|error| Kind::Gpu(error).into())
    }

    /// Whether the copy is done; returns without waiting.
    ///
    /// # Errors
    /// The driver fails.
    pub fn is_done(&mut self) -> Result<bool, Error> {
        self.buffer.is_done(0).map_err(|error| Kind::Gpu(error.into()).into())
    }
}

/// Returns the GPU that has `len` bytes at `addr`.
///
/// # Errors
/// There is no CUDA driver, or the bytes are not in one allocation of a GPU.
pub fn gpu_of(addr: u64, len: usize) -> Result<Gpu, Error> {
    let driver = Driver::open().map_err(Kind::NoCuda)?;
    let pointer = Pointer::query(driver, addr).map_err(|error| Kind::Gpu(error.into()))?;
    match pointer {
        Some(Pointer { kind: PointerKind::Device, gpu, base, len: room, .. })
            if len <= room - (addr - base) as usize =>
        {
            Ok(Gpu::open(driver, gpu).map_err(|error| Kind::Gpu(error.into()))?)
        }
        _ => {
            let text = format!("{len} bytes at {addr:#x} are not in one allocation of a GPU");
            Err(Kind::Usage(text).into())
        }
    }
}
