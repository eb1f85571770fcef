//! `ncclCollNet_v*_t`: the function table of collNet, in each version.
//!
//! Differences between the versions:
//!
//! - v8 adds `iallgather` and `ireducescatter`, and registers more than 2 GiB at once.
//! - v9 counts elements and parts beyond 2^31, and adds `makeVDevice`.
//! - v11 has a context for each communicator, and `finalize` ends the context.
//! - All versions have the device properties of their network.

use std::ffi::{c_char, c_int, c_void};

use static_assertions::const_assert_eq;

use super::{
    Code, Logger, MakeVDevice, PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9,
    PropertiesV11, PropertiesV12, V6, V7, V8, V9, V10, V11, V12,
};

/// The types that differ between the versions of collNet.
pub trait CollNetVersion {
    /// Description of a device.
    type Properties;
    /// Type of the number of bytes to register.
    type RegBytes;
    /// Type of `init`, which starts the plugin.
    type Init;
    /// Type of `listen`.
    type Listen;
    /// Type of the number of elements of an all-reduce.
    type Count;
    /// The collectives on blocks, which only later versions have.
    type Blocks;
    /// The functions of this version behind those that all versions have.
    type Tail;
}

/// A function table; NCCL looks it up by the symbol `ncclCollNetPlugin_v` plus the version number.
#[repr(C)]
pub struct CollNet<V: CollNetVersion> {
    /// Name of the network, for logs.
    pub name: *const c_char,
    /// Starts the plugin; NCCL calls this function before all others.
    pub init: V::Init,
    /// Writes the number of devices. 0 says that there is no collNet.
    pub devices: unsafe extern "C" fn(*mut c_int) -> Code,
    /// Describes a device.
    pub get_properties: unsafe extern "C" fn(c_int, *mut V::Properties) -> Code,
    /// Creates a listening comm and writes its handle.
    pub listen: V::Listen,
    /// Makes a collective comm and waits for all ranks. Arguments: the handles of all ranks, number of
    /// ranks, this rank, this rank's listening comm, collective comm.
    pub connect:
        unsafe extern "C" fn(*mut *mut c_void, c_int, c_int, *mut c_void, *mut *mut c_void) -> Code,
    /// Whether a type can be reduced. Arguments: type, reduction, answer.
    pub reduce_support: unsafe extern "C" fn(c_int, c_int, *mut c_int) -> Code,
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
    /// Starts an all-reduce. Arguments: comm, input, output, elements, type, reduction, registrations of
    /// input and output, request.
    pub iallreduce: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        *mut c_void,
        V::Count,
        c_int,
        c_int,
        *mut c_void,
        *mut c_void,
        *mut *mut c_void,
    ) -> Code,
    /// `iallgather` and `ireducescatter`.
    pub blocks: V::Blocks,
    /// Makes received GPU memory visible to the GPU. Arguments: comm, memory, bytes, registration,
    /// request.
    pub iflush: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        c_int,
        *mut c_void,
        *mut *mut c_void,
    ) -> Code,
    /// Tests a request. Arguments: request, whether the request is done, bytes of its output.
    pub test: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> Code,
    /// Closes a collective comm.
    pub close_coll: unsafe extern "C" fn(*mut c_void) -> Code,
    /// Closes a listening comm.
    pub close_listen: unsafe extern "C" fn(*mut c_void) -> Code,
    /// The functions that only later versions have.
    pub tail: V::Tail,
}

// SAFETY: The table holds only function pointers and a string of static lifetime.
unsafe impl<V: CollNetVersion> Sync for CollNet<V> {}

/// `ncclNetSGE_v*_t`: a part of the memory of all ranks' blocks.
pub trait Sge: Copy {
    /// Registration, address and bytes of the part.
    fn parts(&self) -> (*mut c_void, *mut c_void, usize);
}

/// `ncclNetSGE_v8_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SgeV8 {
    /// Registration of the memory.
    pub mhandle: *mut c_void,
    /// Address of the part.
    pub address: *mut c_void,
    /// Length of the part in bytes.
    pub size: u32,
}

/// `ncclNetSGE_v9_t` and its later versions.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SgeV9 {
    /// Registration of the memory.
    pub mhandle: *mut c_void,
    /// Address of the part.
    pub address: *mut c_void,
    /// Length of the part in bytes.
    pub size: usize,
}

impl Sge for SgeV8 {
    fn parts(&self) -> (*mut c_void, *mut c_void, usize) {
        (self.mhandle, self.address, self.size as usize)
    }
}

impl Sge for SgeV9 {
    fn parts(&self) -> (*mut c_void, *mut c_void, usize) {
        (self.mhandle, self.address, self.size)
    }
}

/// The collectives on blocks. Each rank has a block of the same length; a call covers a window of all
/// blocks, one behind the other.
#[repr(C)]
pub struct Blocks<S> {
    /// Starts an all-gather. Arguments: comm, this rank's bytes in the window, number of parts of the
    /// window, parts, bytes of a block, offset and bytes of the window, registration of this rank's
    /// bytes, request.
    pub iallgather: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        c_int,
        *mut S,
        usize,
        usize,
        usize,
        *mut c_void,
        *mut *mut c_void,
    ) -> Code,
    /// Starts a reduce-scatter. Arguments: comm, number of parts of the window, parts, this rank's bytes
    /// in the window, bytes of a block, offset and bytes of the window, type, reduction, registration of
    /// this rank's bytes, request.
    pub ireducescatter: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut S,
        *mut c_void,
        usize,
        usize,
        usize,
        c_int,
        c_int,
        *mut c_void,
        *mut *mut c_void,
    ) -> Code,
}

/// The functions behind the common ones since v11.
#[repr(C)]
pub struct FinalTail<const DEVS_MAX: usize> {
    /// Makes one device of several.
    pub make_v_device: MakeVDevice<DEVS_MAX>,
    /// Ends a context.
    pub finalize: unsafe extern "C" fn(*mut c_void) -> Code,
}

type Init = unsafe extern "C" fn(Option<Logger>) -> Code;
type InitV11 = unsafe extern "C" fn(*mut *mut c_void, u64, Option<Logger>) -> Code;
/// Arguments: device, handle, listening comm.
type Listen = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> Code;
/// Arguments: context, device, handle, listening comm.
type ListenV11 = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> Code;

macro_rules! versions {
    ($($name:ident {
        $properties:ty, $reg_bytes:ty, $init:ty, $listen:ty, $count:ty, $blocks:ty, $tail:ty,
        functions: $functions:literal $(,)?
    })+) => { $(
        impl CollNetVersion for $name {
            type Properties = $properties;
            type RegBytes = $reg_bytes;
            type Init = $init;
            type Listen = $listen;
            type Count = $count;
            type Blocks = $blocks;
            type Tail = $tail;
        }

        const_assert_eq!(size_of::<CollNet<$name>>(), (1 + $functions) * size_of::<usize>());
    )+ };
}

versions! {
    V6 { PropertiesV6, c_int, Init, Listen, c_int, (), (), functions: 14 }
    V7 { PropertiesV7, c_int, Init, Listen, c_int, (), (), functions: 14 }
    V8 { PropertiesV8, usize, Init, Listen, c_int, Blocks<SgeV8>, (), functions: 16 }
    V9 { PropertiesV9, usize, Init, Listen, usize, Blocks<SgeV9>, MakeVDevice<4>, functions: 17 }
    V10 { PropertiesV9, usize, Init, Listen, usize, Blocks<SgeV9>, MakeVDevice<4>, functions: 17 }
    V11 {
        PropertiesV11, usize, InitV11, ListenV11, usize, Blocks<SgeV9>, FinalTail<4>,
        functions: 18,
    }
    V12 {
        PropertiesV12, usize, InitV11, ListenV11, usize, Blocks<SgeV9>, FinalTail<8>,
        functions: 18,
    }
}
