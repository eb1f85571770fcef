//! The numbers by which NCCL holds requests.
//!
//! ```text
//! request    63 … 34  its token   33 … 32  zero           31 … 0  its comm's handle, with REQUEST
//! ```

use std::ffi::c_void;
use std::ptr;

/// Lowest bit of the token in a request.
const TOKEN_SHIFT: u32 = 34;

/// A bit that is set in a request and clear in a comm's handle. The profiler uses the bit below it.
const REQUEST: usize = 2;

/// Returns the low half of a comm's requests; the token is the upper half.
pub(crate) fn low_half(comm: *mut c_void) -> u32 {
    (comm.addr() | REQUEST) as u32
}

/// Makes the request of a token.
#[inline(always)]
pub(crate) fn with_token(token: u32, low_half: u32) -> *mut c_void {
    ptr::without_provenance_mut((token as usize) << TOKEN_SHIFT | low_half as usize)
}

#[inline(always)]
pub(crate) fn token(request: *mut c_void) -> u32 {
    (request.addr() >> TOKEN_SHIFT) as u32
}

/// Returns the comm's handle of a request.
pub(crate) fn comm(request: *mut c_void) -> *mut c_void {
    request.map_addr(|request| request as u32 as usize & !REQUEST)
}
