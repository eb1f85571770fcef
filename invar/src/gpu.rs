//! The ways by which messages get between GPUs and devices.

use std::fmt;

use invar_cuda::{CudaError, Driver, GpuInfo, GpuMemory, PointerKind, flush, gdr};

use crate::error::Kind;
use crate::settings::GpuRules;
use crate::{Device, DeviceInfo, DeviceKind, Error, Settings};

/// The way by which messages get between a GPU's memory and a device, and the flush that makes them
/// visible to the GPU. Its display includes the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPath {
    /// Whether the device accesses the GPU's memory directly, and how (`NCCL_NET_GDR_LEVEL`,
    /// `NCCL_DMABUF_ENABLE`). Otherwise messages pass through host memory.
    pub decision: gdr::Decision,
    /// The flush of [`RecvComm::iflush`](crate::RecvComm::iflush) (`NCCL_GDR_FLUSH_DISABLE`,
    /// `NCCL_NET_FORCE_FLUSH`).
    pub flush: flush::Flush,
}

/// The ways in which a device can register GPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuSupport {
    /// Whether the device registers a DMA-BUF.
    pub dma_buf: bool,
    /// Whether the device registers an address, with the help of a kernel module (nvidia-peermem).
    pub peermem: bool,
}

/// Lists the GPUs of this host.
///
/// # Errors
/// This host has no CUDA driver, or the driver fails.
pub fn gpus() -> Result<Vec<GpuInfo>, Error> {
    let driver = Driver::open().map_err(Kind::NoCuda)?;
    Ok(driver.gpus().map_err(|error| Kind::Gpu(error.into()))?)
}

impl fmt::Display for GpuSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.dma_buf, self.peermem) {
            (true, true) => "reaches GPU memory by DMA-BUF and by peer memory",
            (true, false) => "reaches GPU memory by DMA-BUF",
            (false, true) => "reaches GPU memory by peer memory",
            (false, false) => {
                "does not reach GPU memory: its driver or the kernel registers no DMA-BUF, and \
                 nvidia-peermem is not loaded (modprobe nvidia-peermem)"
            }
        })
    }
}

impl Device {
    /// Decides by which way messages get between a GPU's memory and this device.
    pub fn gpu_path(&self, gpu: &GpuInfo, settings: &Settings) -> GpuPath {
        GpuPath::decide(gpu, &self.adapter().gpu_reach(), &settings.gpu)
    }

    /// Decides the way for one piece of memory. Managed memory, and memory that was made without
    /// `gpuDirectRDMACapable`, is always staged.
    pub(crate) fn memory_path(
        &self,
        memory: &GpuMemory,
        settings: &Settings,
    ) -> Result<GpuPath, CudaError> {
        let gpu = memory.gpu().info();
        let path = self.gpu_path(gpu, settings);
        if !path.decision.path.is_direct() {
            return Ok(path);
        }
        let reason = if memory.pointer()?.kind == PointerKind::Managed {
            "the memory is managed, and moves between GPU and host"
        } else if memory.gpudirect() == Some(false) {
            "the memory was created without gpuDirectRDMACapable"
        } else {
            return Ok(path);
        };
        let decision = gdr::Decision { path: gdr::Path::Staging, reason: reason.to_owned() };
        let flush = flush::decide(gpu, decision.path, settings.gpu.flush);
        Ok(GpuPath { decision, flush })
    }

    /// The ways in which this device can register GPU memory, if the host has a GPU.
    pub fn gpu_support(&self, settings: &Settings) -> GpuSupport {
        match self.adapter().gpu_reach() {
            gdr::NicReach::Software => GpuSupport::default(),
            gdr::NicReach::Rdma { dma_buf, .. } => {
                GpuSupport { dma_buf, peermem: settings.gpu.sysfs.peermem().is_some() }
            }
        }
    }
}

impl DeviceInfo {
    /// Decides [`Device::gpu_path`] for each GPU and a device that is not open.
    ///
    /// # Errors
    /// A device that may reach GPU memory cannot be opened.
    pub fn gpu_paths(&self, gpus: &[GpuInfo], settings: &Settings) -> Result<Vec<GpuPath>, Error> {
        let reach = match self.kind {
            DeviceKind::Verbs | DeviceKind::Custom if !gpus.is_empty() => {
                Device::open_for(self, settings)?.adapter().gpu_reach()
            }
            _ => gdr::NicReach::Software,
        };
        Ok(gpus.iter().map(|gpu| GpuPath::decide(gpu, &reach, &settings.gpu)).collect())
    }
}

impl GpuPath {
    fn decide(gpu: &GpuInfo, reach: &gdr::NicReach, rules: &GpuRules) -> Self {
        let decision = gdr::Host::probe(rules.sysfs.clone()).decide(gpu, reach, rules.path);
        let flush = flush::decide(gpu, decision.path, rules.flush);
        GpuPath { decision, flush }
    }
}

impl fmt::Display for GpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.decision, self.flush)
    }
}
