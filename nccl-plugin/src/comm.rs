//! The data path: what NCCL calls for each message.
//!
//! A call finds its comm, and goes on in the code that was compiled for the comm's NIC, without
//! coming back: one indirect jump. Most is passed on in the registers in which NCCL put it.

mod recv;
mod send;

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use invar::Device;
use invar::raw::{AnyRecv, AnySend, End};

use crate::abi::Code;
use crate::outcome::{Failed, Outcome, call, caught, failed, misused};
use crate::place::{self, Name, Place};

/// Longest message: what the 32-bit fields on the wire can say.
pub(crate) const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// One end of a connection, as NCCL has it.
#[repr(C)]
pub(crate) struct Comm {
    calls: Calls,
    /// The `E` that the calls are compiled for; they have it for themselves, one at a time.
    end: NonNull<()>,
    rest: Box<Rest>,
}

/// What is not needed for a message.
struct Rest {
    kind: Kind,
    device: Device,
    drop: unsafe fn(NonNull<()>),
}

/// What can be done with an end of one kind.
#[derive(Clone, Copy)]
#[repr(C)]
struct Calls {
    isend: ISend,
    irecv_int: IRecv<c_int>,
    irecv: IRecv<usize>,
    iflush: IFlush,
    test: Test,
}

/// Place, memory, bytes, tag, registration, request.
type ISend =
    unsafe extern "C" fn(&Place, *mut c_void, usize, c_int, *mut c_void, *mut *mut c_void) -> Code;
/// Place, number of buffers, and of each memory, bytes, tag, registration; request.
type IRecv<S> = unsafe extern "C" fn(
    &Place,
    c_int,
    *mut *mut c_void,
    *mut S,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;
/// Place, number of buffers, and of each memory, bytes, registration; request.
type IFlush = unsafe extern "C" fn(
    &Place,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;
/// Place, whether it is done, bytes of each buffer, request: the second and third are where NCCL
/// has put them.
type Test = unsafe extern "C" fn(&Place, *mut c_int, *mut c_int, *mut c_void) -> Code;

/// Which end a comm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Recv,
}

impl Comm {
    /// Makes a sending end known to NCCL.
    pub(crate) fn put_send(end: AnySend, device: &Device) -> Result<Name, Failed> {
        match end {
            AnySend::Verbs(end) => Self::put(end, send::calls, Kind::Send, device),
            AnySend::Soft(end) => Self::put(end, send::calls, Kind::Send, device),
            _ => Err(misused("a device of a kind that this plugin does not know")),
        }
    }

    /// Makes a receiving end known to NCCL.
    pub(crate) fn put_recv(end: AnyRecv, device: &Device) -> Result<Name, Failed> {
        match end {
            AnyRecv::Verbs(end) => Self::put(end, recv::calls, Kind::Recv, device),
            AnyRecv::Soft(end) => Self::put(end, recv::calls, Kind::Recv, device),
            _ => Err(misused("a device of a kind that this plugin does not know")),
        }
    }

    fn put<E>(
        end: Box<E>,
        calls: fn(&E) -> Calls,
        kind: Kind,
        device: &Device,
    ) -> Result<Name, Failed> {
        let drop = |end: NonNull<()>| {
            // SAFETY: it was made of a box, below, and goes with its comm.
            drop(unsafe { Box::from_raw(end.cast::<E>().as_ptr()) });
        };
        let comm = Comm {
            calls: calls(&end),
            end: NonNull::from(Box::leak(end)).cast(),
            rest: Box::new(Rest { kind, device: device.clone(), drop }),
        };
        place::put(comm).map_err(|_| misused(format_args!("more than {} comms", place::PLACES)))
    }

    /// The device that it is on.
    pub(crate) fn device(&self) -> &Device {
        &self.rest.device
    }

    /// The end, for a call that NCCL makes.
    ///
    /// # Safety
    /// `E` is what the calls of this comm are compiled for, and no other call has it.
    #[expect(clippy::mut_from_ref, reason = "NCCL makes one call at a time")]
    #[inline(always)]
    unsafe fn end<E>(&self) -> &mut E {
        // SAFETY: the caller's promise; it lives as long as the comm.
        unsafe { self.end.cast::<E>().as_mut() }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: the end is of the kind that this is for, and goes with its comm.
        unsafe { (self.rest.drop)(self.end) };
    }
}

/// A call failed: says so, with both ends.
#[cold]
#[inline(never)]
fn call_failed(end: &dyn End, error: invar::ConnectionError) -> Code {
    failed(&end.failed(error)).0
}

/// `isend` before v9.
pub(crate) unsafe extern "C" fn isend_int(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // A negative size becomes one that is too long.
    // SAFETY: the caller's promise.
    unsafe { isend(comm, data, size as usize, tag, mhandle, request) }
}

/// `isend` of v9.
pub(crate) unsafe extern "C" fn isend(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    match place::find(comm) {
        // SAFETY: NCCL does not close a comm during a call on it, and promises the arguments.
        Some(place) => unsafe {
            (place.comm().calls.isend)(place, data, size, tag, mhandle, request)
        },
        None => unknown(Function::ISend, comm),
    }
}

/// `isend` since v10.
pub(crate) unsafe extern "C" fn isend_v10(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    _phandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { isend(comm, data, size, tag, mhandle, request) }
}

/// `irecv` before v9.
pub(crate) unsafe extern "C" fn irecv_int(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    match place::find(comm) {
        // SAFETY: as in `isend`.
        Some(place) => unsafe {
            (place.comm().calls.irecv_int)(place, n, data, sizes, tags, mhandles, request)
        },
        None => unknown(Function::IRecv, comm),
    }
}

/// `irecv` of v9.
pub(crate) unsafe extern "C" fn irecv(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    match place::find(comm) {
        // SAFETY: as in `isend`.
        Some(place) => unsafe {
            (place.comm().calls.irecv)(place, n, data, sizes, tags, mhandles, request)
        },
        None => unknown(Function::IRecv, comm),
    }
}

/// `irecv` since v10.
pub(crate) unsafe extern "C" fn irecv_v10(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    _phandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { irecv(comm, n, data, sizes, tags, mhandles, request) }
}

/// `iflush`.
pub(crate) unsafe extern "C" fn iflush(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    match place::find(comm) {
        // SAFETY: as in `isend`.
        Some(place) => unsafe {
            (place.comm().calls.iflush)(place, n, data, sizes, mhandles, request)
        },
        None => unknown(Function::IFlush, comm),
    }
}

/// `test`.
pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> Code {
    match place::find_by_request(request) {
        // SAFETY: as in `isend`.
        Some(place) => unsafe { (place.comm().calls.test)(place, done, sizes, request) },
        None => unknown(Function::Test, request),
    }
}

/// `closeSend`.
pub(crate) unsafe extern "C" fn close_send(comm: *mut c_void) -> Code {
    call(|| close(comm, Kind::Send))
}

/// `closeRecv`.
pub(crate) unsafe extern "C" fn close_recv(comm: *mut c_void) -> Code {
    call(|| close(comm, Kind::Recv))
}

fn close(comm: *mut c_void, kind: Kind) -> Outcome {
    if comm.is_null() {
        return Ok(());
    }
    let Some(place) = place::find(comm) else { return Err(Failed(unknown(Function::Close, comm))) };
    // SAFETY: NCCL closes a comm once, and not during a call on it.
    unsafe {
        if place.comm().rest.kind != kind {
            return Err(misused(format_args!("close{kind:?} of a comm of the other kind")));
        }
        drop(place::remove(place));
    }
    Ok(())
}

/// What was called.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
enum Function {
    ISend,
    IRecv,
    IFlush,
    Test,
    Close,
}

/// A call on what NCCL does not have of us. A C function, since those do not unwind: who calls it
/// need not be prepared for that.
#[cold]
#[inline(never)]
extern "C" fn unknown(function: Function, what: *mut c_void) -> Code {
    caught(|| {
        misused(format_args!(
            "{function:?}: {what:p} is no comm, or no request of one, that is open"
        ))
        .0
    })
}

/// A call that the other end of a connection takes.
#[cold]
#[inline(never)]
fn wrong_end(function: &str) -> Code {
    misused(format_args!("{function} on the other end of a connection")).0
}

/// A size that no work request can say.
#[cold]
#[inline(never)]
fn too_long(function: &str, size: usize) -> Code {
    let size = size as isize;
    log::warn!("{function} of {size} bytes; a message has at most {MESSAGE_BYTES_MAX}");
    Code::INVALID_USAGE
}
