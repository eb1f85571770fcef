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
use crate::outcome::{Failed, Outcome, call, failed, misused};
use crate::place::{self, Name};

/// Longest message: what the 32-bit fields on the wire can say.
pub(crate) const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// One end of a connection, as NCCL has it.
pub(crate) struct Comm {
    pub(crate) name: Name,
    calls: &'static Calls,
    /// The `E` that the calls are compiled for; they have it for themselves, one at a time.
    end: NonNull<()>,
    pub(crate) device: Device,
}

/// What can be done with an end of one kind.
struct Calls {
    kind: Kind,
    isend: ISend,
    irecv_int: IRecv<c_int>,
    irecv: IRecv<usize>,
    iflush: IFlush,
    test: unsafe extern "C" fn(&Comm, u32, *mut c_int, *mut c_int) -> Code,
    drop: unsafe fn(NonNull<()>),
}

type ISend =
    unsafe extern "C" fn(&Comm, *mut c_void, usize, c_int, *mut c_void, *mut *mut c_void) -> Code;
type IRecv<S> = unsafe extern "C" fn(
    &Comm,
    c_int,
    *mut *mut c_void,
    *mut S,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;
type IFlush = unsafe extern "C" fn(
    &Comm,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;

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
            AnySend::Verbs(end) => Self::put(send::with_calls(end), device),
            AnySend::Soft(end) => Self::put(send::with_calls(end), device),
            _ => Err(misused("a device of a kind that this plugin does not know")),
        }
    }

    /// Makes a receiving end known to NCCL.
    pub(crate) fn put_recv(end: AnyRecv, device: &Device) -> Result<Name, Failed> {
        match end {
            AnyRecv::Verbs(end) => Self::put(recv::with_calls(end), device),
            AnyRecv::Soft(end) => Self::put(recv::with_calls(end), device),
            _ => Err(misused("a device of a kind that this plugin does not know")),
        }
    }

    fn put((end, calls): (NonNull<()>, &'static Calls), device: &Device) -> Result<Name, Failed> {
        // Dropped where there is no place for it.
        let comm = |name| Comm { name, calls, end, device: device.clone() };
        place::put(comm).ok_or_else(|| {
            // SAFETY: the end is of the kind that the calls are for, and nobody has it.
            unsafe { (calls.drop)(end) };
            misused(format_args!("more than {} comms", place::PLACES))
        })
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

    /// A call failed: says so, with both ends.
    #[cold]
    #[inline(never)]
    fn failed(&self, end: &dyn End, error: invar::ConnectionError) -> Code {
        failed(&end.failed(error)).0
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: the end is of the kind that the calls are for, and goes with its comm.
        unsafe { (self.calls.drop)(self.end) };
    }
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
    // SAFETY: NCCL does not close a comm during a call on it.
    match unsafe { place::find(Name::from_ptr(comm)) } {
        // SAFETY: the arguments are what NCCL promises.
        Some(comm) => unsafe { (comm.calls.isend)(comm, data, size, tag, mhandle, request) },
        None => unknown("isend", comm),
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
    // SAFETY: as in `isend`.
    match unsafe { place::find(Name::from_ptr(comm)) } {
        // SAFETY: as in `isend`.
        Some(comm) => unsafe {
            (comm.calls.irecv_int)(comm, n, data, sizes, tags, mhandles, request)
        },
        None => unknown("irecv", comm),
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
    // SAFETY: as in `isend`.
    match unsafe { place::find(Name::from_ptr(comm)) } {
        // SAFETY: as in `isend`.
        Some(comm) => unsafe { (comm.calls.irecv)(comm, n, data, sizes, tags, mhandles, request) },
        None => unknown("irecv", comm),
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
    // SAFETY: as in `isend`.
    match unsafe { place::find(Name::from_ptr(comm)) } {
        // SAFETY: as in `isend`.
        Some(comm) => unsafe { (comm.calls.iflush)(comm, n, data, sizes, mhandles, request) },
        None => unknown("iflush", comm),
    }
}

/// `test`.
pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> Code {
    let (name, token) = Name::of_request(request);
    // SAFETY: as in `isend`.
    match unsafe { place::find(name) } {
        // SAFETY: as in `isend`.
        Some(comm) => unsafe { (comm.calls.test)(comm, token, done, sizes) },
        None => unknown("test", request),
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
    let name = Name::from_ptr(comm);
    // SAFETY: NCCL closes a comm once.
    match unsafe { place::find(name) } {
        Some(comm) if comm.calls.kind == kind => {}
        Some(_) => return Err(misused(format_args!("close{kind:?} of a comm of the other kind"))),
        None => return Err(Failed(unknown("close", comm))),
    }
    drop(place::remove(name));
    Ok(())
}

#[cold]
#[inline(never)]
fn unknown(function: &str, what: *mut c_void) -> Code {
    misused(format_args!("{function}: {what:p} is no comm, or no request of one, that is open")).0
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
