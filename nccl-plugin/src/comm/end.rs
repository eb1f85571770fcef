//! An end of a connection as its comm keeps it, with the calls that are alike in both directions. The main one
//! is NCCL's `test`.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use invar::raw::{
    Attention, Biased, Carrier, End, Entered, Fast, KeptEnd, Request, Rest, Snapshot,
};

use crate::abi::Code;
use crate::outcome::null;
use crate::request;

/// An end of a connection; `D` is its direction.
#[repr(C)]
pub(super) struct CommEnd<E, D> {
    /// The end; `close` takes it. It comes first, so that its address needs no addition.
    pub(super) end: ManuallyDrop<E>,
    /// The low half of the end's requests.
    pub(super) low_half: u32,
    pub(super) asked: Asked,
    direction: PhantomData<fn() -> D>,
}

/// The functions of an end that both directions share.
pub(crate) trait EitherEnd {
    /// Returns what carries a pending request, or `None` if that is not known yet.
    ///
    /// # Safety
    /// No other call on the end runs.
    unsafe fn carriers(&self, request: &Request) -> Option<Vec<Carrier>>;

    /// Closes the end.
    ///
    /// # Safety
    /// The caller calls this once, and makes no call afterwards.
    unsafe fn close(&self);
}

/// The part of `test` after the fast path, which differs between the directions.
pub(super) trait Tested: Sized {
    /// Answers for a request that is not done as a single message.
    extern "C" fn test_rest(entered: Entered<'_, Self>) -> Code;

    /// The slow path of `test`: handles all cases for the request in `asked`.
    extern "C" fn test_slow(this: &Biased<Self>) -> Code;
}

/// The arguments of a test. Each end keeps them in a field during the test, where they take no
/// registers: this saves 8 instructions per test.
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) done: *mut c_int,
    pub(super) sizes: *mut c_int,
}

impl<E, D> CommEnd<E, D> {
    pub(super) fn new(end: E, low_half: u32) -> Self {
        let end = ManuallyDrop::new(end);
        CommEnd { end, low_half, asked: Asked::default(), direction: PhantomData }
    }
}

impl<E: End, D> CommEnd<E, D>
where
    Self: Tested,
{
    /// Tests a request of the end that `end` points to and that NCCL has entered.
    ///
    /// # Safety
    /// NCCL's contract of `test` holds, and `end` points to an end of this type.
    pub(super) unsafe extern "C" fn test(
        request: *mut c_void,
        done: *mut c_int,
        sizes: *mut c_int,
        end: NonNull<c_void>,
    ) -> Code {
        // SAFETY: The caller gives a pointer to an end of this type, which NCCL has entered by this door.
        let mut entered = unsafe { end.cast::<Biased<Self>>().as_ref().entered() };
        let Self { end, asked, .. } = &mut *entered;
        // SAFETY: NCCL promises that `done` and `sizes` have room for the answers, or are null.
        match unsafe { asked.test_fast(&mut **end, request, done, sizes) } {
            Some(code) => code,
            None => Self::test_again(entered),
        }
    }

    /// [`CommEnd::test`] with the mutex.
    ///
    /// # Safety
    /// The caller makes the promises of [`CommEnd::test`].
    #[cold]
    pub(super) unsafe extern "C" fn test_locked(
        request: *mut c_void,
        done: *mut c_int,
        sizes: *mut c_int,
        end: NonNull<c_void>,
    ) -> Code {
        // SAFETY: The caller gives a pointer to an end of this type.
        let this: &Biased<Self> = unsafe { end.cast().as_ref() };
        // SAFETY: NCCL, which is the owner, has entered by the shut door, where it holds nothing.
        unsafe { this.bias().leave() };
        // SAFETY: NCCL makes one call on an end at a time, and promises room for the answers.
        match unsafe { this.lock().asked.keep(request, done, sizes) } {
            Some(code) => code,
            None => Self::test_slow(this),
        }
    }

    /// `test` after the poll of the fast path has booked completions.
    #[inline(never)]
    extern "C" fn test_again(mut entered: Entered<'_, Self>) -> Code {
        let Self { end, asked: Asked { request, done, sizes }, .. } = &mut *entered;
        match end.test_fast(request) {
            // SAFETY: NCCL promises that `done` and `sizes` have room for the answers.
            Fast::Done(size) => unsafe { answer(size, *done, *sizes) },
            Fast::Pending => Code::SUCCESS,
            Fast::Slow => Self::test_rest(entered),
        }
    }
}

impl<E: End, D> KeptEnd for CommEnd<E, D> {
    fn look(&mut self) -> Attention {
        self.end.look()
    }

    fn attention(&self) -> Attention {
        self.end.attention()
    }

    fn rest(&self) -> Option<Rest<'_>> {
        self.end.rest()
    }

    fn called(&mut self) {
        self.end.called();
    }

    fn snapshot(&self, counts: bool) -> Option<Snapshot> {
        self.end.snapshot(counts)
    }
}

impl<E: End, D> EitherEnd for Biased<CommEnd<E, D>> {
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

// SAFETY: Only NCCL's calls use the pointers, one call at a time.
unsafe impl Send for Asked {}

impl Default for Asked {
    fn default() -> Self {
        Asked { request: Request::from_raw(0), done: ptr::null_mut(), sizes: ptr::null_mut() }
    }
}

impl Asked {
    /// Keeps the arguments of a test, and reports its request as pending. Returns the code of a wrong call.
    ///
    /// # Safety
    /// `done` is null or has room for a flag.
    #[inline(always)]
    unsafe fn keep(
        &mut self,
        request: *mut c_void,
        done: *mut c_int,
        sizes: *mut c_int,
    ) -> Option<Code> {
        if done.is_null() {
            return Some(null("test: done").0);
        }
        self.request = Request::from_raw(request::token(request));
        (self.done, self.sizes) = (done, sizes);
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { done.write(0) };
        None
    }

    /// Tries the fast path of NCCL's `test`. Returns `None` if the slow path must answer. By then the
    /// arguments are kept here.
    ///
    /// # Safety
    /// `done` is null or has room for a flag, and `sizes` is null or has room for a size.
    #[inline(always)]
    unsafe fn test_fast(
        &mut self,
        end: &mut impl End,
        request: *mut c_void,
        done: *mut c_int,
        sizes: *mut c_int,
    ) -> Option<Code> {
        // SAFETY: The caller upholds this function's safety contract.
        unsafe {
            if let Some(code) = self.keep(request, done, sizes) {
                return Some(code);
            }
            match end.test_fast(&self.request) {
                Fast::Done(size) => Some(answer(size, self.done, self.sizes)),
                Fast::Pending => Some(Code::SUCCESS),
                Fast::Slow => None,
            }
        }
    }
}

/// Reports that a request with one size is done.
///
/// # Safety
/// `done` has room for a flag, and `sizes` is null or has room for a size.
#[inline(always)]
pub(super) unsafe fn answer(size: u32, done: *mut c_int, sizes: *mut c_int) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    unsafe {
        done.write(1);
        if !sizes.is_null() {
            sizes.write(size as c_int);
        }
    }
    Code::SUCCESS
}
