//! The calls that NCCL makes for each message: each finds its comm and passes the call to the comm's
//! end.

use std::ffi::{c_int, c_void};
use std::hint::cold_path;

use crate::abi::Code;
use crate::comm::{Bytes, NetEnd, null_array};
use crate::handles;
use crate::outcome::{caught, misused};
use crate::profiler::{self, ProfiledMessage};
use crate::request;

/// `isend` before v9.
pub(crate) unsafe extern "C" fn isend_int(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // A negative size becomes a huge one, which `isend` refuses as too long.
    // SAFETY: The caller upholds this function's safety contract.
    unsafe { isend(comm, data, size as usize, tag, mhandle, request) }
}

/// `isend` of v9.
pub(crate) unsafe extern "C" fn isend(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    on_end(Function::ISend, comm, |end| {
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { end.isend(data, size, tag, mhandle, request) }
    })
}

/// `isend` since v10.
pub(crate) unsafe extern "C" fn isend_v10(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    step: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    unsafe {
        if !step.is_null() && profiler::is_wanted() {
            return isend_profiled(comm, data, size, tag, mhandle, step, request);
        }
        isend(comm, data, size, tag, mhandle, request)
    }
}

/// `irecv` before v9.
pub(crate) unsafe extern "C" fn irecv_int(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    on_end(Function::IRecv, comm, |end| {
        // SAFETY: The caller upholds this function's safety contract.
        unsafe {
            if n == 1 {
                return irecv_one(end, data, sizes, tags, mhandles, request);
            }
            end.irecv_int(n, data, sizes, tags, mhandles, request)
        }
    })
}

/// `irecv` of v9.
pub(crate) unsafe extern "C" fn irecv(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    on_end(Function::IRecv, comm, |end| {
        // SAFETY: The caller upholds this function's safety contract.
        unsafe {
            if n == 1 {
                return irecv_one(end, data, sizes, tags, mhandles, request);
            }
            end.irecv(n, data, sizes, tags, mhandles, request)
        }
    })
}

/// `irecv` since v10.
pub(crate) unsafe extern "C" fn irecv_v10(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    steps: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract. NCCL names a step for all buffers of a
    // receive or for none.
    unsafe {
        if !steps.is_null() && !(*steps).is_null() && profiler::is_wanted() {
            return irecv_profiled(comm, n, data, sizes, tags, mhandles, steps, request);
        }
        irecv(comm, n, data, sizes, tags, mhandles, request)
    }
}

pub(crate) unsafe extern "C" fn iflush(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    on_end(Function::IFlush, comm, |end| {
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { end.iflush(n, data, sizes, mhandles, request) }
    })
}

pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> Code {
    let Some(slot) = handles::find_by_request(request) else {
        // SAFETY: The caller upholds this function's safety contract.
        return unsafe { test_profiled(request, done, sizes) };
    };
    // SAFETY: The caller upholds this function's safety contract. NCCL makes one call on a comm at a
    // time and does not close the comm during a call.
    unsafe { slot.comm().test(request, done, sizes) }
}

/// Passes a receive of one buffer to its end.
///
/// # Safety
/// Each array is null or has one entry. NCCL's contract of `irecv` holds.
#[inline(always)]
unsafe fn irecv_one<S: Bytes>(
    end: &dyn NetEnd,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    unsafe {
        let Some(data) = only(data) else { return null_array() };
        let Some(size) = only(sizes) else { return null_array() };
        let Some(tag) = only(tags) else { return null_array() };
        let Some(mhandle) = only(mhandles) else { return null_array() };
        end.irecv_one(request, data, size.bytes(), tag, mhandle)
    }
}

/// The only entry of an array, or `None` if the array is null. To check one array and read it before the
/// next takes 7 instructions less than to check all arrays first.
///
/// # Safety
/// The array is null or has one entry.
#[inline(always)]
unsafe fn only<T: Copy>(array: *const T) -> Option<T> {
    if array.is_null() {
        cold_path();
        return None;
    }
    // SAFETY: The caller upholds this function's safety contract.
    Some(unsafe { *array })
}

/// Finds the comm and makes a call on its end.
#[inline(always)]
fn on_end(function: Function, comm: *mut c_void, call: impl FnOnce(&dyn NetEnd) -> Code) -> Code {
    let Some(slot) = handles::find(comm) else { return unknown(function, comm) };
    // SAFETY: NCCL makes one call on a comm at a time and does not close the comm during a call.
    call(unsafe { slot.comm().end() })
}

/// Starts a send and its profiler events.
#[cold]
unsafe extern "C" fn isend_profiled(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    step: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    let code = unsafe { isend(comm, data, size, tag, mhandle, request) };
    // SAFETY: `isend` succeeds only on an open comm and with a request pointer that is not null.
    unsafe { start_events(code, comm, [ProfiledMessage { step, length: size }], request) }
}

/// Starts a receive and its profiler events.
#[cold]
unsafe extern "C" fn irecv_profiled(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    steps: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    let code = unsafe { irecv(comm, n, data, sizes, tags, mhandles, request) };
    // SAFETY: `irecv` succeeds only with a valid `n`, and NCCL promises `n` entries in each array.
    let message = |i| unsafe { ProfiledMessage { step: *steps.add(i), length: *sizes.add(i) } };
    // SAFETY: `irecv` succeeds only on an open comm and with a request pointer that is not null.
    unsafe { start_events(code, comm, (0..n as usize).map(message), request) }
}

/// # Safety
/// If `code` is success, `comm` is open and `request` points to a request.
unsafe fn start_events(
    code: Code,
    comm: *mut c_void,
    messages: impl IntoIterator<Item = ProfiledMessage>,
    request: *mut *mut c_void,
) -> Code {
    let (Code::SUCCESS, Some(slot)) = (code, handles::find(comm)) else { return code };
    // SAFETY: The caller promises that `request` points to a request. NCCL makes no other call on the comm.
    if unsafe { (*request).is_null() || slot.comm().take_skip() } {
        return code;
    }
    caught(|| {
        // SAFETY: The caller promises that `request` points to a request. NCCL makes no other call on
        // the comm.
        unsafe {
            profiler::go_on(comm, slot.comm());
            *request = profiler::start(*request, messages, slot.comm());
        }
        Code::SUCCESS
    })
}

/// Tests a request that has profiler events; reports a misuse if the request is invalid.
#[cold]
#[inline(never)]
unsafe extern "C" fn test_profiled(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> Code {
    if !profiler::is_marked(request) {
        return unknown(Function::Test, request);
    }
    let plain = profiler::unmarked(request);
    if let Some(slot) = handles::find_by_request(plain) {
        // SAFETY: NCCL makes no other call on the comm meanwhile.
        unsafe { profiler::go_on(request::comm(plain), slot.comm()) };
    }
    // SAFETY: The caller upholds this function's safety contract.
    let code = unsafe { test(plain, done, sizes) };
    // SAFETY: `test` succeeds only if `done` points to a flag.
    if code != Code::SUCCESS || unsafe { *done } != 0 {
        return caught(|| {
            profiler::stop(request);
            code
        });
    }
    code
}

/// The function that NCCL called, for messages.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
enum Function {
    ISend,
    IRecv,
    IFlush,
    Test,
}

/// Reports a call on an unknown comm or request. As a C function it never unwinds, so its callers need
/// no code for unwinding.
#[cold]
#[inline(never)]
extern "C" fn unknown(function: Function, what: *mut c_void) -> Code {
    caught(|| {
        misused(format_args!(
            "{function:?}: {what:p} is no comm, or no request of one, that is open"
        ))
        .0
    })
}
