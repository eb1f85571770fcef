//! Pinned host memory with asynchronous copies between it and a GPU.

use std::ffi::c_void;
use std::fmt;
use std::ptr;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream, CUstream_flags};
use invar_linux::memory::{HostMemory, OutOfRange};

use crate::api::{Api, OUT_OF_MEMORY};
use crate::{CudaError, Gpu, GpuMemory, MemoryError};

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the GPU to the host, before it is sent.
    ToHost,
    /// From the host to the GPU, after it was received.
    ToGpu,
}

/// Slots of pinned host memory, each of which one copy at a time goes in or out of. This is what a
/// [`Port`](invar_core::staging::Port) has its copies done by.
pub struct StagingBuffer {
    gpu: Gpu,
    stream: CUstream,
    slots: Vec<Slot>,
    slot_bytes: usize,
    memory: HostMemory,
}

/// A slot's event, and the GPU memory that a copy is at work in.
struct Slot {
    event: CUevent,
    copying: Option<GpuMemory>,
}

// SAFETY: streams and events may be used from every thread on which their context is current.
unsafe impl Send for StagingBuffer {}

impl StagingBuffer {
    /// `slots` times `slot_bytes` of pinned memory, beside `gpu`.
    pub fn new(gpu: &Gpu, slots: usize, slot_bytes: usize) -> Result<Self, CudaError> {
        let len = slots.checked_mul(slot_bytes);
        let len = len.ok_or_else(|| CudaError::failed("cuMemHostAlloc", OUT_OF_MEMORY))?;
        let memory = gpu.pinned(len)?;
        let current = gpu.enter()?;
        let mut stream = ptr::null_mut();
        // Of its own, so that copies wait for nothing that the program runs.
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the driver writes a handle, which `drop` gives back.
        unsafe { current.cuStreamCreate(&mut stream, flags) }?;
        let empty = Vec::with_capacity(slots);
        let mut buffer =
            StagingBuffer { gpu: gpu.clone(), stream, slots: empty, slot_bytes, memory };
        for _ in 0..slots {
            let event = create_event(&current)?;
            buffer.slots.push(Slot { event, copying: None });
        }
        Ok(buffer)
    }

    /// The pinned memory of all slots, one after the other, to be registered with a NIC.
    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// The GPU that it is beside.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Starts to copy between the first `len` bytes of a slot and `offset` of `memory`, which is of
    /// the same GPU.
    ///
    /// # Errors
    /// Bytes that are not in the slot or in the memory; a copy of the slot that is still under way;
    /// the driver's.
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
        let Slot { event, copying } = &mut self.slots[slot];
        let of_host = self.memory.as_ptr().wrapping_add(slot * self.slot_bytes).cast::<c_void>();
        let current = self.gpu.enter()?;
        // SAFETY: both ranges are there; `copying` keeps the GPU's, and `drop` waits for all
        // copies before the host's is freed. The bytes of the host are touched by atomics only.
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
        // SAFETY: both live.
        let recorded = unsafe { current.cuEventRecord(*event, self.stream) };
        if let Err(error) = recorded {
            // The event still tells of the copy before, so only the stream says when this one is over.
            // SAFETY: the stream lives.
            unsafe { current.cuStreamSynchronize(self.stream) }?;
            *copying = None;
            return Err(error.into());
        }
        Ok(())
    }

    /// Whether the last copy of a slot is done. Does not wait.
    pub fn is_done(&mut self, slot: usize) -> Result<bool, CudaError> {
        let Some(Slot { event, copying }) = self.slots.get_mut(slot) else { return Ok(true) };
        if copying.is_some() {
            // SAFETY: the event lives.
            if !unsafe { self.gpu.driver().api().event_is_done(*event) }? {
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
        // Errors are those of earlier calls: there is nothing left to do about them.
        // SAFETY: nobody else has the handles, and the copies are done when the stream is.
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
    // SAFETY: the driver writes a handle.
    unsafe { api.cuEventCreate(&mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32) }?;
    Ok(event)
}
