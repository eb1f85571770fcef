//! Pinned host memory in the place of GPU memory, for work that processors do.

use invar_cuda::{Direction, Driver, Gpu, GpuMemory, Pointer, StagingBuffer};
use invar_linux::env::page_size;

use super::budget::Share;
use crate::device::gpu_allocation;
use crate::error::Kind;
use crate::memory_numbers::STAGED_BYTES;
use crate::{Error, Settings};

/// The least length of the memory. Lengths are powers of two, so that the memory serves again.
const BYTES_MIN: usize = 64 << 10;

/// The driver begins each allocation at a multiple of this.
const ALLOCATION_ALIGN: usize = 256;

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

    /// Whether the memory can stand for a range of `len` bytes on `gpu`.
    pub fn fits(&self, gpu: &Gpu, len: usize) -> bool {
        self.bytes() >= len && self.buffer.gpu().info().ordinal == gpu.info().ordinal
    }

    /// Returns the number of pinned bytes.
    pub fn bytes(&self) -> usize {
        self.buffer.slot_bytes()
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

/// Returns the GPU that has the `len` bytes at `addr`. NCCL registers whole pages, so the range may have several
/// allocations, and unused bytes beside them.
///
/// # Errors
/// Fails if there is no CUDA, if a page of the range has no memory of a GPU, or if the range is on two GPUs.
pub fn gpu_of(addr: u64, len: usize) -> Result<Gpu, Error> {
    let ordinal = owner((addr, len), page_size() as u64, |addr| gpu_allocation(addr, 1))?;
    let driver = Driver::open().map_err(Kind::NoCuda)?;
    Ok(Gpu::open(driver, ordinal)?)
}

/// Returns the number of the GPU that has a range. `allocation` returns the allocation at an address.
fn owner(
    (addr, len): (u64, usize),
    page: u64,
    allocation: impl Fn(u64) -> Result<Pointer, Error>,
) -> Result<u32, Error> {
    let end = addr.saturating_add(len as u64);
    let (mut at, mut gpu) = (addr, None);
    loop {
        // The page may begin with unused bytes.
        let page_end = (at | (page - 1)).saturating_add(1).min(end);
        let found = allocation(at).or_else(|error| {
            let mut further = (at..page_end).step_by(ALLOCATION_ALIGN).skip(1);
            further.find_map(|addr| allocation(addr).ok()).ok_or(error)
        })?;
        let first = *gpu.get_or_insert(found.gpu);
        if found.gpu != first {
            let text = format!(
                "{len} bytes at {addr:#x} are on GPU {first} and on GPU {}: register the memory of each GPU by \
                 itself",
                found.gpu
            );
            return Err(Kind::Usage(text).into());
        }
        // A page is on one GPU, so the rest of the allocation's last page needs no look.
        at = found.base.saturating_add(found.len as u64).next_multiple_of(page);
        if at >= end {
            return Ok(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use invar_cuda::PointerKind;

    use super::*;

    /// Returns the owner of a range, with pages of 4096 bytes. Each allocation has a GPU, an address and a length.
    fn owner_of(range: (u64, usize), allocations: &[(u32, u64, usize)]) -> Result<u32, String> {
        let at = |addr: u64| -> Result<Pointer, Error> {
            let contains =
                |(_, base, len): &&(u32, u64, usize)| (*base..*base + *len as u64).contains(&addr);
            let (gpu, base, len) = *allocations
                .iter()
                .find(contains)
                .ok_or_else(|| Kind::Usage(format!("nothing at {addr:#x}")))?;
            Ok(Pointer { kind: PointerKind::Device, gpu, buffer_id: base, base, len })
        };
        owner(range, 4096, at).map_err(|error| error.to_string())
    }

    #[test]
    fn a_page_is_on_the_gpu_of_any_allocation_in_it() {
        let allocations = [(1, 0x10200, 300), (1, 0x10400, 0x2000)];
        assert_eq!(owner_of((0x10000, 0x3000), &allocations), Ok(1));
        assert_eq!(owner_of((0x10400, 1), &allocations), Ok(1));
    }

    #[test]
    fn a_range_of_several_allocations_is_on_their_gpu() {
        let allocations = [(0, 0x20_0000, 2 << 20), (0, 0x40_0000, 2 << 20)];
        assert_eq!(owner_of((0x20_1000, 3 << 20), &allocations), Ok(0));
    }

    #[test]
    fn a_range_on_two_gpus_or_with_a_page_of_no_gpu_is_refused() {
        let allocations = [(0, 0x20_0000, 2 << 20), (1, 0x40_0000, 100)];
        let error = owner_of((0x20_0000, 4 << 20), &allocations).unwrap_err();
        assert!(
            error.ends_with("are on GPU 0 and on GPU 1: register the memory of each GPU by itself"),
            "{error}"
        );
        let error = owner_of((0x40_0000, 8192), &allocations).unwrap_err();
        assert_eq!(error, "nothing at 0x401000");
    }
}
