//! A stand-in for CUDA's driver library: as many of its functions as Invar calls, on host memory.
//!
//! Tests put it where a program finds `libcuda.so.1` first. It is strict where the driver is: calls
//! before `cuInit`, without a context, with memory that was freed or is too short, fail. Addresses
//! of GPU memory cannot be read by the CPU, are given out again once they are free, and each
//! allocation has a number of its own. Asynchronous copies happen as late as they may: when the
//! program asks for the event behind them. A NIC that stands for one with GPUDirect reaches GPU
//! memory by two functions more ([`nic`]); it stays where it is when it is freed, as a DMA-BUF does.
//!
//! What it does is set by variables, read when it is loaded:
//!
//! | variable | |
//! |---|---|
//! | `FAKE_CUDA_GPUS` | PCI addresses, separated by commas; one GPU if it is not set |
//! | `FAKE_CUDA_ATTRIBUTES` | `NUMBER=VALUE,…`: attributes of all GPUs; `NUMBER=` is one that the driver does not know |
//! | `FAKE_CUDA_FAIL` | `FUNCTION=CODE,…`: functions that fail, and with what |
//! | `FAKE_CUDA_MANAGED` | 1: what is allocated is managed memory |
//! | `FAKE_CUDA_QUERIES` | queries of an event for each operation before it; 1 if it is not set |
//! | `FAKE_CUDA_CALLS` | file to which the name of each function called is appended, one a line, and `pinned BYTES` when that has changed |

mod functions;
mod memory;
pub mod nic;
mod settings;
mod stream;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard};

use memory::Memory;
use nic::DmaBuf;
use settings::Settings;
use stream::Streams;

/// `CUresult`.
type Code = u32;

const INVALID_VALUE: Code = 1;
const OUT_OF_MEMORY: Code = 2;
const NOT_INITIALIZED: Code = 3;
const INVALID_DEVICE: Code = 101;
const INVALID_CONTEXT: Code = 201;
const INVALID_HANDLE: Code = 400;
const NOT_READY: Code = 600;

#[derive(Default)]
struct Driver {
    initialized: bool,
    /// How often each GPU's primary context is retained.
    retained: Vec<u32>,
    memory: Memory,
    streams: Streams,
    /// By inode.
    dma_bufs: HashMap<u64, DmaBuf>,
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(Settings::from_env);
static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| {
    let retained = vec![0; SETTINGS.gpus.len()];
    Mutex::new(Driver { retained, ..Driver::default() })
});

thread_local! {
    /// GPUs whose contexts are current on this thread, the last one in force.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// What every function begins with.
fn driver(function: &str) -> Result<MutexGuard<'static, Driver>, Code> {
    SETTINGS.called(function)?;
    let driver = DRIVER.lock().unwrap();
    if driver.initialized || function == "cuInit" { Ok(driver) } else { Err(NOT_INITIALIZED) }
}

impl Driver {
    /// Whose context it is.
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
