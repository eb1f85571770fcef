//! `ncclNet_v*_t`: the function table of a plugin, in each version.
//!
//! Differences between the versions:
//!
//! - v7 passes device handles to `connect` and `accept`.
//! - v8 registers more than 2 GiB at once.
//! - v9 sends messages of more than 2 GiB.
//! - v10 names the profiler's step of each transfer.
//! - v11 has a context for each communicator, and `finalize` ends the context.
//! - v12 has other device properties.

use std::ffi::{c_char, c_int, c_void};

use static_assertions::const_assert_eq;

use super::{
    Code, CommConfig, Logger, ProfilerCallback, PropertiesV6, PropertiesV7, PropertiesV8,
    PropertiesV9, PropertiesV11, PropertiesV12, VDeviceProps,
};

/// The types that differ between the versions of the interface.
pub trait Version {
    /// Description of a device.
    type Properties;
    /// Type of the number of bytes to register.
    type RegBytes;
    /// Type of `init`, which starts the plugin.
    type Init;
    /// Type of `listen`.
    type Listen;
    /// Type of `connect`.
    type Connect;
    /// Type of `accept`.
    type Accept;
    /// Type of `isend`.
    type ISend;
    /// Type of `irecv`.
    type IRecv;
    /// The functions of this version behind those that all versions have.
    type Tail;
}

/// A function table; NCCL looks it up by the symbol `ncclNetPlugin_v` plus the version number.
#[repr(C)]
pub struct Net<V: Version> {
    /// Name of the network, as `NCCL_NET` selects it.
    pub name: *const c_char,
    /// Starts the plugin; NCCL calls this function before all others.
    pub init: V::Init,
    /// Writes the number of devices.
    pub devices: unsafe extern "C" fn(*mut c_int) -> Code,
    /// Describes a device.
    pub get_properties: unsafe extern "C" fn(c_int, *mut V::Properties) -> Code,
    /// Creates a listening comm and writes its handle.
    pub listen: V::Listen,
    /// Connects to a handle; NCCL repeats the call until the sending comm is there.
    pub connect: V::Connect,
    /// Accepts a connection; NCCL repeats the call until the receiving comm is there.
    pub accept: V::Accept,
    /// Registers memory. Arguments: comm, memory, bytes, kind of memory, registration.
    pub reg_mr: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        V::RegBytes,
        c_int,
        *mut *mut c_void,
    ) -> Code,
    /// Registers the memory behind a DMA-BUF file descriptor. Arguments: comm, memory, bytes, kind of
    /// memory, offset in the DMA-BUF, descriptor, registration.
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
    /// Starts a send.
    pub isend: V::ISend,
    /// Posts a receive into one or several buffers.
    pub irecv: V::IRecv,
    /// Makes received GPU memory visible to the GPU. Arguments: comm, number of buffers, then an array
    /// each of memory, bytes and registrations, then the request.
    pub iflush: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut *mut c_void,
        *mut c_int,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> Code,
    /// Tests a request. Arguments: request, whether the request is done, bytes of each of its buffers.
    pub test: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> Code,
    /// Closes a sending comm.
    pub close_send: unsafe extern "C" fn(*mut c_void) -> Code,
    /// Closes a receiving comm.
    pub close_recv: unsafe extern "C" fn(*mut c_void) -> Code,
    /// Closes a listening comm.
    pub close_listen: unsafe extern "C" fn(*mut c_void) -> Code,
    /// The functions that only later versions have.
    pub tail: V::Tail,
}

// SAFETY: The table holds only function pointers and a string of static lifetime.
unsafe impl<V: Version> Sync for Net<V> {}

/// A function that the plugin does not provide: the pointer is null.
pub type Absent = Option<unsafe extern "C" fn() -> Code>;

/// `makeVDevice`: joins devices, and writes the number of the device that they make. Arguments: number,
/// devices.
pub type MakeVDevice<const DEVS_MAX: usize> =
    unsafe extern "C" fn(*mut c_int, *const VDeviceProps<DEVS_MAX>) -> Code;

/// The functions behind the common ones in v9 and v10.
#[repr(C)]
pub struct TailV9 {
    /// `getDeviceMr` and `irecvConsumed` (offload to the GPU).
    pub absent: [Absent; 2],
    /// Makes one device of several.
    pub make_v_device: MakeVDevice<4>,
}

/// The functions behind the common ones since v11.
#[repr(C)]
pub struct TailV11<const DEVS_MAX: usize> {
    /// `getDeviceMr` and `irecvConsumed` (offload to the GPU).
    pub absent: [Absent; 2],
    /// Makes one device of several.
    pub make_v_device: MakeVDevice<DEVS_MAX>,
    /// Ends a context.
    pub finalize: unsafe extern "C" fn(*mut c_void) -> Code,
    /// Receives hints about the traffic of a context.
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
/// Arguments: device, handle, listening comm.
type Listen = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> Code;
/// Arguments: context, device, handle, listening comm.
type ListenV11 = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> Code;
/// Arguments: device, handle, sending comm.
type ConnectV6 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> Code;
/// Arguments: device, handle, sending comm, device handle.
type Connect = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut c_void) -> Code;
/// Arguments: device, settings, handle, sending comm, device handle.
type ConnectV10 = unsafe extern "C" fn(
    c_int,
    *const CommConfig,
    *mut c_void,
    *mut *mut c_void,
    *mut c_void,
) -> Code;
/// Arguments: context, device, handle, sending comm, device handle.
type ConnectV11 =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void, *mut c_void) -> Code;
/// Arguments: listening comm, receiving comm.
type AcceptV6 = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> Code;
/// Arguments: listening comm, receiving comm, device handle.
type Accept = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut c_void) -> Code;
/// Arguments: comm, memory, bytes, tag, registration, request.
type ISend<S> =
    unsafe extern "C" fn(*mut c_void, *mut c_void, S, c_int, *mut c_void, *mut *mut c_void) -> Code;
/// Arguments: comm, memory, bytes, tag, registration, profiler step, request.
type ISendV10 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> Code;
/// Arguments: comm, number of buffers, an array each of memory, bytes, tags and registrations, request.
type IRecv<S> = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut S,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;
/// Arguments: comm, number of buffers, an array each of memory, bytes, tags, registrations and profiler
/// steps, request.
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
    /// The interface since NCCL 2.13.
    V6 {
        PropertiesV6, c_int, Init, Listen, ConnectV6, AcceptV6, ISend<c_int>, IRecv<c_int>,
        (), functions: 16,
    }
    /// The interface since NCCL 2.19.
    V7 {
        PropertiesV7, c_int, Init, Listen, Connect, Accept, ISend<c_int>, IRecv<c_int>,
        [Absent; 2], functions: 18,
    }
    /// The interface since NCCL 2.20.
    V8 {
        PropertiesV8, usize, Init, Listen, Connect, Accept, ISend<c_int>, IRecv<c_int>,
        [Absent; 2], functions: 18,
    }
    /// The interface since NCCL 2.24.
    V9 {
        PropertiesV9, usize, Init, Listen, Connect, Accept, ISend<usize>, IRecv<usize>,
        TailV9, functions: 19,
    }
    /// The interface since NCCL 2.26.
    V10 {
        PropertiesV9, usize, InitV10, Listen, ConnectV10, Accept, ISendV10, IRecvV10,
        TailV9, functions: 19,
    }
    /// The interface since NCCL 2.28.
    V11 {
        PropertiesV11, usize, InitV11, ListenV11, ConnectV11, Accept, ISendV10, IRecvV10,
        TailV11<4>, functions: 21,
    }
    /// The interface since NCCL 2.30.
    V12 {
        PropertiesV12, usize, InitV11, ListenV11, ConnectV11, Accept, ISendV10, IRecvV10,
        TailV11<8>, functions: 21,
    }
}
