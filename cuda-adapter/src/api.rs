//! The functions of CUDA's driver API that Invar calls.
//!
//! This module looks up the functions by name in a library that it opens at run time. `cudarc` and
//! `cust` declare the functions too, but with a Rust enum as the result. A driver newer than the
//! bindings may return a value outside of that enum. `cudarc`'s functions also panic if the driver is
//! too old to have them. Here a missing function is an ordinary error, and a result is a number.

#[cfg(feature = "cust")]
mod cust;

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream};

use crate::CudaError;
use crate::library::{SUCCESS, symbol};
#[cfg(feature = "cust")]
pub(crate) use cust::function as from_cust;

/// `CUDA_ERROR_INVALID_VALUE`: the driver also returns it for memory that is not its own.
pub(crate) const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_NOT_READY`: a query's answer for unfinished work, not an error.
const NOT_READY: u32 = 600;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub(crate) const NOT_SUPPORTED: u32 = 801;

macro_rules! functions {
    ($($name:ident($($arg:ident: $kind:ty),*);)+) => {
        /// The functions of a driver; a function that the library lacks is `None`.
        #[expect(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct Api { $($name: Option<unsafe extern "C" fn($($kind),*) -> u32>,)+ }

        impl Api {
            /// Looks up every function.
            ///
            /// # Safety
            /// For each name, `function` returns the driver's function of that name, which stays loaded
            /// for ever.
            unsafe fn load(function: impl Fn(&'static str) -> Option<*const ()>) -> Self {
                $(
                    #[expect(non_snake_case, reason = "the driver's own names")]
                    let $name = function(stringify!($name)).map(|address| {
                        // SAFETY: The caller promises that the address is this function. Its signature
                        // is that of cuda.h, with integers for enums.
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
                /// The arguments meet the requirements of cuda.h: pointers are valid, and handles are
                /// live.
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
    cuCtxGetFlags(flags: *mut c_uint);
    cuCtxSetFlags(flags: c_uint);
    cuMemAlloc_v2(addr: *mut CUdeviceptr, len: usize);
    cuMemFree_v2(addr: CUdeviceptr);
    cuMemHostAlloc(addr: *mut *mut c_void, len: usize, flags: c_uint);
    cuMemFreeHost(addr: *mut c_void);
    cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: CUstream);
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
    cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
}

impl Api {
    /// Opens the libcuda that `cudarc` finds; returns `None` if this host has none.
    pub(crate) fn open() -> Option<Self> {
        // SAFETY: The call only opens and closes libcuda, which supports that.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        // SAFETY: cudarc opens libcuda once and never closes it.
        Some(unsafe { Self::load(symbol) })
    }

    /// Takes the functions from the bindings of `cust`, and those that `cust` lacks from libcuda.
    /// Returns `None` if this host has no libcuda.
    #[cfg(feature = "cust")]
    pub(crate) fn open_cust() -> Option<Self> {
        // SAFETY: The call only opens and closes libcuda, which supports that.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        // SAFETY: The trampolines make cust's functions jump to the driver's functions.
        Some(unsafe { Self::load(|name| from_cust(name).or_else(|| symbol(name))) })
    }

    /// Whether the driver can export memory as a DMA-BUF.
    pub(crate) fn exports_dma_bufs(&self) -> bool {
        self.cuMemGetHandleForAddressRange.is_some()
    }

    /// Whether the driver has a call that makes a NIC's writes visible.
    pub(crate) fn flushes_writes(&self) -> bool {
        self.cuFlushGPUDirectRDMAWrites.is_some()
    }

    /// Whether the work recorded in an event is done.
    ///
    /// # Safety
    /// The event is live.
    pub(crate) unsafe fn event_is_done(&self, event: CUevent) -> Result<bool, CudaError> {
        // SAFETY: The caller upholds this function's safety contract.
        match unsafe { self.cuEventQuery(event) } {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
