//! The receiving end.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;

use invar::raw::{Flush, FlushBuf, RECVS_MAX, RecvBuf, RecvEnd, Request};

use super::{Calls, MESSAGE_BYTES_MAX, call_failed, too_long, wrong_end};
use crate::abi::Code;
use crate::outcome::{caught, misused, null};
use crate::place::{Place, token};
use crate::register::rkey;

/// What can be done with such an end.
pub(super) fn calls<E: RecvEnd>(_: &E) -> Calls {
    Calls {
        isend: not_isend,
        irecv_int: irecv::<E, c_int>,
        irecv: irecv::<E, usize>,
        iflush: iflush::<E>,
        test: test::<E>,
    }
}

/// A size as a version counts it.
trait Bytes: Copy {
    fn bytes(self) -> usize;
}

impl Bytes for c_int {
    /// A negative size becomes one that is too long.
    #[inline(always)]
    fn bytes(self) -> usize {
        self as usize
    }
}

impl Bytes for usize {
    #[inline(always)]
    fn bytes(self) -> usize {
        self
    }
}

unsafe extern "C" fn irecv<E: RecvEnd, S: Bytes>(
    place: &Place,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    caught(|| {
        if data.is_null() || sizes.is_null() || tags.is_null() || mhandles.is_null() {
            return null("irecv: memory, sizes, tags or registrations").0;
        }
        if request.is_null() {
            return null("irecv: request").0;
        }
        let buf = |i: usize| {
            // SAFETY: NCCL promises n of each.
            let (data, size, tag, mhandle) =
                unsafe { (*data.add(i), *sizes.add(i), *tags.add(i), *mhandles.add(i)) };
            let size = size.bytes();
            if size > MESSAGE_BYTES_MAX {
                return Err(too_long("irecv", size));
            }
            let (addr, rkey) = (data.addr() as u64, rkey(mhandle));
            Ok(RecvBuf { addr, len: size as u32, tag: tag as u32, rkey })
        };
        // SAFETY: the calls are those of `E`.
        let end = unsafe { place.comm().end::<E>() };
        let started = if n == 1 {
            match buf(0) {
                // SAFETY: NCCL promises what `RecvEnd` asks for.
                Ok(buf) => unsafe { end.irecv(slice::from_ref(&buf)) },
                Err(code) => return code,
            }
        } else {
            let mut bufs = [RecvBuf::default(); RECVS_MAX];
            let Some(bufs) = usize::try_from(n).ok().and_then(|n| bufs.get_mut(..n)) else {
                return misused(format_args!("irecv of {n} buffers: 1 to {RECVS_MAX} go")).0;
            };
            for (i, to) in bufs.iter_mut().enumerate() {
                match buf(i) {
                    Ok(buf) => *to = buf,
                    Err(code) => return code,
                }
            }
            // SAFETY: as above.
            unsafe { end.irecv(bufs) }
        };
        match started {
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

unsafe extern "C" fn iflush<E: RecvEnd>(
    place: &Place,
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
        let end = unsafe { place.comm().end::<E>() };
        // SAFETY: NCCL promises what `RecvEnd` asks for.
        let started = match unsafe { end.iflush(bufs) } {
            Ok(Flush::NotNeeded) => ptr::null_mut(),
            Ok(Flush::Started(request)) => place.request(request.raw()),
            // Null would mean that nothing is to be waited for.
            Ok(Flush::Busy) => return misused("iflush: too many requests are under way").0,
            Err(error) => return call_failed(end, error),
        };
        // SAFETY: room for a request, NCCL promises.
        unsafe { request.write(started) };
        Code::SUCCESS
    })
}

unsafe extern "C" fn test<E: RecvEnd>(
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
        // SAFETY: null, or NCCL promises room for a size of each buffer; none is above i32::MAX.
        match unsafe { end.test(&Request::from_raw(token(request)), sizes.cast()) } {
            Ok(received) => {
                // SAFETY: room for it, NCCL promises.
                unsafe { done.write(c_int::from(received.is_some())) };
                Code::SUCCESS
            }
            Err(error) => call_failed(end, error),
        }
    })
}

unsafe extern "C" fn not_isend(
    _: &Place,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: *mut c_void,
    _: *mut *mut c_void,
) -> Code {
    wrong_end("isend")
}
