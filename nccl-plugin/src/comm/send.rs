//! The sending end of a connection, with the calls of NCCL's function table.

use std::ffi::{c_int, c_void};

use invar::raw::{Biased, Entered, Fast, SendBuf, SendEnd};

use super::end::{CommEnd, Tested, answer};
use super::{MESSAGE_BYTES_MAX, NetEnd, call, call_failed, give, too_long};
use crate::abi::Code;
use crate::mhandle::lkey;
use crate::outcome::null;

/// The direction of an end that sends.
pub(super) enum Sends {}

type Sender<E> = CommEnd<E, Sends>;

impl<E: SendEnd> NetEnd for Biased<Sender<E>> {
    unsafe extern "C" fn isend(
        &self,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        if size > MESSAGE_BYTES_MAX || mhandle.is_null() || request.is_null() {
            return Sender::isend_slow(self, data, size, tag, mhandle, request);
        }
        // SAFETY: NCCL makes one call on an end at a time.
        let Some(mut entered) = (unsafe { self.enter() }) else {
            return Sender::isend_locked(self, data, size, tag, mhandle, request);
        };
        let Sender { end, low_half, .. } = &mut *entered;
        // SAFETY: NCCL's contract includes the contract of `SendEnd`, and promises room for a request.
        unsafe {
            let give = |started| give(started, *low_half, request);
            let started = |request| _ = give(Some(request));
            match end.isend_fast(&buf(data, size, mhandle), tag as u32, started) {
                Fast::Done(()) => Code::SUCCESS,
                Fast::Pending => give(None),
                Fast::Slow => Sender::isend_grouped(entered, data, size, tag, mhandle, request),
            }
        }
    }
}

impl<E: SendEnd> Sender<E> {
    /// `isend` of a message that has no fast path of its own: tries the fast path of a group that has
    /// begun.
    ///
    /// # Safety
    /// NCCL's contract of `isend` holds. The size is at most [`MESSAGE_BYTES_MAX`], and neither the
    /// registration nor `request` is null.
    #[inline(never)]
    unsafe extern "C" fn isend_grouped(
        mut entered: Entered<'_, Self>,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        let Self { end, low_half, .. } = &mut *entered;
        // SAFETY: The caller upholds this function's safety contract, which includes the contract of
        // `SendEnd`.
        unsafe {
            let started = |started| _ = give(Some(started), *low_half, request);
            match end.isend_grouped_fast(&buf(data, size, mhandle), tag as u32, started) {
                Fast::Done(()) => Code::SUCCESS,
                _ => Self::isend_first(entered, data, size, tag, mhandle, request),
            }
        }
    }

    /// `isend` of a message that may be the first of a group. This step is a function of its own, so that
    /// the fast path of a group keeps no arguments over the call: this saves 10 instructions per message.
    ///
    /// # Safety
    /// The caller makes the promises of [`Sender::isend_grouped`].
    #[inline(never)]
    unsafe extern "C" fn isend_first(
        mut entered: Entered<'_, Self>,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        if entered.end.begin_next_group() {
            // SAFETY: The caller upholds this function's safety contract.
            return unsafe { Self::isend_grouped(entered, data, size, tag, mhandle, request) };
        }
        Self::isend_slow(Entered::leave(entered), data, size, tag, mhandle, request)
    }

    /// The slow path of `isend`: checks all arguments and handles all cases.
    #[inline(never)]
    extern "C" fn isend_slow(
        this: &Biased<Self>,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        let post = |this: &mut Self| {
            if size > MESSAGE_BYTES_MAX {
                return too_long("isend", size);
            }
            if mhandle.is_null() || request.is_null() {
                return null("isend: registration or request").0;
            }
            // SAFETY: NCCL's contract includes the contract of `SendEnd`, and promises room for a
            // request.
            unsafe {
                match this.end.isend(&buf(data, size, mhandle), tag as u32) {
                    Ok(started) => give(started, this.low_half, request),
                    Err(error) => call_failed(&*this.end, error),
                }
            }
        };
        // SAFETY: NCCL makes one call on an end at a time.
        unsafe { call(this, post) }
    }

    /// `isend` while the end takes the mutex.
    #[cold]
    extern "C" fn isend_locked(
        this: &Biased<Self>,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        Self::isend_slow(this, data, size, tag, mhandle, request)
    }
}

impl<E: SendEnd> Tested for Sender<E> {
    extern "C" fn test_rest(entered: Entered<'_, Self>) -> Code {
        Self::test_slow(Entered::leave(entered))
    }

    /// The slow path of `test`: handles all cases for the request in `asked`.
    #[inline(never)]
    extern "C" fn test_slow(this: &Biased<Self>) -> Code {
        let test = |this: &mut Self| {
            // SAFETY: NCCL promises that `done` and `sizes` have room for the answers.
            unsafe {
                match this.end.test(&this.asked.request) {
                    Ok(Some(sent)) => answer(sent, this.asked.done, this.asked.sizes),
                    Ok(None) => Code::SUCCESS,
                    Err(error) => call_failed(&*this.end, error),
                }
            }
        };
        // SAFETY: NCCL makes one call on an end at a time.
        unsafe { call(this, test) }
    }
}

#[inline(always)]
fn buf(data: *mut c_void, size: usize, mhandle: *mut c_void) -> SendBuf {
    SendBuf { addr: data.addr() as u64, len: size as u32, lkey: lkey(mhandle) }
}
