//! The driver through the bindings of `cust`.
//!
//! `cust` declares the driver's functions as ones that the linker must find, and a program linked
//! to libcuda does not start where there is none. So they are defined here, each as a jump to
//! where its slot points: at first to code that looks the function up in the libcuda that `cudarc`
//! opens, and from then on to that function. They are hidden, that is seen by nothing but the
//! program or library that they are linked into.
//!
//! `cust` by itself works as well, before a [`Driver`](crate::Driver) is opened and without one;
//! where there is no libcuda its calls give `NotInitialized`.

use std::ffi::{CStr, c_char};

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "the feature `cust` of invar-cuda is for x86-64 Linux; without it, all Linux will do"
);

/// `CUDA_ERROR_NOT_INITIALIZED`: what a function gives that is not there. The bindings of `cust`
/// know it.
const NOT_INITIALIZED: u32 = 3;

macro_rules! trampolines {
    ($($name:ident)+) => {
        $(
            // Each has sections of its own, so that the linker drops what nobody calls. They are
            // weak, since the tests of this crate have them twice: of themselves, and of the library
            // that their tools are linked to.
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

        /// The address of a function that `cust` declares, by its name.
        pub(crate) fn function(name: &str) -> Option<*const ()> {
            match name {
                $(stringify!($name) => Some(cust::sys::$name as *const ()),)+
                _ => None,
            }
        }
    };
}

// In: the address of the name in rax, of the slot in r10, and the arguments of a function of the
// driver, none of which is a floating-point number. The six that lie in registers are kept.
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

/// Where a function is, by its name.
extern "C" fn bind(name: *const c_char) -> *const () {
    // SAFETY: a trampoline gives its own constant.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: opens and closes the library, which is made for that.
    let is_there = unsafe { cudarc::driver::sys::is_culib_present() };
    let symbol = name.to_str().ok().filter(|_| is_there).and_then(super::symbol);
    symbol.unwrap_or(absent as *const ())
}

extern "C" fn absent() -> u32 {
    NOT_INITIALIZED
}

// What `cust` calls, and what Invar calls of it.
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
}
