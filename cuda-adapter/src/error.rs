//! Errors of CUDA.

use invar_linux::memory::OutOfRange;

use crate::library::error_name;

/// The reason why this process cannot use CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCuda {
    /// The host has no driver.
    #[error("no libcuda.so.1 here: NVIDIA's driver is not installed, or not in this container")]
    NoLibrary,
    /// The driver does not initialize.
    #[error("{0}: `nvidia-smi` tells whether the driver and its GPUs are well")]
    Init(CudaError),
}

/// A failed call of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct CudaError(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Kind {
    #[error("{call} failed: {} ({code})", error_name(*code))]
    Failed { call: &'static str, code: u32 },
    #[error("this CUDA driver has no {0}: a newer one is needed")]
    Missing(&'static str),
}

/// A failed copy to or from GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The range exceeds the memory.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// The slot of a [`StagingBuffer`](crate::StagingBuffer) has an unfinished copy.
    #[error(
        "slot {0} of the pinned host memory has a copy under way: ask whether that is done before \
         another starts"
    )]
    Busy(usize),
    /// The driver returned an error.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl CudaError {
    /// Returns the driver's result code (`CUresult`), or `None` if the driver lacks the function.
    pub fn code(&self) -> Option<u32> {
        match self.0 {
            Kind::Failed { code, .. } => Some(code),
            Kind::Missing(_) => None,
        }
    }

    pub(crate) fn failed(call: &'static str, code: u32) -> Self {
        CudaError(Kind::Failed { call, code })
    }

    #[cold]
    pub(crate) fn missing(call: &'static str) -> Self {
        CudaError(Kind::Missing(call))
    }
}
