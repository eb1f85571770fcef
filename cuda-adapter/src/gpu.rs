//! GPUs: their attributes, and GPUs in use.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;
use std::ops::Deref;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute as Attribute, CUstream, CUstream_flags,
};

use crate::api::Api;
use crate::{CudaError, Driver};

/// The driver's facts about a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// CUDA's number of the GPU in this process.
    pub ordinal: u32,
    /// Product name of the GPU.
    pub name: String,
    /// PCI address of the GPU as sysfs writes it: `0000:3b:00.0`.
    pub pci_bus_id: String,
    /// Compute capability: major and minor number.
    pub compute_capability: (u32, u32),
    /// Whether other PCI devices can read and write the GPU's memory; `None` with a driver before 11.3,
    /// which does not report this.
    pub gpudirect: Option<bool>,
    /// Whether the GPU's memory can be exported as a DMA-BUF.
    pub dma_buf: bool,
    /// Who sees a NIC's writes in order without a flush; `None` if the driver does not report this.
    pub writes_ordering: Option<WritesOrdering>,
    /// Whether the host can flush a NIC's writes by a call (`cuFlushGPUDirectRDMAWrites`).
    pub host_flush: bool,
}

/// Who sees a NIC's writes to a GPU in order, without a flush
/// (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WritesOrdering {
    /// Nobody sees the writes in order.
    Nobody,
    /// The GPU itself sees the writes in order.
    Owner,
    /// Every GPU of the machine sees the writes in order.
    AllGpus,
}

/// A GPU in use; clones share it. The value holds the GPU's primary context, which the CUDA runtime and
/// `cust` also use.
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

struct Inner {
    driver: Driver,
    info: GpuInfo,
    device: CUdevice,
    context: CUcontext,
    /// The stream of copies that the caller waits for; null before the first one.
    copies: Mutex<CUstream>,
}

// SAFETY: Any thread may use the context, after it has made the context current.
unsafe impl Send for Inner {}
// SAFETY: Any thread may use the context, and the driver locks internally.
unsafe impl Sync for Inner {}

/// A guard: while the program captures a stream into a graph, this thread's calls neither fail nor end the capture.
pub(crate) struct Relaxed {
    api: &'static Api,
    /// The thread's capture mode before the guard; `None` if the driver has no capture modes.
    before: Option<c_uint>,
}

/// A guard: until it is dropped, the GPU's context is the current one of this thread, and the thread is relaxed.
pub(crate) struct Current(Relaxed);

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;

impl Deref for Relaxed {
    type Target = Api;

    // The result borrows the guard, so no call that needs the guard comes after its end.
    fn deref(&self) -> &Api {
        self.api
    }
}

impl Deref for Current {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.0
    }
}

impl Gpu {
    /// Opens a GPU by its number.
    pub fn open(driver: Driver, ordinal: u32) -> Result<Gpu, CudaError> {
        let api = driver.api();
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let info = GpuInfo::query(api, number)?;
        let device = device(api, number)?;
        let mut context = ptr::null_mut();
        // SAFETY: The driver writes a handle to `context`, and `Inner` releases it.
        unsafe { api.cuDevicePrimaryCtxRetain(&mut context, device) }?;
        let copies = Mutex::new(ptr::null_mut());
        Ok(Gpu(Arc::new(Inner { driver, info, device, context, copies })))
    }

    /// Returns the facts about this GPU.
    pub fn info(&self) -> &GpuInfo {
        &self.0.info
    }

    /// Returns the driver that runs this GPU.
    pub fn driver(&self) -> Driver {
        self.0.driver
    }

    /// Waits until the GPU sees all that NICs have written to its memory (`cuFlushGPUDirectRDMAWrites`).
    /// Call this only if [`GpuInfo::host_flush`] is true.
    pub fn flush_writes(&self) -> Result<(), CudaError> {
        use cudarc::driver::sys::{
            CUflushGPUDirectRDMAWritesScope as Scope, CUflushGPUDirectRDMAWritesTarget as Target,
        };
        let target = Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX as u32;
        let scope = Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER as u32;
        // SAFETY: The function takes no pointers.
        unsafe { self.enter()?.cuFlushGPUDirectRDMAWrites(target, scope) }
    }

    /// Prepares this thread for calls that need a current context.
    pub(crate) fn enter(&self) -> Result<Current, CudaError> {
        self.0.enter()
    }

    /// Prepares this thread for calls that need no current context.
    pub(crate) fn relax(&self) -> Relaxed {
        self.0.relax()
    }

    /// Copies between host memory and the GPU's memory, and waits for the copy. The stream is non-blocking: a copy on
    /// the default stream would wait for the program's streams, and would end a capture on one of them.
    ///
    /// # Safety
    /// Both ranges exist, and nobody else accesses the bytes that the copy writes.
    pub(crate) unsafe fn copy(&self, to: u64, from: u64, len: usize) -> Result<(), CudaError> {
        let current = self.enter()?;
        if len == 0 {
            return Ok(());
        }
        let stream = self.0.stream(&current)?;
        // SAFETY: The caller promises the ranges. The stream is live as long as `Inner`.
        unsafe {
            current.cuMemcpyAsync(to, from, len, stream)?;
            current.cuStreamSynchronize(stream)
        }
    }
}

impl Current {
    /// Creates a non-blocking stream, whose work does not wait for the program's work.
    pub(crate) fn create_stream(&self) -> Result<CUstream, CudaError> {
        let (mut stream, flags) = (ptr::null_mut(), CUstream_flags::CU_STREAM_NON_BLOCKING as u32);
        // SAFETY: The driver writes a handle to `stream`.
        unsafe { self.cuStreamCreate(&mut stream, flags) }?;
        Ok(stream)
    }
}

impl Inner {
    fn enter(&self) -> Result<Current, CudaError> {
        // SAFETY: This value retains the context.
        unsafe { self.driver.api().cuCtxPushCurrent_v2(self.context) }?;
        Ok(Current(self.relax()))
    }

    fn relax(&self) -> Relaxed {
        let (api, mut mode) = (self.driver.api(), RELAXED);
        // SAFETY: The driver swaps `mode` with the thread's mode.
        let exchanged = unsafe { api.cuThreadExchangeStreamCaptureMode(&mut mode) };
        Relaxed { api, before: exchanged.ok().map(|()| mode) }
    }

    /// Returns the stream of copies; the first call creates it.
    fn stream(&self, current: &Current) -> Result<CUstream, CudaError> {
        let mut stream = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.is_null() {
            // `drop` destroys the stream.
            *stream = current.create_stream()?;
        }
        Ok(*stream)
    }
}

impl WritesOrdering {
    /// Converts the driver's number; a number between two known ones counts as the lower one.
    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            0..100 => WritesOrdering::Nobody,
            100..200 => WritesOrdering::Owner,
            _ => WritesOrdering::AllGpus,
        }
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info().fmt(f)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let stream = *self.copies.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !stream.is_null() {
            // Errors belong to earlier calls, or the process ends.
            // SAFETY: Nobody else has the handle, and each copy has been waited for.
            let _ = self.enter().and_then(|current| unsafe { current.cuStreamDestroy_v2(stream) });
        }
        // This call fails only when the process ends and the driver is gone already.
        // SAFETY: `Gpu::open` retained the context once.
        let _ = unsafe { self.driver.api().cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // This call fails only when the process ends and the driver is gone already.
            // SAFETY: The driver swaps `mode` with the thread's mode.
            let _ = unsafe { self.api.cuThreadExchangeStreamCaptureMode(&mut mode) };
        }
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        // This call fails only when the process ends and the driver is gone already.
        // SAFETY: The driver writes a handle to `context`.
        let _ = unsafe { self.cuCtxPopCurrent_v2(&mut context) };
    }
}

impl Driver {
    /// Lists the GPUs that this process sees (`CUDA_VISIBLE_DEVICES`), in the driver's order.
    pub fn gpus(&self) -> Result<Vec<GpuInfo>, CudaError> {
        let mut count = 0;
        // SAFETY: The driver writes an integer to `count`.
        unsafe { self.api().cuDeviceGetCount(&mut count) }?;
        (0..count).map(|ordinal| GpuInfo::query(self.api(), ordinal)).collect()
    }
}

impl GpuInfo {
    fn query(api: &Api, ordinal: c_int) -> Result<GpuInfo, CudaError> {
        let device = device(api, ordinal)?;
        // A driver answers an attribute that is newer than itself with an error.
        let attribute = |attribute: Attribute| {
            let mut value = 0;
            // SAFETY: The driver writes an integer to `value`.
            unsafe { api.cuDeviceGetAttribute(&mut value, attribute as c_int, device) }
                .ok()
                .and_then(|()| u32::try_from(value).ok())
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        let is_one = |value: Option<u32>| value.map(|value| value != 0);
        Ok(GpuInfo {
            ordinal: ordinal.cast_unsigned(),
            // SAFETY: The driver writes at most `len` bytes, including a NUL.
            name: text(|to, len| unsafe { api.cuDeviceGetName(to, len, device) })?,
            // SAFETY: The driver writes at most `len` bytes, including a NUL.
            pci_bus_id: text(|to, len| unsafe { api.cuDeviceGetPCIBusId(to, len, device) })?
                .to_ascii_lowercase(),
            compute_capability: (major.unwrap_or(0), minor.unwrap_or(0)),
            gpudirect: is_one(attribute(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)),
            dma_buf: api.exports_dma_bufs()
                && is_one(attribute(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED))
                    == Some(true),
            writes_ordering: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
            )
            .map(WritesOrdering::from_code),
            host_flush: api.flushes_writes()
                && attribute(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)
                    .is_some_and(|options| options & FLUSH_BY_HOST != 0),
        })
    }
}

/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`.
const FLUSH_BY_HOST: u32 = 1;

fn device(api: &Api, ordinal: c_int) -> Result<CUdevice, CudaError> {
    let mut device = 0;
    // SAFETY: The driver writes a number to `device`.
    unsafe { api.cuDeviceGet(&mut device, ordinal) }?;
    Ok(device)
}

fn text(
    write: impl FnOnce(*mut c_char, c_int) -> Result<(), CudaError>,
) -> Result<String, CudaError> {
    let mut bytes = [0_u8; 256];
    write(bytes.as_mut_ptr().cast(), bytes.len() as c_int)?;
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}
