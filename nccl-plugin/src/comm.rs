//! Comms: an end of a connection, and what `entry` calls, compiled for the NIC that it is on.

mod recv;
mod send;

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use invar::Device;
use invar::raw::{AnyRecv, AnySend, End};

use crate::abi::Code;
use crate::outcome::{Failed, Outcome, call, failed, misused};
use crate::place::{self, Name, Place};
use crate::profiler::{self, Lanes};

/// Longest message: what the 32-bit fields on the wire can say.
pub(crate) const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// One end of a connection, as NCCL has it.
#[repr(C)]
pub(crate) struct Comm {
    pub(crate) calls: Calls,
    /// The `E` that the calls are compiled for; they have it for themselves, one at a time.
    end: NonNull<()>,
    rest: Box<Rest>,
}

/// What is not needed for a message.
struct Rest {
    kind: Kind,
    device: Device,
    lanes: Lanes,
    close: unsafe fn(NonNull<()>),
}

/// What can be done with an end of one kind.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Calls {
    pub(crate) isend: ISend,
    pub(crate) irecv_int: IRecv<c_int>,
    pub(crate) irecv: IRecv<usize>,
    pub(crate) iflush: IFlush,
    pub(crate) test: Test,
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
    pub(crate) fn put_send(end: AnySend, device: (c_int, &Device)) -> Result<Name, Failed> {
        match end {
            AnySend::Verbs(end) => Self::put(end, send::calls, Kind::Send, device),
            AnySend::Socket(end) => Self::put(end, send::calls, Kind::Send, device),
            AnySend::Soft(end) => Self::put(end, send::calls, Kind::Send, device),
            _ => Err(misused("a device of a kind that this plugin does not know")),
        }
    }

    /// Makes a receiving end known to NCCL.
    pub(crate) fn put_recv(end: AnyRecv, device: (c_int, &Device)) -> Result<Name, Failed> {
        match end {
            AnyRecv::Verbs(end) => Self::put(end, recv::calls, Kind::Recv, device),
            AnyRecv::Socket(end) => Self::put(end, recv::calls, Kind::Recv, device),
            AnyRecv::Soft(end) => Self::put(end, recv::calls, Kind::Recv, device),
            _ => Err(misused("a device of a kind that this plugin does not know")),
        }
    }

    fn put<E: End>(
        end: Box<E>,
        calls: fn(&E) -> Calls,
        kind: Kind,
        (number, device): (c_int, &Device),
    ) -> Result<Name, Failed> {
        let close = |end: NonNull<()>| {
            // SAFETY: it was made of a box, below, and goes with its comm.
            unsafe { Box::from_raw(end.cast::<E>().as_ptr()) }.close();
        };
        let lanes = Lanes { kind, device: number, over: end.lanes() };
        let comm = Comm {
            calls: calls(&end),
            end: NonNull::from(Box::leak(end)).cast(),
            rest: Box::new(Rest { kind, device: device.clone(), lanes, close }),
        };
        place::put(comm).map_err(|_| misused(format_args!("more than {} comms", place::PLACES)))
    }

    /// The device that it is on.
    pub(crate) fn device(&self) -> &Device {
        &self.rest.device
    }

    /// What its messages go over.
    pub(crate) fn lanes(&self) -> &Lanes {
        &self.rest.lanes
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
        unsafe { (self.rest.close)(self.end) };
    }
}

/// A call failed: says so, with both ends.
#[cold]
#[inline(never)]
fn call_failed(end: &dyn End, error: invar::ConnectionError) -> Code {
    failed(&end.failed(error)).0
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
    let place = place::find(comm)
        .ok_or_else(|| misused(format_args!("close{kind:?}: {comm:p} is no comm that is open")))?;
    // SAFETY: NCCL closes a comm once, and not during a call on it.
    unsafe {
        if place.comm().rest.kind != kind {
            return Err(misused(format_args!("close{kind:?} of a comm of the other kind")));
        }
        drop(place::remove(place));
    }
    profiler::forget(comm);
    Ok(())
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
