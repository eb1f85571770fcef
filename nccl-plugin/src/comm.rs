//! Comms: NCCL's ends of connections, behind one trait for all kinds of NIC.

mod end;
mod recv;
mod send;

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use invar::raw::{
    Bias, Biased, Carrier, End, Keeper, KeeperGuard, KeptEnd, RecvEnd, Request, SendEnd,
};
use invar::{ConnectionError, Device};

use crate::abi::Code;
use crate::outcome::{caught, failed, misused, null};
use crate::request;

use end::{CommEnd, EitherEnd, Tested};

/// Maximum message length in bytes: the 32-bit fields on the wire hold no more.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// Number of transfers without events after one whose events nobody took. NCCL gives a step to every transfer, with a
/// profiler and without.
const UNWATCHED: u32 = 63;

/// NCCL's end of a connection.
pub(crate) struct Comm {
    /// Dropped first, so that the keeper forgets the end before it is closed.
    guard: Option<KeeperGuard>,
    /// The end, under a lock that is biased towards NCCL's calls. NCCL makes one at a time. The pointer is
    /// an [`Arc`]'s.
    end: NonNull<dyn NetEnd>,
    /// The end's bias. Its door is a [`Test`].
    bias: NonNull<Bias>,
    kind: Kind,
    device: Device,
    device_number: c_int,
    /// Number of transfers without events, until the profiler is asked again.
    unwatched: AtomicU32,
}

/// Direction of a comm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Recv,
}

/// `test`, with its end as the last argument. So the other arguments stay in the registers in which NCCL
/// passed them, and no table of the end's functions is read: this saves 4 instructions per test.
///
/// It is the door by which NCCL enters: while somebody else looks at the end, NCCL finds a function that takes
/// the mutex. To compare instead would take 2 instructions more per test.
type Test = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int, NonNull<c_void>) -> Code;

/// An end of a connection with the calls of NCCL's function table. The arguments are the table's and are
/// not checked yet.
///
/// # Safety
/// NCCL's contract holds for each unsafe function. Pointers are null or point to what the table says.
/// Memory stays registered and untouched until its request is done.
pub(crate) trait NetEnd: EitherEnd {
    unsafe extern "C" fn isend(
        &self,
        _data: *mut c_void,
        _size: usize,
        _tag: c_int,
        _mhandle: *mut c_void,
        _request: *mut *mut c_void,
    ) -> Code {
        wrong_end("isend")
    }

    /// Posts a receive of one buffer. Its arguments fit into registers, in this order without a move.
    unsafe extern "C" fn irecv_one(
        &self,
        _request: *mut *mut c_void,
        _data: *mut c_void,
        _size: usize,
        _tag: c_int,
        _mhandle: *mut c_void,
    ) -> Code {
        wrong_end("irecv")
    }

    /// Posts a receive of any other number of buffers. Its sizes are `int`, as before v9 of the interface.
    unsafe extern "C" fn irecv_int(
        &self,
        _n: c_int,
        _data: *mut *mut c_void,
        _sizes: *mut c_int,
        _tags: *mut c_int,
        _mhandles: *mut *mut c_void,
        _request: *mut *mut c_void,
    ) -> Code {
        wrong_end("irecv")
    }

    /// Posts a receive of any number of buffers except one. Its sizes are `size_t`, as since v9 of the interface.
    unsafe extern "C" fn irecv(
        &self,
        _n: c_int,
        _data: *mut *mut c_void,
        _sizes: *mut usize,
        _tags: *mut c_int,
        _mhandles: *mut *mut c_void,
        _request: *mut *mut c_void,
    ) -> Code {
        wrong_end("irecv")
    }

    unsafe extern "C" fn iflush(
        &self,
        _n: c_int,
        _data: *mut *mut c_void,
        _sizes: *mut c_int,
        _mhandles: *mut *mut c_void,
        _request: *mut *mut c_void,
    ) -> Code {
        wrong_end("iflush")
    }
}

impl Comm {
    /// Makes the comm of a sending end; `handle` is the comm's handle.
    pub(crate) fn sending<E: SendEnd + 'static>(
        end: E,
        handle: *mut c_void,
        device: (c_int, &Device),
        keeper: &Keeper,
    ) -> Self {
        Self::new(Kind::Send, CommEnd::new(end, request::low_half(handle)), device, keeper)
    }

    /// Makes the comm of a receiving end; `handle` is the comm's handle.
    pub(crate) fn receiving<E: RecvEnd + 'static>(
        end: E,
        handle: *mut c_void,
        device: (c_int, &Device),
        keeper: &Keeper,
    ) -> Self {
        Self::new(Kind::Recv, CommEnd::new(end, request::low_half(handle)), device, keeper)
    }

    fn new<E: End + 'static, D: 'static>(
        kind: Kind,
        end: CommEnd<E, D>,
        (device_number, device): (c_int, &Device),
        keeper: &Keeper,
    ) -> Self
    where
        CommEnd<E, D>: Tested,
        Biased<CommEnd<E, D>>: NetEnd,
    {
        let (open, shut): (Test, Test) = (CommEnd::<E, D>::test, CommEnd::<E, D>::test_locked);
        let end = Arc::new(Biased::with_doors(end, open as *mut (), shut as *mut ()));
        // SAFETY: NCCL is the owner, and comes by these words.
        let bias = NonNull::from_ref(unsafe { end.bias() });
        let guard = keeper.keep(Arc::clone(&end));
        // SAFETY: An `Arc`'s pointer is not null.
        let end: NonNull<dyn NetEnd> =
            unsafe { NonNull::new_unchecked(Arc::into_raw(end).cast_mut()) };
        let (device, unwatched) = (device.clone(), AtomicU32::new(0));
        Comm { guard: Some(guard), end, bias, kind, device, device_number, unwatched }
    }

    /// The device of the connection.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// NCCL's number of the connection's device.
    pub(crate) fn device_number(&self) -> c_int {
        self.device_number
    }

    /// The direction of this comm.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The end of this comm.
    #[inline(always)]
    pub(crate) fn end(&self) -> &dyn NetEnd {
        // SAFETY: The end lives as long as the comm.
        unsafe { self.end.as_ref() }
    }

    /// Tests a request of this comm.
    ///
    /// # Safety
    /// No other call on the comm runs. `done` and `sizes` are null or have room for the answers.
    #[inline(always)]
    pub(crate) unsafe fn test(
        &self,
        request: *mut c_void,
        done: *mut c_int,
        sizes: *mut c_int,
    ) -> Code {
        // SAFETY: The bias lives as long as the end. It returns one of the functions that `new` has
        // given it, and the caller upholds the rest of the contract.
        unsafe {
            let test = mem::transmute::<*mut (), Test>(self.bias.as_ref().enter());
            test(request, done, sizes, self.end.cast())
        }
    }

    /// Returns what carries a pending request, or `None` if that is not known yet.
    ///
    /// # Safety
    /// No other call on the comm runs.
    pub(crate) unsafe fn carriers(&self, request: *mut c_void) -> Option<Vec<Carrier>> {
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { self.end().carriers(&Request::from_raw(request::token(request))) }
    }

    /// Notes that nobody took the events of a transfer. The next ones have none.
    pub(crate) fn note_unwatched(&self) {
        self.unwatched.store(UNWATCHED, Ordering::Relaxed);
    }

    /// Counts a transfer. Returns whether it has no events, because nobody took those of an earlier one.
    pub(crate) fn take_skip(&self) -> bool {
        let left = self.unwatched.load(Ordering::Relaxed);
        // NCCL makes one call on a comm at a time.
        self.unwatched.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        drop(self.guard.take());
        // SAFETY: NCCL makes no call on a comm that it has closed. The pointer came from an `Arc`, and only
        // this drop turns it back into one.
        unsafe {
            self.end().close();
            drop(Arc::from_raw(self.end.as_ptr()));
        }
    }
}

/// Writes the request of a started call for NCCL, or null, which makes NCCL repeat the call.
///
/// # Safety
/// `request` has room for a request.
#[inline(always)]
unsafe fn give(started: Option<Request>, low_half: u32, request: *mut *mut c_void) -> Code {
    let given = match started {
        Some(started) => request::with_token(started.raw(), low_half),
        None => ptr::null_mut(),
    };
    // SAFETY: The caller upholds this function's safety contract.
    unsafe { request.write(given) };
    Code::SUCCESS
}

/// A buffer size in the type that a version of the interface uses.
pub(crate) trait Bytes: Copy {
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

/// Makes a call on an end that may take the mutex.
///
/// # Safety
/// No other call of NCCL on the end runs.
unsafe fn call<T: KeptEnd>(end: &Biased<T>, make: impl FnOnce(&mut T) -> Code) -> Code {
    // SAFETY: NCCL is the owner of the end, and the caller promises one call at a time.
    caught(|| unsafe { invar::raw::call(end, make) })
}

/// Logs the error of a failed call with both ends of the connection, and returns its code.
#[cold]
#[inline(never)]
fn call_failed(end: &impl End, error: ConnectionError) -> Code {
    failed(&end.failed(error)).0
}

/// Reports a call that belongs to the other end of a connection.
#[cold]
#[inline(never)]
fn wrong_end(function: &str) -> Code {
    misused(format_args!("{function} on the other end of a connection")).0
}

/// Reports an array of a receive that is null.
#[cold]
#[inline(never)]
pub(crate) extern "C" fn null_array() -> Code {
    null("irecv: memory, sizes, tags or registrations").0
}

/// Reports a size that no work request can hold.
#[cold]
#[inline(never)]
fn too_long(function: &str, size: usize) -> Code {
    let size = size as isize;
    log::warn!("{function} of {size} bytes; a message has at most {MESSAGE_BYTES_MAX}");
    Code::INVALID_USAGE
}
