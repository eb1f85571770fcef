//! The sending end.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use invar::raw::{Request, SendBuf, SendEnd};

use super::{Calls, Comm, Kind, MESSAGE_BYTES_MAX, too_long, wrong_end};
use crate::abi::Code;
use crate::outcome::{caught, null};
use crate::register::lkey;

/// An end and what can be done with it.
pub(super) fn with_calls<E: SendEnd>(end: Box<E>) -> (NonNull<()>, &'static Calls) {
    (NonNull::from(Box::leak(end)).cast(), &Compiled::<E>::CALLS)
}

struct Compiled<E>(std::marker::PhantomData<E>);

impl<E: SendEnd> Compiled<E> {
    const CALLS: Calls = Calls {
        kind: Kind::Send,
        isend: isend::<E>,
        irecv_int: not_irecv::<c_int>,
        irecv: not_irecv::<usize>,
        iflush: not_iflush,
        test: test::<E>,
        drop: |end| {
            // SAFETY: `with_calls` made it of a box.
            drop(unsafe { Box::from_raw(end.cast::<E>().as_ptr()) });
        },
    };
}

unsafe extern "C" fn isend<E: SendEnd>(
    comm: &Comm,
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
        let end = unsafe { comm.end::<E>() };
        // SAFETY: NCCL promises what `SendEnd` asks for.
        match unsafe { end.isend(&buf, tag as u32) } {
            Ok(started) => {
                let started = started.map(|request| comm.name.request(request.raw()));
                // SAFETY: room for a request, NCCL promises.
                unsafe { request.write(started.unwrap_or(ptr::null_mut())) };
                Code::SUCCESS
            }
            Err(error) => comm.failed(end, error),
        }
    })
}

unsafe extern "C" fn test<E: SendEnd>(
    comm: &Comm,
    token: u32,
    done: *mut c_int,
    sizes: *mut c_int,
) -> Code {
    caught(|| {
        if done.is_null() {
            return null("test: done").0;
        }
        // SAFETY: the calls are those of `E`.
        let end = unsafe { comm.end::<E>() };
        match end.test(&Request::from_raw(token)) {
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
            Err(error) => comm.failed(end, error),
        }
    })
}

unsafe extern "C" fn not_irecv<S>(
    _: &Comm,
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
    _: &Comm,
    _: c_int,
    _: *mut *mut c_void,
    _: *mut c_int,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> Code {
    wrong_end("iflush")
}
