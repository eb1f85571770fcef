//! The calls that NCCL makes for each message: finds the comm, and goes on where the call is
//! compiled for its NIC, without coming back. Up to where a call turns out to be unusual, nothing
//! catches a panic: it ends the process at the border to C.

use std::ffi::{c_int, c_void};

use crate::abi::Code;
use crate::comm::{Bytes, Comm};
use crate::outcome::{caught, misused};
use crate::place;
use crate::profiler::{self, Message};

/// `isend` before v10, of sizes as the version counts them.
pub(crate) unsafe extern "C" fn isend<S: Bytes>(
    comm: *mut c_void,
    data: *mut c_void,
    size: S,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    match place::find(comm) {
        // SAFETY: NCCL does not close a comm during a call on it, and promises the arguments.
        Some(place) => unsafe {
            (place.comm().calls.isend)(place.comm().end, data, size.bytes(), tag, mhandle, request)
        },
        None => unknown(Function::ISend, comm),
    }
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
    // SAFETY: the caller's promise.
    unsafe {
        if !step.is_null() && profiler::is_wanted() {
            return isend_profiled(comm, data, size, tag, mhandle, step, request);
        }
        isend(comm, data, size, tag, mhandle, request)
    }
}

/// `irecv` before v10, of sizes as the version counts them.
pub(crate) unsafe extern "C" fn irecv<S: Bytes>(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    if n != 1 {
        // SAFETY: the caller's promise.
        return unsafe { irecv_several(comm, n, data, sizes, tags, mhandles, request) };
    }
    match place::find(comm) {
        // SAFETY: as in `isend`; one of each.
        Some(place) => unsafe {
            let Comm { calls, end, .. } = place.comm();
            (S::irecv(calls).one)(*end, request, data, sizes, tags, mhandles)
        },
        None => unknown(Function::IRecv, comm),
    }
}

/// The same of any number of buffers.
#[inline(never)]
unsafe extern "C" fn irecv_several<S: Bytes>(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    match place::find(comm) {
        // SAFETY: as in `isend`; n of each.
        Some(place) => unsafe {
            let Comm { calls, end, .. } = place.comm();
            (S::irecv(calls).several)(*end, n, data, sizes, tags, mhandles, request)
        },
        None => unknown(Function::IRecv, comm),
    }
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
    // SAFETY: the caller's promise. It names a step for all buffers of a receive, or for none.
    unsafe {
        if !steps.is_null() && !(*steps).is_null() && profiler::is_wanted() {
            return irecv_profiled(comm, n, data, sizes, tags, mhandles, steps, request);
        }
        irecv(comm, n, data, sizes, tags, mhandles, request)
    }
}

/// `iflush`.
pub(crate) unsafe extern "C" fn iflush(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    match place::find(comm) {
        // SAFETY: as in `isend`.
        Some(place) => unsafe {
            (place.comm().calls.iflush)(place.comm().end, n, data, sizes, mhandles, request)
        },
        None => unknown(Function::IFlush, comm),
    }
}

/// `test`.
pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> Code {
    match place::find_by_request(request) {
        // SAFETY: as in `isend`.
        Some(place) => unsafe { (place.test())(request, done, sizes, place.comm().end) },
        // SAFETY: the caller's promise.
        None => unsafe { test_profiled(request, done, sizes) },
    }
}

/// A send of which a profiler is told.
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
    // SAFETY: the caller's promise.
    let code = unsafe { isend(comm, data, size, tag, mhandle, request) };
    // SAFETY: as above; it succeeds only with room for a request.
    unsafe { start_events(code, comm, [Message { step, length: size }], request) }
}

/// A receive of which a profiler is told.
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
    // SAFETY: the caller's promise.
    let code = unsafe { irecv(comm, n, data, sizes, tags, mhandles, request) };
    // SAFETY: it succeeds only with a number of buffers that can be, and NCCL promises n of each.
    let message = |i| unsafe { Message { step: *steps.add(i), length: *sizes.add(i) } };
    // SAFETY: as in `isend_profiled`.
    unsafe { start_events(code, comm, (0..n as usize).map(message), request) }
}

/// # Safety
/// If `code` is success, `comm` is open and `request` points to a request.
unsafe fn start_events(
    code: Code,
    comm: *mut c_void,
    messages: impl IntoIterator<Item = Message>,
    request: *mut *mut c_void,
) -> Code {
    let (Code::SUCCESS, Some(place)) = (code, place::find(comm)) else { return code };
    caught(|| {
        // SAFETY: the caller's promise; as NCCL has it, there is no other call on the comm.
        unsafe {
            if !(*request).is_null() {
                profiler::go_on(comm, place.comm());
                *request = profiler::start(*request, messages, place.comm());
            }
        }
        Code::SUCCESS
    })
}

/// Of a request that has events, if it is one at all.
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
    if let Some(place) = place::find_by_request(plain) {
        // SAFETY: as in `start_events`.
        unsafe { profiler::go_on(place::comm(plain), place.comm()) };
    }
    // SAFETY: the caller's promise.
    let code = unsafe { test(plain, done, sizes) };
    // SAFETY: it succeeds only where `done` points to something.
    if code != Code::SUCCESS || unsafe { *done } != 0 {
        return caught(|| {
            profiler::stop(request);
            code
        });
    }
    code
}

/// What was called.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
enum Function {
    ISend,
    IRecv,
    IFlush,
    Test,
}

/// A call on what NCCL does not have of us. A C function, since those do not unwind: who calls it
/// need not be prepared for that.
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
