//! Loads CUDA's driver.

use std::fmt;
use std::sync::OnceLock;

use crate::api::Api;
use crate::{CudaError, NoCuda};

/// CUDA's driver, loaded and initialized; copies share the driver.
#[derive(Clone, Copy)]
pub struct Driver {
    api: &'static Api,
}

impl Driver {
    /// Loads and initializes libcuda at the first call; later calls return the same result. The call
    /// creates no context on any GPU.
    ///
    /// # Errors
    /// The reason why this process cannot use CUDA.
    pub fn open() -> Result<Driver, NoCuda> {
        static OPENED: OnceLock<Result<Api, NoCuda>> = OnceLock::new();
        Self::started(OPENED.get_or_init(|| start(Api::open())))
    }

    /// Opens the driver through the bindings of `cust`; otherwise works as [`Driver::open`].
    #[cfg(feature = "cust")]
    pub fn open_cust() -> Result<Driver, NoCuda> {
        static OPENED: OnceLock<Result<Api, NoCuda>> = OnceLock::new();
        Self::started(OPENED.get_or_init(|| start(Api::open_cust())))
    }

    fn started(opened: &'static Result<Api, NoCuda>) -> Result<Driver, NoCuda> {
        opened.as_ref().map(|api| Driver { api }).map_err(|error| *error)
    }

    /// Returns the CUDA version of the driver, as 1000 × major + 10 × minor.
    pub fn version(&self) -> Result<u32, CudaError> {
        let mut version = 0;
        // SAFETY: The driver writes an integer to `version`.
        unsafe { self.api.cuDriverGetVersion(&mut version) }?;
        Ok(u32::try_from(version).unwrap_or(0))
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
    // SAFETY: The function takes no pointers.
    unsafe { api.cuInit(0) }.map_err(NoCuda::Init)?;
    Ok(api)
}
