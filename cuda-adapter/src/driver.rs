//! CUDA's driver.

use std::fmt;
use std::sync::OnceLock;

use crate::api::Api;
use crate::{CudaError, GpuInfo, NoCuda};

/// CUDA's driver, started; copies are the same one.
#[derive(Clone, Copy)]
pub struct Driver {
    api: &'static Api,
}

impl Driver {
    /// Loads libcuda and starts it, the first time that it is called; gives the same answer ever
    /// after. It creates no context on any GPU.
    ///
    /// # Errors
    /// Why there is no CUDA.
    pub fn open() -> Result<Driver, NoCuda> {
        static OPENED: OnceLock<Result<Api, NoCuda>> = OnceLock::new();
        Self::started(OPENED.get_or_init(|| start(Api::open())))
    }

    /// As [`Driver::open`], through the bindings of `cust`.
    #[cfg(feature = "cust")]
    pub fn open_cust() -> Result<Driver, NoCuda> {
        static OPENED: OnceLock<Result<Api, NoCuda>> = OnceLock::new();
        Self::started(OPENED.get_or_init(|| start(Api::open_cust())))
    }

    fn started(opened: &'static Result<Api, NoCuda>) -> Result<Driver, NoCuda> {
        opened.as_ref().map(|api| Driver { api }).map_err(|error| *error)
    }

    /// The version of CUDA that the driver has, as 1000 × major + 10 × minor.
    pub fn version(&self) -> Result<u32, CudaError> {
        let mut version = 0;
        // SAFETY: the driver writes an integer.
        unsafe { self.api.cuDriverGetVersion(&mut version) }?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// The GPUs that this process sees (`CUDA_VISIBLE_DEVICES`), in the driver's order.
    pub fn gpus(&self) -> Result<Vec<GpuInfo>, CudaError> {
        let mut count = 0;
        // SAFETY: the driver writes an integer.
        unsafe { self.api.cuDeviceGetCount(&mut count) }?;
        (0..count).map(|ordinal| GpuInfo::query(self.api, ordinal)).collect()
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.api
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({:?})", self.version())
    }
}

fn start(api: Option<Api>) -> Result<Api, NoCuda> {
    let api = api.ok_or(NoCuda::NoLibrary)?;
    // SAFETY: takes no pointers.
    unsafe { api.cuInit(0) }.map_err(NoCuda::Init)?;
    Ok(api)
}
