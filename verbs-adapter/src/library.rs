//! libibverbs, opened at run time: a host without the library still runs on other NICs.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::sys::provider::{ibv_ah, ibv_comp_channel};
use crate::sys::*;

/// Symbol versions of the functions that libibverbs has had from the beginning, the newest first.
const BASE_VERSIONS: [&CStr; 2] = [c"IBVERBS_1.1", c"IBVERBS_1.0"];

/// The reason why libibverbs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// libibverbs is not installed or cannot be loaded; the field holds the loader's message.
    #[error("no libibverbs ({0})")]
    Absent(String),
    /// libibverbs lacks a function that all versions of rdma-core have.
    #[error("libibverbs.so.1 has no {0}: not rdma-core's?")]
    Incomplete(&'static str),
}

pub(crate) type DestroyCompChannel = unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int;
pub(crate) type GetCqEvent =
    unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
pub(crate) type AckCqEvents = unsafe extern "C" fn(*mut ibv_cq, c_uint);

macro_rules! functions {
    (
        required { $($name:ident: $symbol:literal, fn($($arg:ty),*) $(-> $ret:ty)?;)+ }
        optional { $($opt:ident: $opt_symbol:literal @ $version:literal,
            fn($($opt_arg:ty),*) $(-> $opt_ret:ty)?;)+ }
    ) => {
        /// The functions of libibverbs. Functions of later versions, and functions that transfers do not
        /// need, are optional. Where an optional function is missing, its feature is missing too.
        pub(crate) struct Library {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)+
            $(pub(crate) $opt: Option<unsafe extern "C" fn($($opt_arg),*) $(-> $opt_ret)?>,)+
        }

        impl Library {
            fn load() -> Result<Library, LibraryError> {
                let handle = open(c"libibverbs.so.1")?;
                $(
                    let found = BASE_VERSIONS.iter().find_map(|v| versioned(handle, $symbol, v));
                    let found = found.or_else(|| unversioned(handle, $symbol));
                    let missing = const { name($symbol) };
                    let $name = found.ok_or(LibraryError::Incomplete(missing))?;
                )+
                $(
                    let found = versioned(handle, $opt_symbol, $version);
                    let $opt = found.or_else(|| unversioned(handle, $opt_symbol));
                )+
                // SAFETY: The symbols have the types with which verbs.h declares them.
                let library = unsafe {
                    Library {
                        $($name: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                        >($name),)+
                        $($opt: std::mem::transmute::<
                            Option<std::ptr::NonNull<c_void>>,
                            Option<unsafe extern "C" fn($($opt_arg),*) $(-> $opt_ret)?>,
                        >($opt.and_then(std::ptr::NonNull::new)),)+
                    }
                };
                Ok(library)
            }
        }
    };
}

functions! {
    required {
        get_device_list: c"ibv_get_device_list", fn(*mut c_int) -> *mut *mut ibv_device;
        free_device_list: c"ibv_free_device_list", fn(*mut *mut ibv_device);
        get_device_name: c"ibv_get_device_name", fn(*mut ibv_device) -> *const c_char;
        open_device: c"ibv_open_device", fn(*mut ibv_device) -> *mut ibv_context;
        close_device: c"ibv_close_device", fn(*mut ibv_context) -> c_int;
        query_device: c"ibv_query_device", fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        query_port: c"ibv_query_port", fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        query_gid: c"ibv_query_gid", fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        alloc_pd: c"ibv_alloc_pd", fn(*mut ibv_context) -> *mut ibv_pd;
        dealloc_pd: c"ibv_dealloc_pd", fn(*mut ibv_pd) -> c_int;
        reg_mr: c"ibv_reg_mr", fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        dereg_mr: c"ibv_dereg_mr", fn(*mut ibv_mr) -> c_int;
        create_cq: c"ibv_create_cq",
            fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        destroy_cq: c"ibv_destroy_cq", fn(*mut ibv_cq) -> c_int;
        create_qp: c"ibv_create_qp", fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        modify_qp: c"ibv_modify_qp", fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        destroy_qp: c"ibv_destroy_qp", fn(*mut ibv_qp) -> c_int;
    }
    optional {
        get_async_event: c"ibv_get_async_event" @ c"IBVERBS_1.1",
            fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ack_async_event: c"ibv_ack_async_event" @ c"IBVERBS_1.1", fn(*mut ibv_async_event);
        event_type_str: c"ibv_event_type_str" @ c"IBVERBS_1.1", fn(u32) -> *const c_char;
        create_comp_channel: c"ibv_create_comp_channel" @ c"IBVERBS_1.0",
            fn(*mut ibv_context) -> *mut ibv_comp_channel;
        destroy_comp_channel: c"ibv_destroy_comp_channel" @ c"IBVERBS_1.0",
            fn(*mut ibv_comp_channel) -> c_int;
        get_cq_event: c"ibv_get_cq_event" @ c"IBVERBS_1.1",
            fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ack_cq_events: c"ibv_ack_cq_events" @ c"IBVERBS_1.1", fn(*mut ibv_cq, c_uint);
        create_ah: c"ibv_create_ah" @ c"IBVERBS_1.1",
            fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        destroy_ah: c"ibv_destroy_ah" @ c"IBVERBS_1.1", fn(*mut ibv_ah) -> c_int;
        fork_init: c"ibv_fork_init" @ c"IBVERBS_1.1", fn() -> c_int;
        query_qp: c"ibv_query_qp" @ c"IBVERBS_1.1",
            fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        reg_mr_iova2: c"ibv_reg_mr_iova2" @ c"IBVERBS_1.8",
            fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        query_ece: c"ibv_query_ece" @ c"IBVERBS_1.10", fn(*mut ibv_qp, *mut ibv_ece) -> c_int;
        set_ece: c"ibv_set_ece" @ c"IBVERBS_1.10", fn(*mut ibv_qp, *mut ibv_ece) -> c_int;
        query_gid_ex: c"_ibv_query_gid_ex" @ c"IBVERBS_1.11",
            fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        query_gid_table: c"_ibv_query_gid_table" @ c"IBVERBS_1.11",
            fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
        reg_dmabuf_mr: c"ibv_reg_dmabuf_mr" @ c"IBVERBS_1.12",
            fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        query_port_speed: c"ibv_query_port_speed" @ c"IBVERBS_1.16",
            fn(*mut ibv_context, u32, *mut u64) -> c_int;
    }
}

impl Library {
    /// Returns the library, loaded at the first call and never unloaded, because drivers do not support
    /// unloading.
    pub(crate) fn get() -> Result<&'static Library, LibraryError> {
        static LIBRARY: OnceLock<Result<Library, LibraryError>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| {
            let library = Library::load()?;
            Ok(library.ready_for_forks())
        });
        library.as_ref().map_err(Clone::clone)
    }

    /// Prepares this process to fork while memory is registered.
    pub(crate) fn ready_for_forks(self) -> Library {
        let Some(fork_init) = self.fork_init else { return self };
        // SAFETY: The function has no arguments, and the call comes before any registration, as
        // required. It fails only where forks need no preparation or none is possible.
        let errno = unsafe { fork_init() };
        if errno != 0 {
            log::debug!("ibv_fork_init: {}", std::io::Error::from_raw_os_error(errno));
        }
        self
    }
}

fn open(file: &CStr) -> Result<*mut c_void, LibraryError> {
    // SAFETY: The string ends in NUL. The constructors of rdma-core's library are trusted.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: The loader's string stays valid until this thread's next call of the loader.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() { c"the loader gives no reason" } else { CStr::from_ptr(text) }
    };
    Err(LibraryError::Absent(text.to_string_lossy().into_owned()))
}

fn versioned(handle: *mut c_void, symbol: &CStr, version: &CStr) -> Option<*mut c_void> {
    // SAFETY: `dlopen` returned the handle, and the strings end in NUL.
    let found = unsafe { libc::dlvsym(handle, symbol.as_ptr(), version.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn unversioned(handle: *mut c_void, symbol: &CStr) -> Option<*mut c_void> {
    // SAFETY: `dlopen` returned the handle, and the string ends in NUL.
    let found = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
    (!found.is_null()).then_some(found)
}

const fn name(symbol: &'static CStr) -> &'static str {
    match symbol.to_str() {
        Ok(name) => name,
        Err(_) => panic!("symbols are ASCII"),
    }
}
