//! The sending end of a connection, with the calls of NCCL's function table.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use invar::raw::{Carrier, Fast, Request, SendBuf, SendEnd};

use super::{Asked, MESSAGE_BYTES_MAX, NetEnd, answer, call_failed, give, too_long};
use crate::abi::Code;
use crate::mhandle::lkey;
use crate::outcome::{caught, null};

pub(super) struct Sender<E> {
    end: E,
    /// The low half of the end's requests.
    low_half: u32,
    asked: Asked,
}

impl<E> Sender<E> {
    pub(super) fn new(end: E, low_half: u32) -> Self {
        Sender { end, low_half, asked: Asked::default() }
    }
}

impl<E: SendEnd> NetEnd for Sender<E> {
    unsafe extern "C" fn isend(
        &mut self,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        if size > MESSAGE_BYTES_MAX || mhandle.is_null() || request.is_null() {
            return self.isend_slow(data, size, tag, mhandle, request);
        }
        let Self { end, low_half, .. } = self;
        // SAFETY: NCCL's contract includes the contract of `SendEnd`, and promises room for a request.
        unsafe {
            let give = |started| give(started, *low_half, request);
            let started = |request| _ = give(Some(request));
            match end.isend_fast(&buf(data, size, mhandle), tag as u32, started) {
                Fast::Done(()) => Code::SUCCESS,
                Fast::Pending => give(None),
                Fast::Slow => self.isend_grouped(data, size, tag, mhandle, request),
            }
        }
    }

    unsafe extern "C" fn test(
        request: *mut c_void,
        done: *mut c_int,
        sizes: *mut c_int,
        end: NonNull<c_void>,
    ) -> Code {
        // SAFETY: The caller gives a pointer to an end of this type, which nobody else borrows.
        let this: &mut Self = unsafe { end.cast().as_mut() };
        // SAFETY: NCCL promises that `done` and `sizes` have room for the answers, or are null.
        let answer = unsafe { this.asked.test_fast(&mut this.end, request, done, sizes) };
        answer.unwrap_or_else(|| this.test_slow())
    }

    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        self.end.carriers(request)
    }

    fn close(self: Box<Self>) {
        Box::new(self.end).close();
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
        &mut self,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        let Self { end, low_half, .. } = self;
        // SAFETY: The caller upholds this function's safety contract.
        unsafe {
            let started = |started| _ = give(Some(started), *low_half, request);
            match end.isend_grouped_fast(&buf(data, size, mhandle), tag as u32, started) {
                Fast::Done(()) => Code::SUCCESS,
                _ => self.isend_first(data, size, tag, mhandle, request),
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
        &mut self,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        if !self.end.begin_next_group() {
            return self.isend_slow(data, size, tag, mhandle, request);
        }
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { self.isend_grouped(data, size, tag, mhandle, request) }
    }

    /// The slow path of `isend`: checks all arguments and handles all cases.
    #[inline(never)]
    extern "C" fn isend_slow(
        &mut self,
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
            // SAFETY: NCCL's contract includes the contract of `SendEnd`, and promises room for a
            // request.
            unsafe {
                match self.end.isend(&buf(data, size, mhandle), tag as u32) {
                    Ok(started) => give(started, self.low_half, request),
                    Err(error) => call_failed(&self.end, error),
                }
            }
        })
    }

    /// The slow path of `test`: handles all cases for the request in `asked`.
    #[inline(never)]
    extern "C" fn test_slow(&mut self) -> Code {
        caught(|| {
            // SAFETY: NCCL promises that `done` and `sizes` have room for the answers.
            unsafe {
                match self.end.test(&self.asked.request) {
                    Ok(Some(sent)) => answer(sent, self.asked.done, self.asked.sizes),
                    Ok(None) => Code::SUCCESS,
                    Err(error) => call_failed(&self.end, error),
                }
            }
        })
    }
}

#[inline(always)]
fn buf(data: *mut c_void, size: usize, mhandle: *mut c_void) -> SendBuf {
    SendBuf { addr: data.addr() as u64, len: size as u32, lkey: lkey(mhandle) }
}
