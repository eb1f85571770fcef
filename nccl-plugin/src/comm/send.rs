//! The sending end of a connection, with the calls of NCCL's function table.

use std::ffi::{c_int, c_void};

use invar::raw::{Carrier, Fast, Request, SendBuf, SendEnd};

use super::{Asked, MESSAGE_BYTES_MAX, NetEnd, call_failed, give, too_long};
use crate::abi::Code;
use crate::handles::token;
use crate::outcome::{caught, null};
use crate::register::lkey;

pub(super) struct Sender<E> {
    end: E,
    /// The low half of the end's requests.
    requests: u32,
    asked: Asked,
}

impl<E> Sender<E> {
    pub(super) fn new(end: E, requests: u32) -> Self {
        Sender { end, requests, asked: Asked::default() }
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
        let buf = SendBuf { addr: data.addr() as u64, len: size as u32, lkey: lkey(mhandle) };
        // SAFETY: NCCL's contract includes the contract of `SendEnd`, and promises room for a request.
        unsafe {
            match self.end.isend_fast(&buf, tag as u32) {
                Fast::Done(started) => give(Some(started), self.requests, request),
                Fast::Pending => give(None, self.requests, request),
                Fast::Slow => self.isend_slow(data, size, tag, mhandle, request),
            }
        }
    }

    unsafe extern "C" fn test(
        &mut self,
        request: *mut c_void,
        done: *mut c_int,
        sizes: *mut c_int,
    ) -> Code {
        if done.is_null() {
            return null("test: done").0;
        }
        self.asked = Asked { request: Request::from_raw(token(request)), done, sizes };
        // SAFETY: NCCL promises that `done` and `sizes` have room for the answers.
        unsafe {
            match self.end.test_fast(&self.asked.request) {
                Fast::Done(size) => self.asked.done(size),
                Fast::Pending => self.asked.pending(),
                Fast::Slow => self.test_slow(),
            }
        }
    }

    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        self.end.carriers(request)
    }

    fn close(self: Box<Self>) {
        Box::new(self.end).close();
    }
}

impl<E: SendEnd> Sender<E> {
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
            let buf = SendBuf { addr: data.addr() as u64, len: size as u32, lkey: lkey(mhandle) };
            // SAFETY: NCCL's contract includes the contract of `SendEnd`, and promises room for a
            // request.
            unsafe {
                match self.end.isend(&buf, tag as u32) {
                    Ok(started) => give(started, self.requests, request),
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
                    Ok(Some(sent)) => self.asked.done(sent),
                    Ok(None) => self.asked.pending(),
                    Err(error) => call_failed(&self.end, error),
                }
            }
        })
    }
}
