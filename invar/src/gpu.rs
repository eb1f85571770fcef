//! By which ways messages get between GPUs and devices.

use invar_core::param::Params;
use invar_cuda::{GpuInfo, Sysfs, flush, gdr};

use crate::{Device, Settings, staged};

/// What is said about GPU memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuRules {
    pub(crate) path: gdr::Policy,
    pub(crate) flush: flush::Policy,
    pub(crate) staging: staged::Size,
}

impl From<&Params<'_>> for GpuRules {
    fn from(params: &Params<'_>) -> Self {
        GpuRules { path: params.into(), flush: params.into(), staging: params.into() }
    }
}

impl Device {
    /// By which way messages get between a GPU's memory and this device, and why by this one
    /// (`NCCL_NET_GDR_LEVEL`, `NCCL_DMABUF_ENABLE`).
    pub fn gpu_path(&self, gpu: &GpuInfo, settings: &Settings) -> gdr::Decision {
        let host = gdr::Host::probe(Sysfs::default());
        host.decide(gpu, &self.adapter().gpu_reach(), settings.gpu.path)
    }

    /// Whether there may be a GPU that this device reaches (`net_ib.cc ncclIbAccept`).
    pub(crate) fn reaches_gpus(&self) -> bool {
        match self.adapter().gpu_reach() {
            gdr::NicReach::Software => false,
            gdr::NicReach::Rdma { dma_buf, .. } => dma_buf || Sysfs::default().peermem().is_some(),
        }
    }
}
