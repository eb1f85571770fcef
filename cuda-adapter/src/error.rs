//! What can go wrong with CUDA.

use invar_linux::memory::OutOfRange;

use crate::api::error_name;

/// There is no CUDA to be used here, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCuda {
    /// No driver.
    #[error("no libcuda.so.1 here: NVIDIA's driver is not installed, or not in this container")]
    NoLibrary,
    /// A driver that does not start.
    #[error("{0}: `nvidia-smi` tells whether the driver and its GPUs are well")]
    Init(CudaError),
}

/// A call to the driver that failed.
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

/// A copy to or from GPU memory that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Bytes that are not there.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// A copy from or to a slot of a [`StagingBuffer`](crate::StagingBuffer) that has one under way.
    #[error(
        "slot {0} of the pinned host memory has a copy under way: ask whether that is done before \
         another starts"
    )]
    Busy(usize),
    /// The driver.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl CudaError {
    /// What the driver answered (`CUresult`); `None` where it lacks the function.
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
