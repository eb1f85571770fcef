//! The calls that NCCL makes for each message: each finds its comm and hands the call to its end.

use std::ffi::{c_int, c_void};

use crate::abi::Code;
use crate::comm::NetEnd;
use crate::handles;
use crate::outcome::{caught, misused};
use crate::profiler::{self, Message};

/// `isend` before v9.
pub(crate) unsafe extern "C" fn isend_int(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // A negative size becomes one that is too long.
    // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
        unsafe { end.irecv_int(n, data, sizes, tags, mhandles, request) }
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
        // SAFETY: the caller's promise.
        unsafe { end.irecv(n, data, sizes, tags, mhandles, request) }
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
    on_end(Function::IFlush, comm, |end| {
        // SAFETY: the caller's promise.
        unsafe { end.iflush(n, data, sizes, mhandles, request) }
    })
}

/// `test`.
pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> Code {
    let Some(slot) = handles::find_by_request(request) else {
        // SAFETY: the caller's promise.
        return unsafe { test_profiled(request, done, sizes) };
    };
    // SAFETY: the caller's promise; NCCL makes one call on a comm at a time, and does not close the
    // comm meanwhile.
    unsafe { slot.comm().end().test(request, done, sizes) }
}

/// Makes a call on the end of a comm.
#[inline(always)]
fn on_end(
    function: Function,
    comm: *mut c_void,
    call: impl FnOnce(&mut dyn NetEnd) -> Code,
) -> Code {
    let Some(slot) = handles::find(comm) else { return unknown(function, comm) };
    // SAFETY: NCCL makes one call on a comm at a time, and does not close the comm meanwhile.
    call(unsafe { slot.comm().end() })
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
    let (Code::SUCCESS, Some(slot)) = (code, handles::find(comm)) else { return code };
    caught(|| {
        // SAFETY: the caller's promise; as NCCL has it, there is no other call on the comm.
        unsafe {
            if !(*request).is_null() {
                profiler::go_on(comm, slot.comm());
                *request = profiler::start(*request, messages, slot.comm());
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
    if let Some(slot) = handles::find_by_request(plain) {
        // SAFETY: as in `start_events`.
        unsafe { profiler::go_on(handles::comm(plain), slot.comm()) };
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
