//! A stand-in for CUDA's driver library. It has the functions that Invar calls, and works on host
//! memory.
//!
//! Tests put the stand-in where a program finds `libcuda.so.1` first. It is as strict as the driver.
//! Calls fail before `cuInit`, without a context, or with memory that was freed or is too short. The
//! CPU cannot read addresses of GPU memory. A freed address may be given out again, but each allocation
//! has a number of its own. An asynchronous copy happens as late as it may: when the program queries
//! the event behind the copy.
//!
//! A NIC with GPUDirect reaches GPU memory by two more functions ([`nic`]). Memory that a NIC has
//! reached keeps its place after it is freed, as a DMA-BUF does.
//!
//! The stand-in reads these variables when it is loaded:
//!
//! | variable | |
//! |---|---|
//! | `FAKE_CUDA_GPUS` | PCI addresses of the GPUs, separated by commas; default: one GPU |
//! | `FAKE_CUDA_ATTRIBUTES` | `NUMBER=VALUE,…` for all GPUs; the driver does not know `NUMBER=` |
//! | `FAKE_CUDA_FAIL` | `FUNCTION=CODE,…`: functions that fail, and their error codes |
//! | `FAKE_CUDA_MANAGED` | 1: every allocation is managed memory |
//! | `FAKE_CUDA_MAPPING` | BYTES: allocations are reservations (`cuMemMap`) of mappings of so many bytes each |
//! | `FAKE_CUDA_OLD_POINTERS` | 1: the driver knows neither mappings nor whether a NIC may reach memory |
//! | `FAKE_CUDA_GPUDIRECT` | 0: memory is created without `gpuDirectRDMACapable` |
//! | `FAKE_CUDA_QUERIES` | queries of an event for each operation before it; default 1 |
//! | `FAKE_CUDA_CAPTURES` | 1: the program captures a stream, so calls that may wait need a relaxed thread |
//! | `FAKE_CUDA_CALLS` | file for a line for each call, and `pinned BYTES` and `capture mode N` at each change |

mod functions;
mod memory;
pub mod nic;
mod settings;
mod stream;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{LazyLock, Mutex, MutexGuard};

use memory::Memory;
use nic::DmaBuf;
use settings::Settings;
use stream::Streams;

/// The driver's `CUresult`.
type Code = u32;

const INVALID_VALUE: Code = 1;
const OUT_OF_MEMORY: Code = 2;
const NOT_INITIALIZED: Code = 3;
const INVALID_DEVICE: Code = 101;
const INVALID_CONTEXT: Code = 201;
const INVALID_HANDLE: Code = 400;
const NOT_READY: Code = 600;
const NOT_SUPPORTED: Code = 801;
const CAPTURE_UNSUPPORTED: Code = 900;
const CAPTURE_IMPLICIT: Code = 906;

/// The capture mode in which a thread may make any call: `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;
/// The functions that fail while the program captures a stream, unless the calling thread is in the relaxed mode.
const UNSAFE_IN_CAPTURE: [&str; 8] = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuStreamSynchronize",
    "cuEventQuery",
];

/// The functions that use the default stream, and so fail on any thread while the program captures a blocking one.
const ON_DEFAULT_STREAM: [&str; 2] = ["cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"];

#[derive(Default)]
struct Driver {
    initialized: bool,
    /// The number of times that each GPU's primary context is retained.
    retained: Vec<u32>,
    /// The flags of each GPU's primary context.
    flags: Vec<u32>,
    memory: Memory,
    streams: Streams,
    /// The exported DMA-BUFs, by inode.
    dma_bufs: HashMap<u64, DmaBuf>,
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(Settings::from_env);
static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| {
    let retained = vec![0; SETTINGS.gpus.len()];
    // The program has chosen to wait in the kernel: `CU_CTX_SCHED_BLOCKING_SYNC`.
    let flags = vec![4; SETTINGS.gpus.len()];
    Mutex::new(Driver { retained, flags, ..Driver::default() })
});

thread_local! {
    /// The GPUs whose contexts are current on this thread. The last one is in force.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// The capture mode of this thread; 0 is the global one.
    static CAPTURE_MODE: Cell<c_uint> = const { Cell::new(0) };
}

/// Begins every function: notes the call, checks `cuInit` and the capture mode, and locks the driver.
fn driver(function: &str) -> Result<MutexGuard<'static, Driver>, Code> {
    SETTINGS.called(function)?;
    if SETTINGS.captures && UNSAFE_IN_CAPTURE.contains(&function) && CAPTURE_MODE.get() != RELAXED {
        return Err(CAPTURE_UNSUPPORTED);
    }
    if SETTINGS.captures && ON_DEFAULT_STREAM.contains(&function) {
        return Err(CAPTURE_IMPLICIT);
    }
    let driver = DRIVER.lock().unwrap();
    if driver.initialized || function == "cuInit" { Ok(driver) } else { Err(NOT_INITIALIZED) }
}

impl Driver {
    /// The GPU to which a context belongs.
    fn gpu_of(&self, context: usize) -> Result<usize, Code> {
        let gpu = context.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        let retained = self.retained.get(gpu).is_some_and(|retained| *retained > 0);
        retained.then_some(gpu).ok_or(INVALID_CONTEXT)
    }

    /// The GPU whose context is current.
    fn context(&self) -> Result<usize, Code> {
        let current = CURRENT.with_borrow(|stack| stack.last().copied());
        current.filter(|gpu| self.retained[*gpu] > 0).ok_or(INVALID_CONTEXT)
    }
}
