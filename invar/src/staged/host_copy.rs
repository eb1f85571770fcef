//! Pinned host memory in the place of GPU memory, for work that processors do.

use invar_cuda::{Direction, Driver, Gpu, GpuMemory, StagingBuffer};

use super::budget::Share;
use crate::device::gpu_allocation;
use crate::error::Kind;
use crate::memory_numbers::STAGED_BYTES;
use crate::{Error, Settings};

/// The least length of the memory. Lengths are powers of two, so that the memory serves again.
const BYTES_MIN: usize = 64 << 10;

/// Pinned host memory that stands for a range of GPU memory. The GPU's driver copies the bytes between
/// the two in the background.
#[derive(Debug)]
pub struct HostCopy {
    buffer: StagingBuffer,
    _share: Share<'static>,
}

impl HostCopy {
    /// Returns the pinned bytes that a range of `len` bytes takes.
    pub fn bytes_for(len: usize) -> usize {
        len.max(BYTES_MIN).checked_next_power_of_two().unwrap_or(usize::MAX)
    }

    /// Whether `INVAR_STAGING_BYTES` has room for ranges of these lengths at a time.
    pub fn fit_together(lens: impl Iterator<Item = usize>, settings: &Settings) -> bool {
        let bytes = lens.map(Self::bytes_for).fold(0, usize::saturating_add);
        bytes as u64 <= settings.gpu.staging.bytes_max
    }

    /// Pins memory for a range of at most `len` bytes on `gpu`. Returns `None` if too little is left of
    /// `INVAR_STAGING_BYTES`.
    ///
    /// # Errors
    /// The driver fails.
    pub fn new(gpu: &Gpu, len: usize, settings: &Settings) -> Result<Option<Self>, Error> {
        let (bytes, bytes_max) = (Self::bytes_for(len), settings.gpu.staging.bytes_max);
        let Some(share) = Share::of_process(bytes_max, bytes as u64) else { return Ok(None) };
        let buffer = StagingBuffer::new(gpu, 1, bytes)?;
        Ok(Some(HostCopy { buffer, _share: share }))
    }

    /// Whether [`new`](Self::new) would pin such memory for a range of `len` bytes on `gpu`.
    pub fn fits(&self, gpu: &Gpu, len: usize) -> bool {
        self.buffer.slot_bytes() == Self::bytes_for(len)
            && self.buffer.gpu().info().ordinal == gpu.info().ordinal
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.buffer.memory().as_ptr()
    }

    /// Starts to copy `len` bytes at `addr` on the GPU to the start of this memory.
    ///
    /// # Errors
    /// The range is too long, an earlier copy is in progress, or the driver fails.
    ///
    /// # Safety
    /// Until [`is_done`](Self::is_done) returns true, the bytes at `addr` stay allocated, and nobody
    /// writes them or accesses this memory.
    pub unsafe fn fetch(&mut self, addr: u64, len: usize) -> Result<(), Error> {
        // SAFETY: the caller has promised what `copy` demands.
        unsafe { self.copy(Direction::ToHost, addr, len) }
    }

    /// Starts to copy the first `len` bytes of this memory to `addr` on the GPU.
    ///
    /// # Errors
    /// The range is too long, an earlier copy is in progress, or the driver fails.
    ///
    /// # Safety
    /// Until [`is_done`](Self::is_done) returns true, the bytes at `addr` stay allocated, and nobody
    /// accesses them or writes this memory.
    pub unsafe fn store(&mut self, addr: u64, len: usize) -> Result<(), Error> {
        // SAFETY: the caller has promised what `copy` demands.
        unsafe { self.copy(Direction::ToGpu, addr, len) }
    }

    /// Returns whether no copy is in progress; does not wait.
    ///
    /// # Errors
    /// The driver fails.
    pub fn is_done(&mut self) -> Result<bool, Error> {
        Ok(self.buffer.is_done(0)?)
    }

    /// # Safety
    /// The caller keeps the promises of [`fetch`](Self::fetch) or [`store`](Self::store).
    unsafe fn copy(&mut self, direction: Direction, addr: u64, len: usize) -> Result<(), Error> {
        // SAFETY: the caller keeps the bytes until the copy is done.
        let memory = unsafe { GpuMemory::from_raw(self.buffer.gpu(), addr, len, ()) };
        self.buffer.start(0, direction, &memory, 0, len)?;
        STAGED_BYTES.add(len as u64);
        Ok(())
    }
}

/// Returns the GPU that has `len` bytes at `addr`.
///
/// # Errors
/// Fails if there is no CUDA, or if the bytes are not in one allocation of a GPU.
pub fn gpu_of(addr: u64, len: usize) -> Result<Gpu, Error> {
    let pointer = gpu_allocation(addr, len)?;
    let driver = Driver::open().map_err(Kind::NoCuda)?;
    Ok(Gpu::open(driver, pointer.gpu)?)
}
