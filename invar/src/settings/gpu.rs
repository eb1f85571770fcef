//! Settings of GPU memory, and of host memory that messages from and to GPUs pass through.

use invar_core::param::Params;
use invar_cuda::{Sysfs, flush, gdr};

/// The settings that are about GPU memory.
#[derive(Clone, Debug)]
pub(crate) struct GpuRules {
    pub(crate) sysfs: Sysfs,
    pub(crate) path: gdr::Policy,
    pub(crate) flush: flush::Policy,
    pub(crate) staging: StagingSize,
}

/// How much host memory messages may pass through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StagingSize {
    pub(crate) chunk_bytes: u32,
    pub(crate) slots: usize,
    /// Bytes for all ends of the process.
    pub(crate) bytes_max: u64,
}

impl From<&Params<'_>> for StagingSize {
    fn from(params: &Params<'_>) -> Self {
        StagingSize {
            chunk_bytes: params.staging_chunk_bytes,
            slots: params.staging_slots.into(),
            bytes_max: params.staging_bytes,
        }
    }
}

impl From<&Params<'_>> for GpuRules {
    fn from(params: &Params<'_>) -> Self {
        GpuRules {
            sysfs: Sysfs::new(params.sysfs),
            path: params.into(),
            flush: params.into(),
            staging: params.into(),
        }
    }
}
