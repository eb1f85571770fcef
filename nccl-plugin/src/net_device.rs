//! The devices as NCCL sees them.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use invar::cuda::GpuInfo;
use invar::{Device, DeviceInfo, DeviceKind, GpuSupport, Settings, WeakDevice};

use crate::abi::{PTR_CUDA, PTR_DMABUF, PTR_HOST};
use crate::outcome::{Failed, failed};

/// A device that NCCL may use. The device stays open as long as an object on it lives.
pub(crate) struct NetDevice {
    pub(crate) number: c_int,
    pub(crate) info: DeviceInfo,
    /// NCCL's numbers of the devices that it has joined to this one; only its own number if it has joined none.
    pub(crate) members: Vec<c_int>,
    pub(crate) name: &'static CStr,
    pub(crate) pci_path: Option<&'static CStr>,
    pub(crate) guid: u64,
    /// Kinds of memory that the device can register, as [`PTR_HOST`] and others added up.
    pub(crate) ptr_support: c_int,
    opened: Mutex<WeakDevice>,
}

impl NetDevice {
    pub(crate) fn new(
        number: c_int,
        info: DeviceInfo,
        gpus: &[GpuInfo],
        settings: &Settings,
    ) -> Self {
        let ptr_support = ptr_support(&info, gpus, settings);
        Self::with(number, info, vec![number], ptr_support)
    }

    /// The device that `members` make together.
    pub(crate) fn joined(number: c_int, info: DeviceInfo, members: &[Arc<NetDevice>]) -> Self {
        let ptr_support = members.iter().fold(!0, |all, device| all & device.ptr_support);
        let members = members.iter().map(|device| device.number).collect();
        Self::with(number, info, members, ptr_support)
    }

    fn with(number: c_int, info: DeviceInfo, members: Vec<c_int>, ptr_support: c_int) -> Self {
        NetDevice {
            number,
            name: forever(&info.name),
            pci_path: info.pci_path.as_deref().map(forever),
            guid: info.guid.unwrap_or(number as u64),
            ptr_support,
            members,
            info,
            opened: Mutex::default(),
        }
    }

    /// Returns the device; the first caller opens it.
    pub(crate) fn open(&self, settings: &Settings) -> Result<Device, Failed> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = opened.upgrade() {
            return Ok(device);
        }
        let device = Device::open_for(&self.info, settings).map_err(|error| failed(&error))?;
        *opened = device.downgrade();
        Ok(device)
    }
}

/// Whether a device of this kind may reach GPU memory: an RDMA device, or a NIC that the program brings.
pub(crate) fn may_reach_gpus(info: &DeviceInfo) -> bool {
    matches!(info.kind, DeviceKind::Verbs | DeviceKind::Custom)
}

/// Returns the kinds of memory that a device can register. For each device that may reach GPU memory this
/// function logs its support, and its path to each GPU.
fn ptr_support(info: &DeviceInfo, gpus: &[GpuInfo], settings: &Settings) -> c_int {
    if !may_reach_gpus(info) {
        return PTR_HOST;
    }
    let device = match Device::open_for(info, settings) {
        Ok(device) => device,
        Err(error) => {
            log::warn!(
                "{}: cannot be opened, so GPU memory is not offered for it: {error}",
                info.name
            );
            return PTR_HOST;
        }
    };
    let support = device.gpu_support(settings);
    log::info!("{} {support}", info.name);
    for gpu in gpus {
        let path = device.gpu_path(gpu, settings);
        log::info!("{} and GPU {} ({}): {path}", info.name, gpu.ordinal, gpu.name);
    }
    let GpuSupport { dma_buf, peermem } = support;
    PTR_HOST + if peermem { PTR_CUDA } else { 0 } + if dma_buf { PTR_DMABUF } else { 0 }
}

/// Leaks text for C, because NCCL keeps the names of devices. Equal texts share one copy.
fn forever(text: &str) -> &'static CStr {
    static TEXTS: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text.as_c_str()) {
        return known;
    }
    let text: &'static CStr = Box::leak(text.into_boxed_c_str());
    texts.insert(text);
    text
}
