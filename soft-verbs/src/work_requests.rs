//! Parts that posts of sends and of receives share.

use std::ffi::c_int;
use std::slice;

use invar_core::nic::Sge;
use invar_verbs::sys::ibv_sge;

use crate::errno;

/// Names the first request that was not posted.
pub(crate) fn name_refused<T>(posted: Result<(), c_int>, wr: *mut T, bad_wr: *mut *mut T) -> c_int {
    if posted.is_err() && !bad_wr.is_null() {
        // SAFETY: the caller gives a place for the pointer.
        unsafe { bad_wr.write(wr) };
    }
    errno::status(posted)
}

/// The buffers of a request.
///
/// # Safety
/// `list` has `count` buffers.
pub(crate) unsafe fn buffers<'a>(
    list: *mut ibv_sge,
    count: c_int,
    most: u32,
) -> Result<&'a [Sge], c_int> {
    match u32::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= most => {
            // SAFETY: the caller vouches for the list. Core's `Sge` has the layout of `ibv_sge`, which
            // the adapter's `sys/tests.rs` checks against the header.
            Ok(unsafe { slice::from_raw_parts(list.cast::<Sge>(), count as usize) })
        }
        _ => Err(libc::EINVAL),
    }
}
