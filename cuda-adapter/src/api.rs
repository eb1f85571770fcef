//! The functions of CUDA's driver API that Invar calls.
//!
//! They are looked up by name in a library that is opened at run time. `cudarc` and `cust` declare
//! them too, but as functions that return a Rust enum, which a driver newer than the bindings may
//! leave, and `cudarc`'s panic where the driver is too old to have one. Here a function that is
//! not there is an error like any other, and a result is a number.

#[cfg(feature = "cust")]
mod cust;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream};

use crate::CudaError;
#[cfg(feature = "cust")]
pub(crate) use cust::function as from_cust;

/// `CUDA_SUCCESS`.
const SUCCESS: u32 = 0;
/// `CUDA_ERROR_INVALID_VALUE`: also what the driver answers about memory that is not its own.
pub(crate) const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_NOT_READY`: not an error, but the answer of a query.
const NOT_READY: u32 = 600;

macro_rules! functions {
    ($($name:ident($($arg:ident: $kind:ty),*);)+) => {
        /// A driver: its functions, each where the library has it.
        #[expect(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct Api { $($name: Option<unsafe extern "C" fn($($kind),*) -> u32>,)+ }

        impl Api {
            /// Looks every function up.
            ///
            /// # Safety
            /// What `function` gives for a name is the driver's function of that name, for ever.
            unsafe fn load(function: impl Fn(&'static str) -> Option<*const ()>) -> Self {
                $(
                    #[expect(non_snake_case, reason = "the driver's own names")]
                    let $name = function(stringify!($name)).map(|address| {
                        // SAFETY: by the caller's promise it is this function, whose signature is
                        // that of cuda.h with integers for enums.
                        unsafe {
                            std::mem::transmute::<
                                *const (),
                                unsafe extern "C" fn($($kind),*) -> u32,
                            >(address)
                        }
                    });
                )+
                Api { $($name,)+ }
            }

            $(
                /// Calls the driver's function of this name.
                ///
                /// # Safety
                /// As cuda.h demands: pointers are valid, handles live.
                #[expect(non_snake_case, reason = "the driver's own names")]
                pub(crate) unsafe fn $name(&self, $($arg: $kind),*) -> Result<(), CudaError> {
                    let Some(function) = self.$name else {
                        return Err(CudaError::missing(stringify!($name)));
                    };
                    // SAFETY: The caller upholds this function's safety contract.
                    match unsafe { function($($arg),*) } {
                        SUCCESS => Ok(()),
                        code => Err(CudaError::failed(stringify!($name), code)),
                    }
                }
            )+
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuMemAlloc_v2(addr: *mut CUdeviceptr, len: usize);
    cuMemFree_v2(addr: CUdeviceptr);
    cuMemHostAlloc(addr: *mut *mut c_void, len: usize, flags: c_uint);
    cuMemFreeHost(addr: *mut c_void);
    cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, len: usize);
    cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, len: usize);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, len: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, len: usize, stream: CUstream);
    cuMemGetHandleForAddressRange(
        handle: *mut c_void, addr: CUdeviceptr, len: usize, kind: c_uint, flags: c_ulonglong
    );
    cuPointerGetAttribute(value: *mut c_void, attribute: c_uint, addr: CUdeviceptr);
    cuPointerSetAttribute(value: *const c_void, attribute: c_uint, addr: CUdeviceptr);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamSynchronize(stream: CUstream);
    cuStreamDestroy_v2(stream: CUstream);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventQuery(event: CUevent);
    cuEventDestroy_v2(event: CUevent);
    cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint);
}

impl Api {
    /// From the libcuda that `cudarc` finds; `None` where there is none.
    pub(crate) fn open() -> Option<Self> {
        // SAFETY: opens and closes the library, which is made for that.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        // SAFETY: cudarc opens libcuda once and never closes it.
        Some(unsafe { Self::load(symbol) })
    }

    /// From the bindings of `cust`, and from libcuda what is younger than they; `None` where there
    /// is no libcuda.
    #[cfg(feature = "cust")]
    pub(crate) fn open_cust() -> Option<Self> {
        // SAFETY: as in `open`.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        // SAFETY: cust's functions are the driver's, by way of the trampolines.
        Some(unsafe { Self::load(|name| from_cust(name).or_else(|| symbol(name))) })
    }

    /// Whether memory can be exported as DMA-BUFs.
    pub(crate) fn exports_dma_bufs(&self) -> bool {
        self.cuMemGetHandleForAddressRange.is_some()
    }

    /// Whether there is a call that makes what NICs wrote visible.
    pub(crate) fn flushes_writes(&self) -> bool {
        self.cuFlushGPUDirectRDMAWrites.is_some()
    }

    /// Whether what was recorded is done.
    ///
    /// # Safety
    /// The event lives.
    pub(crate) unsafe fn event_is_done(&self, event: CUevent) -> Result<bool, CudaError> {
        // SAFETY: The caller upholds this function's safety contract.
        match unsafe { self.cuEventQuery(event) } {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// What the driver calls an error, once there is a driver.
pub(crate) fn error_name(code: u32) -> &'static str {
    let unknown = "an error without a name";
    let Some(function) = symbol("cuGetErrorName") else { return unknown };
    // SAFETY: the signature is cuda.h's, with an integer for the enum.
    let function = unsafe {
        std::mem::transmute::<
            *const (),
            unsafe extern "C" fn(code: u32, name: *mut *const c_char) -> u32,
        >(function)
    };
    let mut name = std::ptr::null();
    // SAFETY: the driver writes the address of a constant of its own, or null.
    match unsafe { function(code, &mut name) } {
        // SAFETY: the driver stays loaded.
        SUCCESS if !name.is_null() => unsafe { CStr::from_ptr(name) }.to_str().unwrap_or(unknown),
        _ => unknown,
    }
}

/// The address of a function in the libcuda that `cudarc` has open. Only where there is one.
fn symbol(name: &str) -> Option<*const ()> {
    // SAFETY: an address is read, and nothing called.
    unsafe { sys::culib().get::<*const ()>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}
