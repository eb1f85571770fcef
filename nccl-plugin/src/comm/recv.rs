//! The receiving end.

use std::ffi::{c_int, c_void};

use invar::raw::{Flush, FlushBuf, RECVS_MAX, RecvBuf, RecvEnd, Usual};

use super::test::{Recvs, test, test_again};
use super::{
    Bytes, Calls, Erased, Held, IRecv, MESSAGE_BYTES_MAX, call_failed, too_long, wrong_end,
};
use crate::abi::Code;
use crate::outcome::{caught, misused, null};
use crate::register::rkey;

/// What can be done with such an end.
pub(super) fn calls<E: RecvEnd>(_: &E) -> Calls {
    Calls {
        isend: not_isend,
        irecv_int: IRecv { one: irecv_one::<E, _>, several: irecv::<E, _> },
        irecv: IRecv { one: irecv_one::<E, _>, several: irecv::<E, _> },
        iflush: iflush::<E>,
        test: test::<E, Recvs>,
        test_again: test_again::<E, Recvs>,
    }
}

/// What is usual of one buffer, up to the work requests.
unsafe extern "C" fn irecv_one<E: RecvEnd, S: Bytes>(
    end: Erased,
    request: *mut *mut c_void,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
) -> Code {
    // SAFETY: the calls are those of `E`, and the caller's promise.
    unsafe {
        // One at a time, so that each is a branch that is not taken.
        if let Some(addr) = first(data)
            && let Some(size) = first(sizes)
            && let Some(tag) = first(tags)
            && let Some(mhandle) = first(mhandles)
        {
            if request.is_null() {
                return irecv_one_unusual::<E, S>(end, request, data, sizes, tags, mhandles);
            }
            if size.bytes() > MESSAGE_BYTES_MAX {
                return irecv_one_unusual::<E, S>(end, request, data, sizes, tags, mhandles);
            }
            let held = Held::<E>::of(end);
            let filled = held.end.fill_usual(&buf(addr, size.bytes() as u32, tag, mhandle));
            if let Usual::Done(started) = filled {
                held.give(Some(started), request);
                return post_filled::<E>(end);
            }
        }
        irecv_one_unusual::<E, S>(end, request, data, sizes, tags, mhandles)
    }
}

/// The same of several buffers.
unsafe extern "C" fn irecv<E: RecvEnd, S: Bytes>(
    end: Erased,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    let is_null = data.is_null() || sizes.is_null() || tags.is_null() || mhandles.is_null();
    // SAFETY: as in `irecv_one`; n of each.
    unsafe {
        if !is_null && !request.is_null() {
            let held = Held::<E>::of(end);
            let filled = held.end.fill_group(n as usize, |i| {
                buf(*data.add(i), (*sizes.add(i)).len(), *tags.add(i), *mhandles.add(i))
            });
            if let Usual::Done(started) = filled {
                held.give(Some(started), request);
                return post_filled::<E>(end);
            }
        }
        irecv_unusual::<E, S>(end, n, data, sizes, tags, mhandles, request)
    }
}

/// The first of an array, unless that is null.
///
/// # Safety
/// Otherwise there is one.
#[inline(always)]
unsafe fn first<T: Copy>(array: *mut T) -> Option<T> {
    // SAFETY: the caller's promise.
    unsafe { array.as_ref() }.copied()
}

/// Posts what is filled.
#[inline(never)]
unsafe extern "C" fn post_filled<E: RecvEnd>(end: Erased) -> Code {
    // SAFETY: as in `irecv_one`, which calls this.
    unsafe {
        let held = Held::<E>::of(end);
        let posted = held.end.post_filled();
        held.posted(posted)
    }
}

/// All of it, of one buffer.
#[inline(never)]
unsafe extern "C" fn irecv_one_unusual<E: RecvEnd, S: Bytes>(
    end: Erased,
    request: *mut *mut c_void,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
) -> Code {
    // SAFETY: as in `irecv_one`, which calls this.
    unsafe { irecv_unusual::<E, S>(end, 1, data, sizes, tags, mhandles, request) }
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
        if data.is_null() || sizes.is_null() || tags.is_null() || mhandles.is_null() {
            return null("irecv: memory, sizes, tags or registrations").0;
        }
        for (i, to) in bufs.iter_mut().enumerate() {
            // SAFETY: NCCL promises n of each.
            let (size, tag) = unsafe { ((*sizes.add(i)).bytes(), *tags.add(i)) };
            if size > MESSAGE_BYTES_MAX {
                return too_long("irecv", size);
            }
            // SAFETY: as above.
            *to = unsafe { buf(*data.add(i), size as u32, tag, *mhandles.add(i)) };
        }
        if request.is_null() {
            return null("irecv: request").0;
        }
        // SAFETY: the calls are those of `E`.
        let held = unsafe { Held::<E>::whole(end) };
        // SAFETY: NCCL promises what `RecvEnd` asks for.
        match unsafe { held.end.irecv(bufs) } {
            // SAFETY: room for a request, NCCL promises.
            Ok(started) => unsafe { held.give(started, request) },
            Err(error) => call_failed(held, error),
        }
    })
}

#[inline(always)]
fn buf(data: *mut c_void, len: u32, tag: c_int, mhandle: *mut c_void) -> RecvBuf {
    RecvBuf { addr: data.addr() as u64, len, tag: tag as u32, rkey: rkey(mhandle) }
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
        let held = unsafe { Held::<E>::whole(end) };
        // SAFETY: NCCL promises what `RecvEnd` asks for.
        let started = match unsafe { held.end.iflush(bufs) } {
            Ok(Flush::NotNeeded) => None,
            Ok(Flush::Started(request)) => Some(request),
            // Null would mean that nothing is to be waited for.
            Ok(Flush::Busy) => return misused("iflush: too many requests are under way").0,
            Err(error) => return call_failed(held, error),
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
