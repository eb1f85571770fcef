//! The receiving end of a connection, with the calls of NCCL's function table.

use std::ffi::{c_int, c_void};
use std::hint::cold_path;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;
use std::slice;

use invar::raw::{
    Biased, Care, Carrier, Entered, Fast, Flush, FlushBuf, RECVS_MAX, RecvBuf, RecvEnd, Request,
    Snapshot, Tend,
};

use super::{Asked, MESSAGE_BYTES_MAX, NetEnd, answer, call, call_failed, give, too_long};
use crate::abi::Code;
use crate::mhandle::rkey;
use crate::outcome::{misused, null};

#[repr(C)]
pub(super) struct Receiver<E> {
    /// The end; `close` takes it. It comes first, so that its address needs no addition.
    end: ManuallyDrop<E>,
    /// The low half of the end's requests.
    low_half: u32,
    asked: Asked,
}

impl<E> Receiver<E> {
    pub(super) fn new(end: E, low_half: u32) -> Self {
        Receiver { end: ManuallyDrop::new(end), low_half, asked: Asked::default() }
    }
}

/// A buffer size in the type that a version of the interface uses.
trait Bytes: Copy {
    fn bytes(self) -> usize;
}

impl Bytes for c_int {
    /// A negative size becomes a huge one, which `irecv` refuses as too long.
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

impl<E: RecvEnd> Tend for Receiver<E> {
    fn look(&mut self) -> Care {
        self.end.look()
    }

    fn care(&self) -> Care {
        self.end.care()
    }

    fn called(&mut self) {
        self.end.called();
    }

    fn snapshot(&self, counts: bool) -> Option<Snapshot> {
        self.end.snapshot(counts)
    }
}

impl<E: RecvEnd> NetEnd for Biased<Receiver<E>> {
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
        unsafe { Receiver::irecv_any(self, n, data, sizes, tags, mhandles, request) }
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
        unsafe { Receiver::irecv_any(self, n, data, sizes, tags, mhandles, request) }
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

    unsafe extern "C" fn test(
        request: *mut c_void,
        done: *mut c_int,
        sizes: *mut c_int,
        end: NonNull<c_void>,
    ) -> Code {
        // SAFETY: The caller gives a pointer to an end of this type.
        let this: &Self = unsafe { end.cast().as_ref() };
        // SAFETY: NCCL makes one call on an end at a time.
        if let Some(mut entered) = unsafe { this.enter() } {
            let Receiver { end, asked, .. } = &mut *entered;
            // SAFETY: NCCL promises that `done` and `sizes` have room for the answers, or are null.
            if let Some(code) = unsafe { asked.test_fast(&mut **end, request, done, sizes) } {
                return code;
            }
            return Receiver::test_again(entered);
        }
        Receiver::test_locked(request, done, sizes, this)
    }

    unsafe fn carriers(&self, request: &Request) -> Option<Vec<Carrier>> {
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { invar::raw::call(self, |this| this.end.carriers(request)) }
    }

    unsafe fn close(&self) {
        // SAFETY: The caller makes no other call.
        let mut locked = unsafe { self.lock() };
        locked.end_visits();
        // SAFETY: Nobody uses the end any more.
        let end = unsafe { ManuallyDrop::take(&mut locked.end) };
        drop(locked);
        Box::new(end).close();
    }
}

impl<E: RecvEnd> Receiver<E> {
    /// `irecv` for either type of the sizes: tries the fast path first.
    ///
    /// # Safety
    /// NCCL's contract holds, as [`NetEnd::irecv`] asks.
    #[inline(always)]
    unsafe fn irecv_any<S: Bytes>(
        this: &Biased<Self>,
        n: c_int,
        data: *mut *mut c_void,
        sizes: *mut S,
        tags: *mut c_int,
        mhandles: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        let post_one = || {
            // The hint keeps LLVM from joining the checks, which would take more registers.
            if n != 1 || request.is_null() {
                cold_path();
                return None;
            }
            // SAFETY: NCCL makes one call on an end at a time.
            let mut entered = unsafe { this.enter() }?;
            let Self { end, low_half, .. } = &mut *entered;
            // SAFETY: NCCL promises one entry in each array, the contract of `RecvEnd`, and room for a
            // request.
            unsafe {
                let size = only(sizes)?.bytes();
                if size > MESSAGE_BYTES_MAX {
                    cold_path();
                    return None;
                }
                let buf = buf(only(data)?, size, only(tags)?, only(mhandles)?);
                let started = |started| _ = give(Some(started), *low_half, request);
                (end.irecv_fast(slice::from_ref(&buf), started) == Fast::Done(()))
                    .then_some(Code::SUCCESS)
            }
        };
        post_one()
            .unwrap_or_else(|| Self::irecv_slow(this, n, data, sizes, tags, mhandles, request))
    }

    /// The slow path of `irecv`: checks all arguments and handles all cases.
    #[inline(never)]
    extern "C" fn irecv_slow<S: Bytes>(
        this: &Biased<Self>,
        n: c_int,
        data: *mut *mut c_void,
        sizes: *mut S,
        tags: *mut c_int,
        mhandles: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> Code {
        let mut bufs = [const { MaybeUninit::uninit() }; RECVS_MAX];
        let Some(bufs) = usize::try_from(n).ok().and_then(|n| bufs.get_mut(..n)) else {
            return misused(format_args!("irecv of {n} buffers; 1 to {RECVS_MAX} are allowed")).0;
        };
        if data.is_null() || sizes.is_null() || tags.is_null() || mhandles.is_null() {
            return null("irecv: memory, sizes, tags or registrations").0;
        }
        if request.is_null() {
            return null("irecv: request").0;
        }
        for (i, to) in bufs.iter_mut().enumerate() {
            // SAFETY: NCCL promises `n` entries in each array.
            let (data, size, tag, mhandle) =
                unsafe { (*data.add(i), (*sizes.add(i)).bytes(), *tags.add(i), *mhandles.add(i)) };
            if size > MESSAGE_BYTES_MAX {
                return too_long("irecv", size);
            }
            to.write(buf(data, size, tag, mhandle));
        }
        // SAFETY: The loop has written each buffer.
        let bufs = unsafe { bufs.assume_init_ref() };
        // SAFETY: NCCL makes one call on an end at a time.
        if let Some(mut entered) = unsafe { this.enter() } {
            let Self { end, low_half, .. } = &mut *entered;
            // SAFETY: NCCL's contract includes the contract of `RecvEnd`, and promises room for a
            // request.
            unsafe {
                let started = |started| _ = give(Some(started), *low_half, request);
                if end.irecv_fast(bufs, started) == Fast::Done(()) {
                    return Code::SUCCESS;
                }
            }
        }
        Self::irecv_any_case(this, bufs, request)
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

    /// `test` while the end takes the mutex.
    #[cold]
    extern "C" fn test_locked(
        request: *mut c_void,
        done: *mut c_int,
        sizes: *mut c_int,
        this: &Biased<Self>,
    ) -> Code {
        // SAFETY: NCCL makes one call on an end at a time.
        let kept = unsafe { this.lock() }.asked.keep(request, done, sizes);
        if kept == Code::SUCCESS { Self::test_slow(this) } else { kept }
    }

    /// `test` after the poll of the fast path has booked completions.
    #[inline(never)]
    extern "C" fn test_again(mut entered: Entered<'_, Self>) -> Code {
        let Self { end, asked: Asked { request, done, sizes }, .. } = &mut *entered;
        if let Fast::Done(received) = end.take_fast(request) {
            // SAFETY: NCCL promises that `done` and `sizes` have room for the answers.
            return unsafe { answer(received, *done, *sizes) };
        }
        Self::test_group(entered)
    }

    /// `test` of a receive of several buffers that is done; tries the slow path for others.
    #[inline(never)]
    extern "C" fn test_group(mut entered: Entered<'_, Self>) -> Code {
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

/// The only entry of an array, or `None` if the array is null. To check one array and read it before the
/// next takes 12 instructions less than to check all arrays first.
///
/// # Safety
/// The array is null or has one entry.
#[inline(always)]
unsafe fn only<T: Copy>(array: *const T) -> Option<T> {
    if array.is_null() {
        cold_path();
        return None;
    }
    // SAFETY: The caller upholds this function's safety contract.
    Some(unsafe { *array })
}

#[inline(always)]
fn buf(data: *mut c_void, size: usize, tag: c_int, mhandle: *mut c_void) -> RecvBuf {
    RecvBuf { addr: data.addr() as u64, len: size as u32, tag: tag as u32, rkey: rkey(mhandle) }
}
