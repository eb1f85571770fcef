//! Asks the dynamic loader, so that the answer is the one that NCCL would get.

use std::error::Error;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use libloading::Library;

/// A library in this process.
pub(super) struct Loaded(Library);

impl Loaded {
    /// Loads a library by its path, or by a name that the loader searches for. The error is the loader's.
    pub(super) fn open(name: impl AsRef<OsStr>) -> Result<Loaded, String> {
        // SAFETY: loading runs the library's constructors. The caller names only NCCL and its plugin, which
        // the user's programs load in the same way.
        let library = unsafe { Library::new(name.as_ref()) };
        // The loader's own words are the source of the error.
        library.map(Loaded).map_err(|error| match error.source() {
            Some(source) => source.to_string(),
            None => error.to_string(),
        })
    }

    /// Whether the library has the symbol.
    pub(super) fn has(&self, symbol: &str) -> bool {
        self.address(symbol).is_some()
    }

    /// The file from which the symbol comes.
    pub(super) fn file_of(&self, symbol: &str) -> Option<PathBuf> {
        let address = self.address(symbol)?;
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: `dladdr` only looks up the address, and fills `info` if it returns something else than 0.
        let info =
            unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init())? };
        if info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the name is a C string of the loader. It lives while the library is loaded.
        let name = unsafe { CStr::from_ptr(info.dli_fname) };
        Some(OsStr::from_bytes(name.to_bytes()).into())
    }

    /// The answer of `ncclGetVersion`: 21403 for 2.14.3.
    pub(super) fn nccl_version(&self) -> Option<u32> {
        type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
        // SAFETY: nccl.h declares the function with this type.
        let get = unsafe { self.0.get::<GetVersion>(b"ncclGetVersion\0") }.ok()?;
        let mut version = 0;
        // SAFETY: the function writes one `int`, and returns 0 (ncclSuccess) if it did.
        let status = unsafe { get(&mut version) };
        if status == 0 { u32::try_from(version).ok() } else { None }
    }

    fn address(&self, symbol: &str) -> Option<*const c_void> {
        // SAFETY: nobody calls the address or reads through it.
        let address =
            unsafe { self.0.get::<*const c_void>(symbol.as_bytes()).ok()?.try_as_raw_ptr() };
        address.map(<*mut c_void>::cast_const)
    }
}
