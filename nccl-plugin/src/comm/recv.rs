//! The receiving end of a connection, with the calls of NCCL's function table.

use std::ffi::{c_int, c_void};
use std::hint::cold_path;
use std::mem::MaybeUninit;

use invar::raw::{Biased, Entered, Fast, Flush, FlushBuf, RECVS_MAX, RecvBuf, RecvEnd};

use super::end::{Asked, CommEnd, Tested};
use super::{Bytes, MESSAGE_BYTES_MAX, NetEnd, call, call_failed, give, null_array, too_long};
use crate::abi::Code;
use crate::mhandle::rkey;
use crate::outcome::{misused, null};

/// The direction of an end that receives.
pub(super) enum Recvs {}

/// A receiving end.
type Receiver<E> = CommEnd<E, Recvs>;

impl<E: RecvEnd> NetEnd for Biased<Receiver<E>> {
    unsafe extern "C" fn irecv_one(
        &self,
        request: *mut *mut c_void,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
    ) -> Code {
        // The hint keeps LLVM from joining the checks, which would take 3 instructions more.
        if size > MESSAGE_BYTES_MAX {
            cold_path();
            return Receiver::irecv_slow(self, request, data, size, tag, mhandle);
        }
        if request.is_null() {
            cold_path();
            return Receiver::irecv_slow(self, request, data, size, tag, mhandle);
        }
        // SAFETY: NCCL makes one call on an end at a time.
        let Some(mut entered) = (unsafe { self.enter() }) else {
            return Receiver::irecv_locked(self, request, data, size, tag, mhandle);
        };
        let Receiver { end, low_half, .. } = &mut *entered;
        // SAFETY: NCCL's contract includes the contract of `RecvEnd`, and promises room for a request.
        unsafe {
            let started = |started| _ = give(Some(started), *low_half, request);
            if end.irecv_fast(&buf(data, size, tag, mhandle), started) == Fast::Done(()) {
                return Code::SUCCESS;
            }
        }
        let this = Entered::leave(entered);
        Receiver::irecv_slow(this, request, data, size, tag, mhandle)
    }

    unsafe extern "C" fn irecv_int(
        &self,
        n: c_int,
        data: *mut *mut c_void,
        sizes: *mut c_int,
        tags: *mut c_int,
        mhandles: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { Receiver::irecv_several(self, n, data, sizes, tags, mhandles, request) }
    }

    unsafe extern "C" fn irecv(
        &self,
        n: c_int,
        data: *mut *mut c_void,
        sizes: *mut usize,
        tags: *mut c_int,
        mhandles: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { Receiver::irecv_several(self, n, data, sizes, tags, mhandles, request) }
    }

    unsafe extern "C" fn iflush(
        &self,
        n: c_int,
        data: *mut *mut c_void,
        sizes: *mut c_int,
        mhandles: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        let start = |this: &mut Receiver<E>| {
            if data.is_null() || sizes.is_null() || mhandles.is_null() || request.is_null() {
                return null("iflush: memory, sizes, registrations or request").0;
            }
            let mut bufs = [FlushBuf::default(); RECVS_MAX];
            let Some(bufs) = usize::try_from(n).ok().and_then(|n| bufs.get_mut(..n)) else {
                return misused(format_args!(
                    "iflush of {n} buffers; at most {RECVS_MAX} are allowed"
                ))
                .0;
            };
            for (i, buf) in bufs.iter_mut().enumerate() {
                // SAFETY: NCCL promises `n` entries in each array.
                let (data, size, mhandle) =
                    unsafe { (*data.add(i), *sizes.add(i), *mhandles.add(i)) };
                let Ok(len) = u32::try_from(size) else { return too_long("iflush", size as usize) };
                *buf = FlushBuf { addr: data.addr() as u64, len, rkey: rkey(mhandle) };
            }
            // SAFETY: NCCL's contract of `iflush` includes the contract of `RecvEnd`.
            let started = match unsafe { this.end.iflush(bufs) } {
                Ok(Flush::NotNeeded) => None,
                Ok(Flush::Started(request)) => Some(request),
                // A null request would tell NCCL that it need not wait.
                Ok(Flush::Busy) => return misused("iflush: too many requests are under way").0,
                Err(error) => return call_failed(&*this.end, error),
            };
            // SAFETY: NCCL promises that `request` has room for a request.
            unsafe { give(started, this.low_half, request) }
        };
        // SAFETY: NCCL makes one call on an end at a time.
        unsafe { call(self, start) }
    }
}

impl<E: RecvEnd> Receiver<E> {
    /// `irecv` of several buffers, for either type of the sizes.
    ///
    /// # Safety
    /// NCCL's contract holds, as [`NetEnd::irecv`] asks.
    #[inline(always)]
    unsafe fn irecv_several<S: Bytes>(
        this: &Biased<Self>,
        n: c_int,
        data: *mut *mut c_void,
        sizes: *mut S,
        tags: *mut c_int,
        mhandles: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        let nreqs = match usize::try_from(n) {
            Ok(nreqs) if nreqs <= RECVS_MAX => nreqs,
            _ => return wrong_number(n),
        };
        if data.is_null() || sizes.is_null() || tags.is_null() || mhandles.is_null() {
            return null_array();
        }
        if request.is_null() {
            return null("irecv: request").0;
        }
        // SAFETY: NCCL promises `n` entries in each array.
        let entry = |r| unsafe { (*data.add(r), *sizes.add(r), *tags.add(r), *mhandles.add(r)) };
        let buf = |r| {
            let (data, size, tag, mhandle) = entry(r);
            let size = size.bytes();
            (size <= MESSAGE_BYTES_MAX).then(|| buf(data, size, tag, mhandle))
        };
        // SAFETY: NCCL makes one call on an end at a time.
        if let Some(mut entered) = unsafe { this.enter() } {
            let Self { end, low_half, .. } = &mut *entered;
            // SAFETY: NCCL's contract includes the contract of `RecvEnd`, and promises room for a
            // request.
            unsafe {
                let started = |started| _ = give(Some(started), *low_half, request);
                if end.irecv_group_fast(nreqs, buf, started) == Fast::Done(()) {
                    return Code::SUCCESS;
                }
            }
        }
        let mut bufs = [const { MaybeUninit::uninit() }; RECVS_MAX];
        for (r, to) in bufs[..nreqs].iter_mut().enumerate() {
            let Some(buf) = buf(r) else { return too_long("irecv", entry(r).1.bytes()) };
            to.write(buf);
        }
        // SAFETY: The loop has written each of these buffers.
        let bufs = unsafe { bufs[..nreqs].assume_init_ref() };
        Self::irecv_any_case(this, bufs, request)
    }

    /// The slow path of `irecv` of one buffer: checks all arguments and handles all cases.
    #[inline(never)]
    extern "C" fn irecv_slow(
        this: &Biased<Self>,
        request: *mut *mut c_void,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
    ) -> Code {
        if size > MESSAGE_BYTES_MAX {
            return too_long("irecv", size);
        }
        if request.is_null() {
            return null("irecv: request").0;
        }
        Self::irecv_any_case(this, &[buf(data, size, tag, mhandle)], request)
    }

    /// `irecv` of one buffer while the end takes the mutex.
    #[cold]
    extern "C" fn irecv_locked(
        this: &Biased<Self>,
        request: *mut *mut c_void,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
    ) -> Code {
        Self::irecv_slow(this, request, data, size, tag, mhandle)
    }

    /// Posts a receive that no fast path can post.
    #[inline(never)]
    fn irecv_any_case(this: &Biased<Self>, bufs: &[RecvBuf], request: *mut *mut c_void) -> Code {
        // SAFETY: NCCL makes one call on an end at a time. Its contract includes the contract of `RecvEnd`,
        // and promises room for a request.
        unsafe {
            call(this, |this| match this.end.irecv(bufs) {
                Ok(started) => give(started, this.low_half, request),
                Err(error) => call_failed(&*this.end, error),
            })
        }
    }
}

impl<E: RecvEnd> Tested for Receiver<E> {
    /// `test` of a receive of several buffers that is done; tries the slow path for others.
    #[inline(never)]
    extern "C" fn test_rest(mut entered: Entered<'_, Self>) -> Code {
        let Self { end, asked: Asked { request, done, sizes }, .. } = &mut *entered;
        // SAFETY: NCCL promises room for the answers, and no size exceeds `i32::MAX`.
        unsafe {
            if end.take_group_fast(request, sizes.cast()) == Fast::Done(()) {
                done.write(1);
                return Code::SUCCESS;
            }
        }
        Self::test_slow(Entered::leave(entered))
    }

    /// The slow path of `test`: handles all cases for the request in `asked`.
    #[inline(never)]
    extern "C" fn test_slow(this: &Biased<Self>) -> Code {
        let test = |this: &mut Self| {
            // SAFETY: NCCL promises room for the answers, and no size exceeds `i32::MAX`.
            unsafe {
                match this.end.test(&this.asked.request, this.asked.sizes.cast()) {
                    Ok(Some(_)) => this.asked.done.write(1),
                    Ok(None) => {}
                    Err(error) => return call_failed(&*this.end, error),
                }
                Code::SUCCESS
            }
        };
        // SAFETY: NCCL makes one call on an end at a time.
        unsafe { call(this, test) }
    }
}

/// Reports a number of buffers that no receive has.
#[cold]
#[inline(never)]
extern "C" fn wrong_number(n: c_int) -> Code {
    misused(format_args!("irecv of {n} buffers; 1 to {RECVS_MAX} are allowed")).0
}

#[inline(always)]
fn buf(data: *mut c_void, size: usize, tag: c_int, mhandle: *mut c_void) -> RecvBuf {
    RecvBuf { addr: data.addr() as u64, len: size as u32, tag: tag as u32, rkey: rkey(mhandle) }
}
