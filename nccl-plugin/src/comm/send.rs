//! The sending end.

use std::ffi::{c_int, c_void};
use std::ptr;

use invar::raw::{Request, SendBuf, SendEnd};

use super::{Calls, MESSAGE_BYTES_MAX, call_failed, too_long, wrong_end};
use crate::abi::Code;
use crate::outcome::{caught, null};
use crate::place::{Place, token};
use crate::register::lkey;

/// What can be done with such an end.
pub(super) fn calls<E: SendEnd>(_: &E) -> Calls {
    Calls {
        isend: isend::<E>,
        irecv_int: not_irecv::<c_int>,
        irecv: not_irecv::<usize>,
        iflush: not_iflush,
        test: test::<E>,
    }
}

unsafe extern "C" fn isend<E: SendEnd>(
    place: &Place,
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
        let buf = SendBuf { addr: data.addr() as u64, len: size as u32, lkey: lkey(mhandle) };
        // SAFETY: the calls are those of `E`.
        let end = unsafe { place.comm().end::<E>() };
        // SAFETY: NCCL promises what `SendEnd` asks for.
        match unsafe { end.isend(&buf, tag as u32) } {
            Ok(started) => {
                let started = started.map(|request| place.request(request.raw()));
                // SAFETY: room for a request, NCCL promises.
                unsafe { request.write(started.unwrap_or(ptr::null_mut())) };
                Code::SUCCESS
            }
            Err(error) => call_failed(end, error),
        }
    })
}

unsafe extern "C" fn test<E: SendEnd>(
    place: &Place,
    done: *mut c_int,
    sizes: *mut c_int,
    request: *mut c_void,
) -> Code {
    caught(|| {
        if done.is_null() {
            return null("test: done").0;
        }
        // SAFETY: the calls are those of `E`.
        let end = unsafe { place.comm().end::<E>() };
        match end.test(&Request::from_raw(token(request))) {
            Ok(sent) => {
                // SAFETY: NCCL promises room for both, if `sizes` is not null.
                unsafe {
                    done.write(c_int::from(sent.is_some()));
                    if let Some(sent) = sent
                        && !sizes.is_null()
                    {
                        sizes.write(sent as c_int);
                    }
                }
                Code::SUCCESS
            }
            Err(error) => call_failed(end, error),
        }
    })
}

unsafe extern "C" fn not_irecv<S>(
    _: &Place,
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
    _: &Place,
    _: c_int,
    _: *mut *mut c_void,
    _: *mut c_int,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> Code {
    wrong_end("iflush")
}
