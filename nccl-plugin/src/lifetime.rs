//! The life of a comm: its handle when the connection is made, and its close.

use std::ffi::{c_int, c_void};

use invar::Device;
use invar::raw::{AnyRecv, AnySend, Keeper, RecvEnd, SendEnd};

use crate::abi::Code;
use crate::comm::{Comm, Kind};
use crate::handles::{self, HandleSlot};
use crate::outcome::{Failed, Outcome, call, failed, misused};
use crate::profiler;

/// Stores a sending end in the handle table and returns its handle.
pub(crate) fn put_send(end: AnySend, device: (c_int, &Device)) -> Result<*mut c_void, Failed> {
    match end {
        AnySend::Verbs(end) => put_sender(*end, device),
        AnySend::Socket(end) => put_sender(*end, device),
        AnySend::Soft(end) => put_sender(*end, device),
        AnySend::Custom(end) => put_sender(end, device),
        _ => Err(unknown_kind()),
    }
}

/// Stores a receiving end in the handle table and returns its handle.
pub(crate) fn put_recv(end: AnyRecv, device: (c_int, &Device)) -> Result<*mut c_void, Failed> {
    match end {
        AnyRecv::Verbs(end) => put_receiver(*end, device),
        AnyRecv::Socket(end) => put_receiver(*end, device),
        AnyRecv::Soft(end) => put_receiver(*end, device),
        AnyRecv::Custom(end) => put_receiver(end, device),
        _ => Err(unknown_kind()),
    }
}

fn put_sender<E: SendEnd + 'static>(
    end: E,
    device: (c_int, &Device),
) -> Result<*mut c_void, Failed> {
    let keeper = Keeper::of_namespace().map_err(|error| failed(&error))?;
    handles::put(|handle| Comm::sending(end, handle, device, &keeper)).ok_or_else(too_many)
}

fn put_receiver<E: RecvEnd + 'static>(
    end: E,
    device: (c_int, &Device),
) -> Result<*mut c_void, Failed> {
    let keeper = Keeper::of_namespace().map_err(|error| failed(&error))?;
    handles::put(|handle| Comm::receiving(end, handle, device, &keeper)).ok_or_else(too_many)
}

fn unknown_kind() -> Failed {
    misused("a device of a kind that this plugin does not know")
}

fn too_many() -> Failed {
    misused(format_args!("more than {} comms", handles::COMMS_MAX))
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
    let slot: &HandleSlot = handles::find(comm)
        .ok_or_else(|| misused(format_args!("close{kind:?}: {comm:p} is no comm that is open")))?;
    // SAFETY: NCCL closes a comm once, and makes no other call on the comm meanwhile.
    unsafe {
        if slot.comm().kind() != kind {
            return Err(misused(format_args!("close{kind:?} of a comm of the other kind")));
        }
        drop(handles::remove(slot));
    }
    profiler::forget(comm);
    Ok(())
}
