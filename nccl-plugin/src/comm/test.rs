//! Tests, of both ends: by what is booked already, which takes no call; by a poll; and the whole.

use std::ffi::{c_int, c_void};
use std::hint::cold_path;

use invar::ConnectionError;
use invar::raw::{End, Polled, RecvEnd, Request, SendEnd, Usual};

use super::{Asked, Erased, Held, call_failed};
use crate::abi::Code;
use crate::outcome::{caught, null};
use crate::place::{self, token};

/// The whole of a test, and what follows on a poll.
pub(super) trait Whole<E: End> {
    /// Whether it is a receive of several buffers that is done by what was booked; `asked` says where
    /// its sizes go.
    ///
    /// # Safety
    /// As below.
    #[inline(always)]
    unsafe fn take_group(_end: &mut E, _asked: &Asked) -> bool {
        false
    }

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
        if let Some(sent) = sent {
            // SAFETY: the caller's promise.
            unsafe { put_size(sizes, sent) };
        }
        Ok(sent.is_some())
    }
}

impl<E: RecvEnd> Whole<E> for Recvs {
    #[inline(always)]
    unsafe fn take_group(end: &mut E, asked: &Asked) -> bool {
        // SAFETY: the caller's promise; no size is above i32::MAX.
        unsafe { end.take_group(&asked.request, asked.sizes.cast()) }
    }

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
    // SAFETY: the calls are those of `E`, and the caller's promise.
    unsafe {
        if done.is_null() {
            return test_unusual::<E, W>(request, done, sizes, end);
        }
        match Held::<E>::of(end).end.test_booked(&Request::from_raw(token(request))) {
            Usual::Done(size) => say_done(done, sizes, size),
            Usual::NotYet => test_polled::<E, W>(request, done, sizes, end),
            Usual::Unusual => test_unusual::<E, W>(request, done, sizes, end),
        }
    }
}

/// By a poll.
#[inline(never)]
unsafe extern "C" fn test_polled<E: End, W: Whole<E>>(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
    end: Erased,
) -> Code {
    // SAFETY: as in `test`.
    unsafe {
        let held = Held::<E>::of(end);
        let request = Request::from_raw(token(request));
        held.asked = Asked { request, done, sizes };
        match held.end.test_polled(&held.asked.request) {
            Polled::Done(size) => say_done(held.asked.done, held.asked.sizes, size),
            Polled::NotYet => {
                cold_path();
                held.asked.done.write(0);
                if held.end.idle() == Usual::Unusual {
                    return test_asked::<E, W>(end);
                }
                held.remember();
                Code::SUCCESS
            }
            Polled::Other(1) => test_one::<E, W>(end),
            Polled::Other(polled) => test_several::<E, W>(end, polled),
        }
    }
}

/// Where the last poll has found a request waiting: as a rule it is the same one, or another of those
/// that are tested in turn, which waits still.
pub(super) unsafe extern "C" fn test_again<E: End, W: Whole<E>>(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
    end: Erased,
) -> Code {
    // SAFETY: as in `test`.
    unsafe {
        let held = Held::<E>::of(end);
        if done.is_null() {
            return test_anew::<E, W>(request, done, sizes, end);
        }
        if request != held.waiting {
            let tested = Request::from_raw(token(request));
            match held.end.test_booked(&tested) {
                Usual::NotYet => (held.waiting, held.asked.request) = (request, tested),
                Usual::Done(size) => return say_done(done, sizes, size),
                Usual::Unusual => return test_anew::<E, W>(request, done, sizes, end),
            }
        }
        (held.asked.done, held.asked.sizes) = (done, sizes);
        done.write(0);
        match held.end.test_polled(&held.asked.request) {
            Polled::NotYet => {
                if held.end.idle() == Usual::Unusual {
                    return test_asked::<E, W>(end);
                }
                Code::SUCCESS
            }
            Polled::Done(size) => {
                cold_path();
                held.forget();
                say_done(held.asked.done, held.asked.sizes, size)
            }
            Polled::Other(polled) => {
                cold_path();
                held.forget();
                test_several::<E, W>(end, polled)
            }
        }
    }
}

/// Another than that.
#[inline(never)]
unsafe extern "C" fn test_anew<E: End, W: Whole<E>>(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
    end: Erased,
) -> Code {
    // SAFETY: as in `test`.
    unsafe {
        Held::<E>::whole(end);
        test::<E, W>(request, done, sizes, end)
    }
}

/// By the one completion that was polled.
#[inline(never)]
unsafe extern "C" fn test_one<E: End, W: Whole<E>>(end: Erased) -> Code {
    // SAFETY: as in `test`.
    unsafe {
        let held = Held::<E>::of(end);
        if is_done_by(held, 1) || W::take_group(&mut held.end, &held.asked) {
            held.asked.done.write(1);
            return Code::SUCCESS;
        }
        test_asked::<E, W>(end)
    }
}

/// By any number of them, which are the request's as a rule.
#[inline(never)]
unsafe extern "C" fn test_several<E: End, W: Whole<E>>(end: Erased, polled: u32) -> Code {
    // SAFETY: as in `test`.
    unsafe {
        let Held { end: its, asked: Asked { request, done, sizes }, .. } = Held::<E>::of(end);
        match its.take_polled(request, polled) {
            Some(size) => say_done(*done, *sizes, size),
            None => test_all::<E, W>(end, polled),
        }
    }
}

/// By any others.
#[inline(never)]
unsafe extern "C" fn test_all<E: End, W: Whole<E>>(end: Erased, polled: u32) -> Code {
    // SAFETY: as in `test`.
    unsafe {
        let held = Held::<E>::of(end);
        if is_done_by(held, polled) {
            held.asked.done.write(1);
            return Code::SUCCESS;
        }
        test_asked::<E, W>(end)
    }
}

/// Whether the request that is asked for is done by what was polled, and of one size, which is said.
///
/// # Safety
/// There is room for a size, where one is asked for.
#[inline(always)]
unsafe fn is_done_by<E: End>(Held { end, asked, .. }: &mut Held<E>, polled: u32) -> bool {
    let Usual::Done(size) = end.test_other(&asked.request, polled) else { return false };
    // SAFETY: the caller's promise.
    unsafe { put_size(asked.sizes, size) };
    true
}

/// All of the test that is being made.
#[inline(never)]
unsafe extern "C" fn test_asked<E: End, W: Whole<E>>(end: Erased) -> Code {
    // SAFETY: as in `test`.
    unsafe {
        let Held { asked: Asked { request, done, sizes }, requests, .. } = Held::<E>::of(end);
        let request = place::request(request.raw(), *requests);
        test_unusual::<E, W>(request, *done, *sizes, end)
    }
}

/// All of it.
#[inline(never)]
unsafe extern "C" fn test_unusual<E: End, W: Whole<E>>(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
    end: Erased,
) -> Code {
    caught(|| {
        if done.is_null() {
            return null("test: done").0;
        }
        // SAFETY: as in `test`.
        let held = unsafe { Held::<E>::whole(end) };
        // SAFETY: null, or NCCL promises room for a size of each buffer.
        match unsafe { W::test(&mut held.end, &Request::from_raw(token(request)), sizes) } {
            Ok(is_done) => {
                // SAFETY: room for it, NCCL promises.
                unsafe { done.write(c_int::from(is_done)) };
                Code::SUCCESS
            }
            Err(error) => call_failed(held, error),
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
        put_size(sizes, size);
    }
    Code::SUCCESS
}

/// # Safety
/// There is room for a size, where `sizes` is not null.
#[inline(always)]
unsafe fn put_size(sizes: *mut c_int, size: u32) {
    if !sizes.is_null() {
        // SAFETY: the caller's promise.
        unsafe { sizes.write(size as c_int) };
    }
}
