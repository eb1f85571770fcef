//! The registrations that NCCL holds. A registration contains the keys themselves, so the data path needs
//! no lookup.
//!
//! ```text
//! mhandle    63 … 32  lkey             31 … 0  rkey
//! ```

use std::ffi::c_void;
use std::ptr;

use invar::raw::Keys;

/// The local key, for our own work requests.
#[inline(always)]
pub(crate) fn lkey(mhandle: *mut c_void) -> u32 {
    (mhandle.addr() >> 32) as u32
}

/// The remote key, for the peer's work requests.
#[inline(always)]
pub(crate) fn rkey(mhandle: *mut c_void) -> u32 {
    mhandle.addr() as u32
}

/// Both keys of a registration.
pub(crate) fn keys(mhandle: *mut c_void) -> Keys {
    Keys { lkey: lkey(mhandle), rkey: rkey(mhandle) }
}

/// Makes the registration of two keys.
pub(crate) fn with_keys(keys: Keys) -> *mut c_void {
    let keys = u64::from(keys.lkey) << 32 | u64::from(keys.rkey);
    ptr::without_provenance_mut(keys as usize)
}
