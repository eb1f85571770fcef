//! CUDA's driver through the bindings of `cust`.
//!
//! `cust` declares the driver's functions as symbols that the linker must resolve, and a program linked
//! to libcuda does not start without libcuda. So this module defines these symbols. Each one jumps to
//! the address in its slot. At first the slot points to code that looks up the function in the libcuda
//! that `cudarc` opens. From then on the slot points to that function. The symbols are hidden: only the
//! program or library that contains them sees them.
//!
//! `cust` also works on its own, before or without an open [`Driver`](crate::Driver). Without libcuda
//! its calls return `NotInitialized`.

use std::ffi::{CStr, c_char};

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "the feature `cust` of invar-cuda is for x86-64 Linux; without it, all Linux will do"
);

/// `CUDA_ERROR_NOT_INITIALIZED`: the result of a missing function. The bindings of `cust` know this
/// code.
const NOT_INITIALIZED: u32 = 3;

macro_rules! trampolines {
    ($($name:ident)+) => {
        $(
            // Each trampoline has sections of its own, so the linker drops unused ones. The symbols are
            // weak, because this crate's tests contain them twice: once in the tests themselves and once
            // in the library that their tools link.
            std::arch::global_asm!(
                concat!(".pushsection .text.invar_", stringify!($name), ",\"ax\",@progbits"),
                concat!(".weak ", stringify!($name)),
                concat!(".hidden ", stringify!($name)),
                concat!(".type ", stringify!($name), ",@function"),
                concat!(stringify!($name), ":"),
                "jmp qword ptr [rip + 72f]",
                "71: lea rax, [rip + 73f]",
                "lea r10, [rip + 72f]",
                "jmp invar_cuda_bind",
                ".popsection",
                concat!(".pushsection .data.invar_", stringify!($name), ",\"aw\",@progbits"),
                ".balign 8",
                "72: .quad 71b",
                ".popsection",
                concat!(".pushsection .rodata.invar_", stringify!($name), ",\"a\",@progbits"),
                concat!("73: .asciz \"", stringify!($name), "\""),
                ".popsection",
            );
        )+

        /// Returns the address of a function that `cust` declares, by its name.
        pub(crate) fn function(name: &str) -> Option<*const ()> {
            match name {
                $(stringify!($name) => Some(cust::sys::$name as *const ()),)+
                _ => None,
            }
        }
    };
}

// Input: the address of the name in rax, the address of the slot in r10, and the arguments of a driver
// function. No argument is a floating-point number. The code preserves the six registers that hold
// arguments.
std::arch::global_asm!(
    ".pushsection .text.invar_cuda_bind,\"ax\",@progbits",
    ".type invar_cuda_bind,@function",
    "invar_cuda_bind:",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "push r10",
    "mov rdi, rax",
    "call {bind}",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "mov qword ptr [r10], rax",
    "jmp rax",
    ".popsection",
    bind = sym bind,
);

/// Returns the address of a function by its name.
extern "C" fn bind(name: *const c_char) -> *const () {
    // SAFETY: A trampoline passes its own constant, which ends in NUL.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: The call only opens and closes libcuda, which supports that.
    let is_there = unsafe { cudarc::driver::sys::is_culib_present() };
    let symbol = name.to_str().ok().filter(|_| is_there).and_then(super::symbol);
    symbol.unwrap_or(absent as *const ())
}

extern "C" fn absent() -> u32 {
    NOT_INITIALIZED
}

// The functions that `cust` calls, and those that Invar calls through `cust`.
trampolines! {
    cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayDestroy cuCtxCreate_v2 cuCtxDestroy_v2
    cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevice cuCtxGetFlags
    cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxGetStreamPriorityRange cuCtxPopCurrent_v2
    cuCtxPushCurrent_v2 cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetLimit cuCtxSetSharedMemConfig
    cuCtxSynchronize cuDestroyExternalMemory cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount
    cuDeviceGetName cuDeviceGetPCIBusId cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset_v2
    cuDevicePrimaryCtxRetain cuDevicePrimaryCtxSetFlags_v2 cuDeviceTotalMem_v2 cuDriverGetVersion
    cuEventCreate cuEventDestroy_v2 cuEventElapsedTime cuEventQuery cuEventRecord
    cuEventSynchronize cuExternalMemoryGetMappedBuffer cuFlushGPUDirectRDMAWrites
    cuFuncGetAttribute cuFuncSetCacheConfig cuFuncSetSharedMemConfig cuGetErrorName
    cuGetErrorString cuGraphAddKernelNode cuGraphCreate cuGraphDebugDotPrint cuGraphDestroy
    cuGraphGetEdges cuGraphGetNodes cuGraphKernelNodeGetParams cuGraphNodeGetType
    cuImportExternalMemory cuInit cuLaunchHostFunc cuLaunchKernel cuLinkAddData_v2 cuLinkComplete
    cuLinkCreate_v2 cuLinkDestroy cuMemAdvise cuMemAllocAsync cuMemAllocHost_v2 cuMemAllocManaged
    cuMemAlloc_v2 cuMemFreeAsync cuMemFreeHost cuMemFree_v2 cuMemGetInfo_v2
    cuMemHostAlloc cuMemPrefetchAsync cuMemcpy2D_v2 cuMemcpyAtoH_v2 cuMemcpyDtoDAsync_v2
    cuMemcpyDtoD_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 cuMemcpyHtoA_v2 cuMemcpyHtoDAsync_v2
    cuMemcpyHtoD_v2 cuMemsetD16Async cuMemsetD16_v2 cuMemsetD32Async cuMemsetD32_v2 cuMemsetD8Async
    cuMemsetD8_v2 cuModuleGetFunction cuModuleGetGlobal_v2 cuModuleLoad cuModuleLoadData
    cuModuleLoadDataEx cuModuleUnload cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxPotentialBlockSize
    cuPointerGetAttribute cuPointerSetAttribute cuStreamCreate cuStreamCreateWithPriority
    cuStreamDestroy_v2 cuStreamGetFlags cuStreamGetPriority cuStreamSynchronize cuStreamWaitEvent
    cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuTexObjectCreate
    cuTexObjectDestroy cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc
    cuThreadExchangeStreamCaptureMode
}
