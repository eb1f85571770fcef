//! How functions of libibverbs report errors.

use std::ffi::c_int;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::ptr;

use invar_core::nic::NicError;

/// The number of an error of the NIC.
pub(crate) fn of(error: NicError) -> c_int {
    if error.errno == 0 { libc::EIO } else { error.errno }
}

/// Writes a line to stderr, where an error number alone tells too little. A stderr that takes nothing is no
/// reason to end the program.
pub(crate) fn tell(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "libibverbs: {line}");
}

pub(crate) fn set(errno: c_int) {
    // SAFETY: the address is that of this thread's own `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// Sets `errno` and returns null, for a function that returns an object.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set(errno);
    ptr::null_mut()
}

/// Sets `errno` and returns -1.
pub(crate) fn minus_one(errno: c_int) -> c_int {
    set(errno);
    -1
}

/// The result of a function that returns 0, or -1 and sets `errno`.
pub(crate) fn or_minus_one(result: Result<(), c_int>) -> c_int {
    result.map_or_else(minus_one, |()| 0)
}

/// The result of a function that returns 0 or an error number. Like rdma-core, it sets `errno` too.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set(errno);
            errno
        }
    }
}
