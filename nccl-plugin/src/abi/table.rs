//! `ncclNet_v*_t`: the functions of a plugin, by version.
//!
//! What changed: v7 hands device handles to `connect` and `accept`; v8 registers more than 2 GiB,
//! v9 sends it; v10 names the profiler's step of each transfer; v11 has contexts, one for each
//! communicator, and ends them; v12 has other properties.

use std::ffi::{c_char, c_int, c_void};

use static_assertions::const_assert_eq;

use super::{
    Code, CommConfig, Logger, ProfilerCallback, PropertiesV6, PropertiesV7, PropertiesV8,
    PropertiesV9, PropertiesV11, PropertiesV12,
};

/// What sets a version of the interface apart.
pub trait Version {
    /// Describes a device.
    type Properties;
    /// Counts bytes to register.
    type RegBytes;
    /// Starts the plugin.
    type Init;
    /// Listens.
    type Listen;
    /// Connects.
    type Connect;
    /// Accepts.
    type Accept;
    /// Sends.
    type ISend;
    /// Receives.
    type IRecv;
    /// What follows the functions that all versions have.
    type Tail;
}

/// A table as NCCL looks it up, by the name `ncclNetPlugin_v` and the version.
#[repr(C)]
pub struct Net<V: Version> {
    /// What `NCCL_NET` calls the network.
    pub name: *const c_char,
    /// Before all others.
    pub init: V::Init,
    /// How many devices there are.
    pub devices: unsafe extern "C" fn(*mut c_int) -> Code,
    /// Describes one.
    pub get_properties: unsafe extern "C" fn(c_int, *mut V::Properties) -> Code,
    /// Writes the handle that names a listening comm.
    pub listen: V::Listen,
    /// Becomes a sending comm, in as many calls as that takes.
    pub connect: V::Connect,
    /// Becomes a receiving comm, in as many calls as that takes.
    pub accept: V::Accept,
    /// Registers memory: comm, memory, bytes, its kind, registration.
    pub reg_mr: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        V::RegBytes,
        c_int,
        *mut *mut c_void,
    ) -> Code,
    /// Registers memory that a file descriptor stands for: comm, memory, bytes, its kind, offset in
    /// the descriptor, descriptor, registration.
    pub reg_mr_dma_buf: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        usize,
        c_int,
        u64,
        c_int,
        *mut *mut c_void,
    ) -> Code,
    /// Ends a registration.
    pub dereg_mr: unsafe extern "C" fn(*mut c_void, *mut c_void) -> Code,
    /// Starts to send.
    pub isend: V::ISend,
    /// Posts a receive of several buffers.
    pub irecv: V::IRecv,
    /// Makes received GPU memory visible: comm, number of buffers, and of each memory, bytes,
    /// registration; request.
    pub iflush: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut *mut c_void,
        *mut c_int,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> Code,
    /// Request, whether it is done, bytes of each of its buffers.
    pub test: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> Code,
    /// Ends a sending comm.
    pub close_send: unsafe extern "C" fn(*mut c_void) -> Code,
    /// Ends a receiving comm.
    pub close_recv: unsafe extern "C" fn(*mut c_void) -> Code,
    /// Ends a listening comm.
    pub close_listen: unsafe extern "C" fn(*mut c_void) -> Code,
    /// What came later.
    pub tail: V::Tail,
}

// SAFETY: functions, and text that lives as long as the program.
unsafe impl<V: Version> Sync for Net<V> {}

/// A function that may be missing, and is.
pub type Absent = Option<unsafe extern "C" fn() -> Code>;

/// The end of a table since v11.
#[repr(C)]
pub struct TailV11 {
    /// `getDeviceMr`, `irecvConsumed`: for offload to the GPU. `makeVDevice`: joins devices.
    pub absent: [Absent; 3],
    /// Ends a context.
    pub finalize: unsafe extern "C" fn(*mut c_void) -> Code,
    /// Hints about the traffic of a context.
    pub set_net_attr: unsafe extern "C" fn(*mut c_void, *const c_void) -> Code,
}

type Init = unsafe extern "C" fn(Option<Logger>) -> Code;
type InitV10 = unsafe extern "C" fn(Option<Logger>, Option<ProfilerCallback>) -> Code;
type InitV11 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *const CommConfig,
    Option<Logger>,
    Option<ProfilerCallback>,
) -> Code;
/// Device, handle, listening comm.
type Listen = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> Code;
/// Context first.
type ListenV11 = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> Code;
/// Device, handle, sending comm.
type ConnectV6 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> Code;
/// And a device handle.
type Connect = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut c_void) -> Code;
/// Device, settings, handle, sending comm, device handle.
type ConnectV10 = unsafe extern "C" fn(
    c_int,
    *const CommConfig,
    *mut c_void,
    *mut *mut c_void,
    *mut c_void,
) -> Code;
/// Context, device, handle, sending comm, device handle.
type ConnectV11 =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void, *mut c_void) -> Code;
/// Listening comm, receiving comm.
type AcceptV6 = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> Code;
/// And a device handle.
type Accept = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut c_void) -> Code;
/// Comm, memory, bytes, tag, registration, request.
type ISend<S> =
    unsafe extern "C" fn(*mut c_void, *mut c_void, S, c_int, *mut c_void, *mut *mut c_void) -> Code;
/// Comm, memory, bytes, tag, registration, the profiler's step, request.
type ISendV10 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> Code;
/// Comm, number of buffers, and of each memory, bytes, tag, registration; request.
type IRecv<S> = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut S,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;
/// Comm, number of buffers, and of each memory, bytes, tag, registration, the profiler's step;
/// request.
type IRecvV10 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;

macro_rules! versions {
    ($($(#[$doc:meta])* $name:ident {
        $properties:ty, $reg_bytes:ty, $init:ty, $listen:ty, $connect:ty, $accept:ty, $isend:ty,
        $irecv:ty, $tail:ty, functions: $functions:literal $(,)?
    })+) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl Version for $name {
            type Properties = $properties;
            type RegBytes = $reg_bytes;
            type Init = $init;
            type Listen = $listen;
            type Connect = $connect;
            type Accept = $accept;
            type ISend = $isend;
            type IRecv = $irecv;
            type Tail = $tail;
        }

        const_assert_eq!(size_of::<Net<$name>>(), (1 + $functions) * size_of::<usize>());
    )+ };
}

versions! {
    /// NCCL 2.13.
    V6 {
        PropertiesV6, c_int, Init, Listen, ConnectV6, AcceptV6, ISend<c_int>, IRecv<c_int>,
        (), functions: 16,
    }
    /// NCCL 2.19.
    V7 {
        PropertiesV7, c_int, Init, Listen, Connect, Accept, ISend<c_int>, IRecv<c_int>,
        [Absent; 2], functions: 18,
    }
    /// NCCL 2.20.
    V8 {
        PropertiesV8, usize, Init, Listen, Connect, Accept, ISend<c_int>, IRecv<c_int>,
        [Absent; 2], functions: 18,
    }
    /// NCCL 2.24.
    V9 {
        PropertiesV9, usize, Init, Listen, Connect, Accept, ISend<usize>, IRecv<usize>,
        [Absent; 3], functions: 19,
    }
    /// NCCL 2.26.
    V10 {
        PropertiesV9, usize, InitV10, Listen, ConnectV10, Accept, ISendV10, IRecvV10,
        [Absent; 3], functions: 19,
    }
    /// NCCL 2.28.
    V11 {
        PropertiesV11, usize, InitV11, ListenV11, ConnectV11, Accept, ISendV10, IRecvV10,
        TailV11, functions: 21,
    }
    /// NCCL 2.30.
    V12 {
        PropertiesV12, usize, InitV11, ListenV11, ConnectV11, Accept, ISendV10, IRecvV10,
        TailV11, functions: 21,
    }
}
