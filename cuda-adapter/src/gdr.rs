//! The path by which bytes get between a GPU and a NIC.

use std::fmt;

use invar_core::device::PciDistance;
use invar_core::param::Params;

use crate::{GpuInfo, Peermem, Sysfs};

/// The path between the memory of a GPU and a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The NIC accesses GPU memory that is registered as a DMA-BUF.
    DmaBuf,
    /// The NIC accesses GPU memory that is registered by its address, with the help of a kernel module.
    Peermem,
    /// The driver copies the bytes to and from pinned host memory.
    Staging,
}

/// The chosen path and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The chosen path.
    pub path: Path,
    /// The reason, in words that continue "staging: …".
    pub reason: String,
}

/// The kinds of non-host memory that a NIC can access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicReach {
    /// The NIC is software: it accesses memory with the CPU, so only host memory.
    Software,
    /// The NIC is an RDMA device.
    Rdma {
        /// Names of the device in libibverbs, or of all whose ports work together.
        devices: Vec<String>,
        /// Whether its driver and the kernel can register a DMA-BUF. The test: `ibv_reg_dmabuf_mr` of
        /// descriptor -1 fails with EBADF, not with EOPNOTSUPP or EPROTONOSUPPORT.
        dma_buf: bool,
    },
}

/// The user's settings for GPUDirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Maximum distance between a GPU and a NIC that accesses its memory (`NCCL_NET_GDR_LEVEL`).
    pub level: PciDistance,
    /// Whether DMA-BUFs may be used (`NCCL_DMABUF_ENABLE`).
    pub dma_buf: bool,
}

impl From<&Params<'_>> for Policy {
    fn from(params: &Params<'_>) -> Self {
        Policy { level: params.net_gdr_level, dma_buf: params.dmabuf_enable }
    }
}

/// The host's facilities for GPUDirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    sysfs: Sysfs,
    peermem: Option<Peermem>,
}

impl Host {
    /// Reads the host's facilities from sysfs.
    pub fn probe(sysfs: Sysfs) -> Self {
        Host { peermem: sysfs.peermem(), sysfs }
    }

    /// Returns the kernel module that lets NICs register GPU memory by address, if one is loaded.
    pub fn peermem(&self) -> Option<&Peermem> {
        self.peermem.as_ref()
    }

    /// Chooses the path between a GPU and a NIC: DMA-BUF if both support it, else the kernel module if
    /// it is loaded, else staging (`net.cc` and `paths.cc ncclTopoCheckGdr`).
    pub fn decide(&self, gpu: &GpuInfo, nic: &NicReach, policy: Policy) -> Decision {
        let staging = |reason: String| Decision { path: Path::Staging, reason };
        let NicReach::Rdma { devices, dma_buf } = nic else {
            return staging("the NIC is software and reaches host memory only".to_owned());
        };
        if gpu.gpudirect == Some(false) {
            return staging(format!("{} does not let PCI devices reach its memory", gpu.name));
        }
        let Policy { level, .. } = policy;
        let distances = devices.iter().map(|device| self.distance(gpu, device));
        let farthest = distances.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
        let distance = match farthest {
            Some(distance) if distance > level => {
                let text =
                    format!("GPU and NIC are {distance} apart, beyond NCCL_NET_GDR_LEVEL={level}");
                return staging(text);
            }
            Some(distance) => format!("GPU and NIC are {distance} apart"),
            None if level < PciDistance::Sys => {
                let text = "sysfs does not tell how far apart GPU and NIC are; NCCL_NET_GDR_LEVEL=SYS \
                            allows any distance";
                return staging(text.to_owned());
            }
            None => "NCCL_NET_GDR_LEVEL=SYS".to_owned(),
        };
        let why_no_dma_buf = match (policy.dma_buf, gpu.dma_buf, dma_buf) {
            (true, true, true) => {
                let reason = format!("{distance}, and both have it");
                return Decision { path: Path::DmaBuf, reason };
            }
            (false, ..) => "NCCL_DMABUF_ENABLE=0",
            (_, false, _) => "the GPU's driver exports no DMA-BUF",
            (.., false) => "the NIC's driver or the kernel registers no DMA-BUF",
        };
        match &self.peermem {
            Some(Peermem { module, version }) => {
                let reason = format!("{distance}, {module} {version} is loaded, {why_no_dma_buf}");
                Decision { path: Path::Peermem, reason }
            }
            None => staging(format!(
                "{why_no_dma_buf}, and nvidia-peermem is not loaded (modprobe nvidia-peermem)"
            )),
        }
    }

    fn distance(&self, gpu: &GpuInfo, nic: &str) -> Option<PciDistance> {
        let gpu = self.sysfs.pci_device(&gpu.pci_bus_id)?;
        let nic = self.sysfs.rdma_device(nic)?;
        Some(PciDistance::between(gpu.place(), nic.place()))
    }
}

impl Path {
    /// Whether the NIC accesses the GPU's memory directly.
    pub fn is_direct(self) -> bool {
        self != Path::Staging
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::DmaBuf => "GPUDirect by DMA-BUF",
            Path::Peermem => "GPUDirect by peer memory",
            Path::Staging => "staging",
        })
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

#[cfg(test)]
pub(crate) mod tests;
