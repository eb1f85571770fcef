//! Tests, of both ends: by what is booked already, which takes no call; by a poll; and the whole.

use std::ffi::{c_int, c_void};

use invar::ConnectionError;
use invar::raw::{End, RecvEnd, Request, SendEnd, Usual};

use super::{Erased, Held, call_failed};
use crate::abi::Code;
use crate::outcome::{caught, null};
use crate::place::token;

/// The whole of a test.
pub(super) trait Whole<E: End> {
    /// Whether it is done.
    ///
    /// # Safety
    /// `sizes` is null, or has room for a size of each buffer.
    unsafe fn test(
        end: &mut E,
        request: &Request,
        sizes: *mut c_int,
    ) -> Result<bool, ConnectionError>;
}

/// Of sends.
pub(super) enum Sends {}
/// Of receives and flushes.
pub(super) enum Recvs {}

impl<E: SendEnd> Whole<E> for Sends {
    unsafe fn test(
        end: &mut E,
        request: &Request,
        sizes: *mut c_int,
    ) -> Result<bool, ConnectionError> {
        let sent = end.test(request)?;
        if let Some(sent) = sent
            && !sizes.is_null()
        {
            // SAFETY: the caller's promise.
            unsafe { sizes.write(sent as c_int) };
        }
        Ok(sent.is_some())
    }
}

impl<E: RecvEnd> Whole<E> for Recvs {
    unsafe fn test(
        end: &mut E,
        request: &Request,
        sizes: *mut c_int,
    ) -> Result<bool, ConnectionError> {
        // SAFETY: the caller's promise; no size is above i32::MAX.
        Ok(unsafe { end.test(request, sizes.cast()) }?.is_some())
    }
}

/// By what is booked.
pub(super) unsafe extern "C" fn test<E: End, W: Whole<E>>(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
    end: Erased,
) -> Code {
    let request = Request::from_raw(token(request));
    // SAFETY: the calls are those of `E`, and the caller's promise.
    unsafe {
        if done.is_null() {
            return test_unusual::<E, W>(request.raw(), done, sizes, end);
        }
        match Held::<E>::of(end).end.test_booked(&request) {
            Usual::Done(size) => say_done(done, sizes, size),
            Usual::NotYet => test_polled::<E, W>(request.raw(), done, sizes, end),
            Usual::Unusual => test_unusual::<E, W>(request.raw(), done, sizes, end),
        }
    }
}

/// By a poll.
#[inline(never)]
unsafe extern "C" fn test_polled<E: End, W: Whole<E>>(
    token: u32,
    done: *mut c_int,
    sizes: *mut c_int,
    end: Erased,
) -> Code {
    // SAFETY: as in `test`.
    unsafe {
        match Held::<E>::of(end).end.test_polled(&Request::from_raw(token)) {
            Usual::Done(size) => say_done(done, sizes, size),
            Usual::NotYet => {
                done.write(0);
                Code::SUCCESS
            }
            Usual::Unusual => test_unusual::<E, W>(token, done, sizes, end),
        }
    }
}

/// All of it.
#[inline(never)]
unsafe extern "C" fn test_unusual<E: End, W: Whole<E>>(
    token: u32,
    done: *mut c_int,
    sizes: *mut c_int,
    end: Erased,
) -> Code {
    caught(|| {
        if done.is_null() {
            return null("test: done").0;
        }
        // SAFETY: as in `test`.
        let end = unsafe { &mut Held::<E>::of(end).end };
        // SAFETY: null, or NCCL promises room for a size of each buffer.
        match unsafe { W::test(end, &Request::from_raw(token), sizes) } {
            Ok(is_done) => {
                // SAFETY: room for it, NCCL promises.
                unsafe { done.write(c_int::from(is_done)) };
                Code::SUCCESS
            }
            Err(error) => call_failed(end, error),
        }
    })
}

/// # Safety
/// There is room for what is said, where `sizes` is not null.
#[inline(always)]
unsafe fn say_done(done: *mut c_int, sizes: *mut c_int, size: u32) -> Code {
    // SAFETY: the caller's promise.
    unsafe {
        done.write(1);
        if !sizes.is_null() {
            sizes.write(size as c_int);
        }
    }
    Code::SUCCESS
}
