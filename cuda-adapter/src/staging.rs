//! Pinned host memory with asynchronous copies between it and a GPU.

use std::ffi::c_void;
use std::fmt;
use std::ptr;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};
use invar_linux::memory::{HostMemory, OutOfRange};

use crate::api::{Api, OUT_OF_MEMORY};
use crate::{CudaError, Gpu, GpuMemory, MemoryError};

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the GPU to the host, before a send.
    ToHost,
    /// From the host to the GPU, after a receive.
    ToGpu,
}

/// Slots of pinned host memory, with at most one copy in or out of each slot at a time. A
/// [`Port`](invar_core::staging::Port) uses this buffer for its copies.
pub struct StagingBuffer {
    gpu: Gpu,
    stream: CUstream,
    slots: Vec<StagingSlot>,
    slot_bytes: usize,
    memory: HostMemory,
}

/// The event of a slot, and the GPU memory of the slot's unfinished copy.
struct StagingSlot {
    event: CUevent,
    copying: Option<GpuMemory>,
}

// SAFETY: Any thread may use streams and events, after it has made their context current.
unsafe impl Send for StagingBuffer {}

impl StagingBuffer {
    /// Allocates `slots` × `slot_bytes` bytes of pinned memory for copies to and from `gpu`.
    pub fn new(gpu: &Gpu, slots: usize, slot_bytes: usize) -> Result<Self, CudaError> {
        let len = slots.checked_mul(slot_bytes);
        let len = len.ok_or_else(|| CudaError::failed("cuMemHostAlloc", OUT_OF_MEMORY))?;
        let memory = gpu.pinned(len)?;
        let current = gpu.enter()?;
        // `drop` destroys the stream.
        let stream = current.create_stream()?;
        let empty = Vec::with_capacity(slots);
        let mut buffer =
            StagingBuffer { gpu: gpu.clone(), stream, slots: empty, slot_bytes, memory };
        for _ in 0..slots {
            let event = create_event(&current)?;
            buffer.slots.push(StagingSlot { event, copying: None });
        }
        Ok(buffer)
    }

    /// Returns the pinned memory of all slots in sequence, for registration with a NIC.
    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// Returns the GPU of the copies.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the length of a slot in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Starts a copy between the first `len` bytes of a slot and `memory` at `offset`. `memory` must
    /// belong to the same GPU.
    ///
    /// # Errors
    /// The range exceeds the slot or the memory, the slot has an unfinished copy, or the driver fails.
    pub fn start(
        &mut self,
        slot: usize,
        direction: Direction,
        memory: &GpuMemory,
        offset: usize,
        len: usize,
    ) -> Result<(), MemoryError> {
        let of_gpu = memory.locate(offset, len)?;
        if slot >= self.slots.len() || len > self.slot_bytes {
            return Err(OutOfRange { offset: 0, len, region_len: self.slot_bytes }.into());
        }
        if !self.is_done(slot)? {
            return Err(MemoryError::Busy(slot));
        }
        let StagingSlot { event, copying } = &mut self.slots[slot];
        let of_host = self.memory.as_ptr().wrapping_add(slot * self.slot_bytes).cast::<c_void>();
        let current = self.gpu.enter()?;
        // SAFETY: Both ranges exist. `copying` keeps the GPU memory alive, and `drop` waits for all
        // copies before the host memory is freed. All other accesses to the host bytes are atomic.
        unsafe {
            match direction {
                Direction::ToHost => {
                    current.cuMemcpyDtoHAsync_v2(of_host, of_gpu, len, self.stream)?
                }
                Direction::ToGpu => {
                    current.cuMemcpyHtoDAsync_v2(of_gpu, of_host, len, self.stream)?
                }
            }
        }
        *copying = Some(memory.clone());
        // SAFETY: The event and the stream are live.
        let recorded = unsafe { current.cuEventRecord(*event, self.stream) };
        if let Err(error) = recorded {
            // The event still reports the previous copy, so only the stream tells when this copy is
            // done.
            // SAFETY: The stream is live.
            unsafe { current.cuStreamSynchronize(self.stream) }?;
            *copying = None;
            return Err(error.into());
        }
        Ok(())
    }

    /// Whether the last copy of a slot is done; returns without waiting.
    pub fn is_done(&mut self, slot: usize) -> Result<bool, CudaError> {
        let Some(StagingSlot { event, copying }) = self.slots.get_mut(slot) else {
            return Ok(true);
        };
        if copying.is_some() {
            // SAFETY: The event is live.
            if !unsafe { self.gpu.relax().event_is_done(*event) }? {
                return Ok(false);
            }
            *copying = None;
        }
        Ok(true)
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        let Ok(current) = self.gpu.enter() else { return };
        // Errors belong to earlier calls, and nobody can handle them here.
        // SAFETY: Nobody else has the handles, and all copies are done when the stream is idle.
        unsafe {
            let _ = current.cuStreamSynchronize(self.stream);
            for slot in &self.slots {
                let _ = current.cuEventDestroy_v2(slot.event);
            }
            let _ = current.cuStreamDestroy_v2(self.stream);
        }
    }
}

impl fmt::Debug for StagingBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagingBuffer({} × {} bytes)", self.slots.len(), self.slot_bytes)
    }
}

fn create_event(api: &Api) -> Result<CUevent, CudaError> {
    let mut event = ptr::null_mut();
    // SAFETY: The driver writes a handle to `event`.
    unsafe { api.cuEventCreate(&mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32) }?;
    Ok(event)
}
