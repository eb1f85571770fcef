//! The library libcuda: its functions by name, and its names for error codes.

use std::ffi::{CStr, c_char};

use cudarc::driver::sys;

/// `CUDA_SUCCESS`.
pub(crate) const SUCCESS: u32 = 0;

/// Returns the driver's name for an error code; works once a driver is open.
pub(crate) fn error_name(code: u32) -> &'static str {
    let unknown = "an error without a name";
    let Some(function) = symbol("cuGetErrorName") else { return unknown };
    // SAFETY: The signature is that of cuda.h, with an integer for the enum.
    let function = unsafe {
        std::mem::transmute::<
            *const (),
            unsafe extern "C" fn(code: u32, name: *mut *const c_char) -> u32,
        >(function)
    };
    let mut name = std::ptr::null();
    // SAFETY: The driver writes the address of one of its constants, or null.
    match unsafe { function(code, &mut name) } {
        // SAFETY: The text is a constant of the driver, which stays loaded.
        SUCCESS if !name.is_null() => unsafe { CStr::from_ptr(name) }.to_str().unwrap_or(unknown),
        _ => unknown,
    }
}

/// Returns the address of a function in the libcuda that `cudarc` has open. Call this only where libcuda
/// exists.
pub(crate) fn symbol(name: &str) -> Option<*const ()> {
    // SAFETY: The lookup reads an address and calls nothing.
    unsafe { sys::culib().get::<*const ()>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}
