//! The C interface between NCCL and a network plugin: result codes, callbacks, and a function table for
//! each version (NCCL's `nccl_net.h` and `net_v6.h` to `net_v12.h`).
//!
//! This module asserts the layouts; `tests/c_program/` compares them with a C compiler's.

mod collnet;
mod profiler;
mod properties;
mod table;

pub use collnet::{Blocks, CollNet, CollNetVersion, FinalTail, Sge, SgeV8, SgeV9};
pub use profiler::{Description, QpWork, SocketWork};
pub use properties::{
    PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12,
    VDeviceProps,
};
pub use table::{
    Absent, MakeVDevice, Net, TailV9, TailV11, V6, V7, V8, V9, V10, V11, V12, Version,
};

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// `ncclResult_t`, kept as an integer because a C caller may pass or return any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Code(pub c_int);

impl Code {
    /// `ncclSuccess`.
    pub const SUCCESS: Code = Code(0);
    /// `ncclSystemError`: a system call or the local device failed.
    pub const SYSTEM_ERROR: Code = Code(2);
    /// `ncclInternalError`: NCCL or the plugin has a defect.
    pub const INTERNAL_ERROR: Code = Code(3);
    /// `ncclInvalidArgument`: an argument of the call is invalid.
    pub const INVALID_ARGUMENT: Code = Code(4);
    /// `ncclInvalidUsage`: the settings are invalid, or the ranks disagree.
    pub const INVALID_USAGE: Code = Code(5);
    /// `ncclRemoteError`: the peer or the network path to it failed.
    pub const REMOTE_ERROR: Code = Code(6);
}

/// `NCCL_NET_HANDLE_MAXSIZE`: the length of a handle in bytes.
pub const HANDLE_BYTES: usize = 128;
/// `NCCL_PTR_HOST`: host memory can be registered.
pub const PTR_HOST: c_int = 1;
/// `NCCL_PTR_CUDA`: GPU memory can be registered by its address.
pub const PTR_CUDA: c_int = 2;
/// `NCCL_PTR_DMABUF`: GPU memory can be registered as a DMA-BUF.
pub const PTR_DMABUF: c_int = 4;
/// `NCCL_NET_TRAFFIC_CLASS_UNDEF`: the communicator sets no traffic class.
pub const TRAFFIC_CLASS_UNDEF: c_int = -1;

/// `ncclDebugLogger_t`: level, subsystems, file or function, line, format string and its arguments.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// `ncclDebugLogLevel`.
pub mod log_level {
    use std::ffi::c_int;
    /// `NCCL_LOG_WARN`.
    pub const WARN: c_int = 2;
    /// `NCCL_LOG_INFO`.
    pub const INFO: c_int = 3;
    /// `NCCL_LOG_TRACE`.
    pub const TRACE: c_int = 5;
}

/// `ncclDebugLogSubSys`.
pub mod subsystem {
    use std::ffi::c_ulong;
    /// The subsystems that a message of Invar may have. A release of NCCL that lacks one shows its messages only
    /// for `NCCL_ALL`.
    pub const NAMED: [(&str, c_ulong); 8] = [
        ("INIT", INIT),
        ("COLL", 2),
        ("SHM", 8),
        ("NET", NET),
        ("ENV", 128),
        ("PROXY", 1024),
        ("BOOTSTRAP", 4096),
        ("REG", 8192),
    ];
    /// `NCCL_INIT`.
    pub const INIT: c_ulong = 1;
    /// `NCCL_NET`.
    pub const NET: c_ulong = 16;
    /// `NCCL_ALL`.
    pub const ALL: c_ulong = !0;
}

/// `ncclProfilerCallback_t`: event handle, action, NCCL's handle of the step that the event belongs to,
/// type of the description, and the description.
pub type ProfilerCallback =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> Code;

/// `ncclNetCommConfig_v10_t` and its later versions.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CommConfig {
    /// DSCP × 4 + ECN, or [`TRAFFIC_CLASS_UNDEF`].
    pub traffic_class: c_int,
}
