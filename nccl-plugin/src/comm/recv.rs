//! The receiving end.

use std::ffi::{c_int, c_void};

use invar::raw::{Flush, FlushBuf, RECVS_MAX, RecvBuf, RecvEnd, Usual};

use super::test::{Recvs, test};
use super::{Bytes, Calls, Erased, Held, MESSAGE_BYTES_MAX, call_failed, too_long, wrong_end};
use crate::abi::Code;
use crate::outcome::{caught, misused, null};
use crate::register::rkey;

/// What can be done with such an end.
pub(super) fn calls<E: RecvEnd>(_: &E) -> Calls {
    Calls {
        isend: not_isend,
        irecv_int: irecv::<E, c_int>,
        irecv: irecv::<E, usize>,
        iflush: iflush::<E>,
        test: test::<E, Recvs>,
    }
}

/// What is usual, up to the work requests.
unsafe extern "C" fn irecv<E: RecvEnd, S: Bytes>(
    end: Erased,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: the calls are those of `E`, and the caller's promise: n of each.
    unsafe {
        if n != 1 {
            return irecv_unusual::<E, S>(end, n, data, sizes, tags, mhandles, request);
        }
        let Some(Ok(buf)) = buf(0, data, sizes, tags, mhandles) else {
            return irecv_unusual::<E, S>(end, n, data, sizes, tags, mhandles, request);
        };
        if request.is_null() {
            return irecv_unusual::<E, S>(end, n, data, sizes, tags, mhandles, request);
        }
        match Held::<E>::of(end).end.fill_usual(&buf) {
            Usual::Done(()) => post_filled::<E>(end, request),
            _ => irecv_unusual::<E, S>(end, n, data, sizes, tags, mhandles, request),
        }
    }
}

/// Posts that.
#[inline(never)]
unsafe extern "C" fn post_filled<E: RecvEnd>(end: Erased, request: *mut *mut c_void) -> Code {
    // SAFETY: as in `irecv`, which calls this.
    unsafe {
        let held = Held::<E>::of(end);
        match held.end.post_filled() {
            Ok(started) => held.give(Some(started), request),
            Err(error) => call_failed(&held.end, error),
        }
    }
}

/// All of it.
#[inline(never)]
unsafe extern "C" fn irecv_unusual<E: RecvEnd, S: Bytes>(
    end: Erased,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    caught(|| {
        let mut bufs = [RecvBuf::default(); RECVS_MAX];
        let Some(bufs) = usize::try_from(n).ok().and_then(|n| bufs.get_mut(..n)) else {
            return misused(format_args!("irecv of {n} buffers: 1 to {RECVS_MAX} go")).0;
        };
        for (i, to) in bufs.iter_mut().enumerate() {
            // SAFETY: NCCL promises n of each.
            match unsafe { buf(i, data, sizes, tags, mhandles) } {
                Some(Ok(buf)) => *to = buf,
                Some(Err(size)) => return too_long("irecv", size),
                None => return null("irecv: memory, sizes, tags or registrations").0,
            }
        }
        if request.is_null() {
            return null("irecv: request").0;
        }
        // SAFETY: the calls are those of `E`.
        let held = unsafe { Held::<E>::of(end) };
        // SAFETY: NCCL promises what `RecvEnd` asks for.
        match unsafe { held.end.irecv(bufs) } {
            // SAFETY: room for a request, NCCL promises.
            Ok(started) => unsafe { held.give(started, request) },
            Err(error) => call_failed(&held.end, error),
        }
    })
}

/// Buffer number `i` of a receive; the error is a size that cannot be. `None` where one of the
/// pointers is null: each is looked at before it is read, one at a time, so that it is a branch
/// that is not taken.
///
/// # Safety
/// There are as many of each.
#[inline(always)]
unsafe fn buf<S: Bytes>(
    i: usize,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
) -> Option<Result<RecvBuf, usize>> {
    // SAFETY: the caller's promise.
    unsafe {
        let addr = read(i, data)?.addr() as u64;
        let size = read(i, sizes)?.bytes();
        let tag = read(i, tags)? as u32;
        let rkey = rkey(read(i, mhandles)?);
        if size > MESSAGE_BYTES_MAX {
            return Some(Err(size));
        }
        Some(Ok(RecvBuf { addr, len: size as u32, tag, rkey }))
    }
}

/// Number `i` of an array, unless that is null.
///
/// # Safety
/// Otherwise there are as many.
#[inline(always)]
unsafe fn read<T: Copy>(i: usize, array: *mut T) -> Option<T> {
    if array.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { *array.add(i) })
}

unsafe extern "C" fn iflush<E: RecvEnd>(
    end: Erased,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    caught(|| {
        if data.is_null() || sizes.is_null() || mhandles.is_null() || request.is_null() {
            return null("iflush: memory, sizes, registrations or request").0;
        }
        let mut bufs = [FlushBuf::default(); RECVS_MAX];
        let Some(bufs) = usize::try_from(n).ok().and_then(|n| bufs.get_mut(..n)) else {
            return misused(format_args!("iflush of {n} buffers: at most {RECVS_MAX} go")).0;
        };
        for (i, to) in bufs.iter_mut().enumerate() {
            // SAFETY: NCCL promises n of each.
            let (data, size, mhandle) = unsafe { (*data.add(i), *sizes.add(i), *mhandles.add(i)) };
            let Ok(len) = u32::try_from(size) else { return too_long("iflush", size.bytes()) };
            *to = FlushBuf { addr: data.addr() as u64, len, rkey: rkey(mhandle) };
        }
        // SAFETY: the calls are those of `E`.
        let held = unsafe { Held::<E>::of(end) };
        // SAFETY: NCCL promises what `RecvEnd` asks for.
        let started = match unsafe { held.end.iflush(bufs) } {
            Ok(Flush::NotNeeded) => None,
            Ok(Flush::Started(request)) => Some(request),
            // Null would mean that nothing is to be waited for.
            Ok(Flush::Busy) => return misused("iflush: too many requests are under way").0,
            Err(error) => return call_failed(&held.end, error),
        };
        // SAFETY: room for a request, NCCL promises.
        unsafe { held.give(started, request) }
    })
}

unsafe extern "C" fn not_isend(
    _: Erased,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: *mut c_void,
    _: *mut *mut c_void,
) -> Code {
    wrong_end("isend")
}
