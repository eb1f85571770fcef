//! Connects by any version of the plugin interface.

use nccl_net_invar::tables::{
    ncclNetPlugin_v6 as v6, ncclNetPlugin_v7 as v7, ncclNetPlugin_v8 as v8,
    ncclNetPlugin_v10 as v10, ncclNetPlugin_v11 as v11, ncclNetPlugin_v12 as v12,
};

use super::rig::*;

/// Calls the `connect` of a version once.
pub(crate) fn connect_by(version: u32, handle: &mut [u8; HANDLE_BYTES]) -> Option<*mut c_void> {
    let (context, handle, none) = (init(), handle.as_mut_ptr().cast(), ptr::null_mut());
    let mut comm = ptr::dangling_mut();
    // SAFETY: The handle is valid, and `comm` has room for a comm.
    let code = unsafe {
        match version {
            6 => (v6.connect)(0, handle, &mut comm),
            7 => (v7.connect)(0, handle, &mut comm, none),
            8 => (v8.connect)(0, handle, &mut comm, none),
            9 => (net.connect)(0, handle, &mut comm, none),
            10 => (v10.connect)(0, ptr::null(), handle, &mut comm, none),
            11 => (v11.connect)(context, 0, handle, &mut comm, none),
            _ => (v12.connect)(context, 0, handle, &mut comm, none),
        }
    };
    assert_eq!(code, Code::SUCCESS);
    (!comm.is_null()).then_some(comm)
}
