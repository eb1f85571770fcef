//! The sending end.

use std::ffi::{c_int, c_void};

use invar::raw::{Matched, SendBuf, SendEnd, Usual};

use super::test::{Sends, test, test_again};
use super::{Calls, Erased, Held, IRecv, MESSAGE_BYTES_MAX, call_failed, too_long, wrong_end};
use crate::abi::Code;
use crate::outcome::{caught, null};
use crate::register::lkey;

/// What can be done with such an end.
pub(super) fn calls<E: SendEnd>(_: &E) -> Calls {
    Calls {
        isend: isend::<E>,
        irecv_int: IRecv { one: not_irecv_one, several: not_irecv },
        irecv: IRecv { one: not_irecv_one, several: not_irecv },
        iflush: not_iflush,
        test: test::<E, Sends>,
        test_again: test_again::<E, Sends>,
    }
}

/// What is usual, up to the work request.
unsafe extern "C" fn isend<E: SendEnd>(
    end: Erased,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: the calls are those of `E`, and the caller's promise.
    unsafe {
        // One at a time, so that each is a branch that is not taken.
        if mhandle.is_null() {
            return isend_unusual::<E>(end, data, size, tag, mhandle, request);
        }
        if request.is_null() {
            return isend_unusual::<E>(end, data, size, tag, mhandle, request);
        }
        let held = Held::<E>::of(end);
        let (addr, len) = (data.addr() as u64, size as u64);
        match held.end.match_usual(addr, len, lkey(mhandle), tag as u32) {
            Usual::NotYet => held.give(None, request),
            Usual::Done(Matched::Alone(started)) => {
                held.give(Some(started), request);
                post_matched::<E>(end)
            }
            Usual::Done(Matched::NewGroup) => {
                isend_new_group::<E>(end, data, size, tag, mhandle, request)
            }
            Usual::Done(Matched::Group) => {
                isend_in_group::<E>(end, data, size, tag, mhandle, request)
            }
            Usual::Unusual => isend_unusual::<E>(end, data, size, tag, mhandle, request),
        }
    }
}

/// Posts that.
#[inline(never)]
unsafe extern "C" fn post_matched<E: SendEnd>(end: Erased) -> Code {
    // SAFETY: as in `isend`, which calls this.
    unsafe {
        let held = Held::<E>::of(end);
        let posted = held.end.post_matched();
        held.posted(posted)
    }
}

/// Of a group, its first message.
#[inline(never)]
unsafe extern "C" fn isend_new_group<E: SendEnd>(
    end: Erased,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: as in `isend`, which calls this.
    unsafe {
        let held = Held::<E>::of(end);
        match held.end.begin_group() {
            Usual::Done(()) => isend_in_group::<E>(end, data, size, tag, mhandle, request),
            Usual::NotYet => held.give(None, request),
            Usual::Unusual => isend_unusual::<E>(end, data, size, tag, mhandle, request),
        }
    }
}

/// Posts a group.
#[inline(never)]
unsafe extern "C" fn post_group<E: SendEnd>(end: Erased) -> Code {
    // SAFETY: as in `isend_in_group`, which calls this.
    unsafe {
        let held = Held::<E>::of(end);
        let posted = held.end.post_group();
        held.posted(posted)
    }
}

/// Of a group, any message.
#[inline(never)]
unsafe extern "C" fn isend_in_group<E: SendEnd>(
    end: Erased,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: as in `isend`, which calls this.
    unsafe {
        let held = Held::<E>::of(end);
        let (addr, len) = (data.addr() as u64, size as u64);
        match held.end.match_in_group(addr, len, lkey(mhandle), tag as u32) {
            Usual::Done(started) => {
                // Looked at before anything is written that might be it.
                let is_complete = held.end.is_group_complete();
                let given = held.give(Some(started), request);
                if is_complete { post_group::<E>(end) } else { given }
            }
            Usual::NotYet => held.give(None, request),
            Usual::Unusual => isend_unusual::<E>(end, data, size, tag, mhandle, request),
        }
    }
}

/// All of it.
#[inline(never)]
unsafe extern "C" fn isend_unusual<E: SendEnd>(
    end: Erased,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    caught(|| {
        if size > MESSAGE_BYTES_MAX {
            return too_long("isend", size);
        }
        if mhandle.is_null() || request.is_null() {
            return null("isend: registration or request").0;
        }
        // SAFETY: the calls are those of `E`.
        let held = unsafe { Held::<E>::whole(end) };
        let buf = SendBuf { addr: data.addr() as u64, len: size as u32, lkey: lkey(mhandle) };
        // SAFETY: NCCL promises what `SendEnd` asks for.
        match unsafe { held.end.isend(&buf, tag as u32) } {
            // SAFETY: room for a request, NCCL promises.
            Ok(started) => unsafe { held.give(started, request) },
            Err(error) => call_failed(held, error),
        }
    })
}

unsafe extern "C" fn not_irecv_one<S>(
    _: Erased,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
    _: *mut S,
    _: *mut c_int,
    _: *mut *mut c_void,
) -> Code {
    wrong_end("irecv")
}

unsafe extern "C" fn not_irecv<S>(
    _: Erased,
    _: c_int,
    _: *mut *mut c_void,
    _: *mut S,
    _: *mut c_int,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> Code {
    wrong_end("irecv")
}

unsafe extern "C" fn not_iflush(
    _: Erased,
    _: c_int,
    _: *mut *mut c_void,
    _: *mut c_int,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> Code {
    wrong_end("iflush")
}
