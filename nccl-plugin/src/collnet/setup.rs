//! The setup of collective comms: from `listen` and `connect` to a communicator.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use invar::{Communicator, Error, HubListener, Settings, UniqueId};

use super::comm::CollComm;
use crate::abi::{Code, HANDLE_BYTES};
use crate::context::{Context, is_free};
use crate::host;
use crate::outcome::{Failed, Outcome, call, failed, misused, null, refused};
use crate::registry::{Number, Registry};

static LISTENERS: Registry<Listening> = Registry::new(3);

/// Time limit for a rank to do its part in a collective. A rank starts a collective once its program has come to it,
/// and NCCL waits for late ranks without a limit. A rank that ends, or whose host is silent, still ends the comm.
const COLLECTIVE_WITHIN: Duration = Duration::from_secs(86_400);

/// A listening comm.
struct Listening {
    /// The place where ranks can meet, until `connect` takes it.
    hub: Mutex<Option<HubListener>>,
    id: UniqueId,
    /// NCCL's number of the device.
    device: c_int,
}

/// `listen` before v11.
pub(crate) unsafe extern "C" fn listen(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> Code {
    // SAFETY: The caller upholds this function's safety contract.
    call(|| unsafe { start_listening(device, handle, comm) })
}

/// `listen` since v11.
pub(crate) unsafe extern "C" fn listen_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> Code {
    call(|| {
        host::with_collnet()?;
        Context::from_ptr(context)?;
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { start_listening(device, handle, comm) }
    })
}

/// # Safety
/// The caller upholds NCCL's contract of `listen`.
unsafe fn start_listening(number: c_int, handle: *mut c_void, comm: *mut *mut c_void) -> Outcome {
    if handle.is_null() || comm.is_null() {
        return Err(null("listen: handle or comm"));
    }
    let host = host::with_collnet()?;
    let device = host.device(number)?.open(&host.settings)?;
    let hub = HubListener::bind(&device, &host.settings).map_err(|error| refused(&error))?;
    let id = hub.id();
    let listening = Listening { hub: Mutex::new(Some(hub)), id, device: number };
    // SAFETY: NCCL promises room for a handle and a comm.
    unsafe {
        handle.cast::<[u8; HANDLE_BYTES]>().write_unaligned(*id.as_bytes());
        comm.write(LISTENERS.put(|_| Arc::new(listening)).to_ptr());
    }
    Ok(())
}

/// `connect`. It waits for all ranks, at most `INVAR_CONNECT_TIMEOUT_MS`: NCCL takes a call that returns
/// without a comm for one that has failed (`coll_net.cc sharedConnect`).
pub(crate) unsafe extern "C" fn connect(
    handles: *mut *mut c_void,
    nranks: c_int,
    rank: c_int,
    listening: *mut c_void,
    comm: *mut *mut c_void,
) -> Code {
    call(|| {
        if comm.is_null() {
            return Err(null("connect: comm"));
        }
        // SAFETY: NCCL promises that `comm` has room for a comm.
        unsafe { comm.write(ptr::null_mut()) };
        let listening = LISTENERS.get(Number::from_ptr(listening));
        let listening = listening.ok_or_else(|| misused("connect: not a listening comm"))?;
        // SAFETY: The caller upholds NCCL's contract of `connect`.
        let (nranks, rank, first) = unsafe { first_handle(handles, nranks, rank) }?;
        let id = UniqueId::from_bytes(first)
            .map_err(|error| misused(format_args!("connect: the handle of rank 0 is {error}")))?;
        let made = listening.meet(&id, rank, nranks)?;
        // SAFETY: NCCL promises that `comm` has room for a comm.
        unsafe { comm.write(made.to_ptr()) };
        Ok(())
    })
}

/// Checks the arguments of `connect`. Returns number of ranks, rank, and the handle of rank 0.
///
/// # Safety
/// `handles` is null, or has `nranks` pointers, each of them null or of a handle.
unsafe fn first_handle(
    handles: *mut *mut c_void,
    nranks: c_int,
    rank: c_int,
) -> Result<(u32, u32, [u8; HANDLE_BYTES]), Failed> {
    let (Ok(count), Ok(number)) = (u32::try_from(nranks), u32::try_from(rank)) else {
        return Err(misused(format_args!("connect as rank {rank} of {nranks}")));
    };
    if number >= count {
        return Err(misused(format_args!(
            "connect as rank {rank} of {nranks}; ranks count from 0"
        )));
    }
    if handles.is_null() {
        return Err(null("connect: handles"));
    }
    // SAFETY: The caller promises `nranks` pointers.
    let handles = unsafe { slice::from_raw_parts(handles, count as usize) };
    if let Some(missing) = handles.iter().position(|handle| handle.is_null()) {
        return Err(null(&format!("connect: the handle of rank {missing}")));
    }
    // SAFETY: The caller promises that each pointer that is not null is one of a handle.
    let first = unsafe { handles[0].cast::<[u8; HANDLE_BYTES]>().read_unaligned() };
    Ok((count, number, first))
}

impl Listening {
    /// Joins the other ranks. Rank 0 first starts the hub, which lives as long as its comm.
    fn meet(&self, id: &UniqueId, rank: u32, nranks: u32) -> Result<Number, Failed> {
        let host = host::with_collnet()?;
        let device = host.device(self.device)?;
        if rank == 0 && *id != self.id {
            return Err(misused("connect: rank 0's own handle is not the first of the handles"));
        }
        let hub = self.hub.lock().unwrap_or_else(PoisonError::into_inner).take();
        let hub = hub.ok_or_else(|| misused("connect on a listening comm that has connected"))?;
        let settings = for_comm(&host.settings).communicator_nic(&device.info.name);
        let within = settings.connect_within();
        let hub = match rank {
            0 => Some(hub.start(nranks, within).map_err(|error| failed(&error))?),
            _ => None,
        };
        let communicator = Communicator::join(id, rank, nranks, &settings).map_err(not_met)?;
        log::info!(
            "collNet: rank {rank} of {nranks} on {}, over {}",
            device.info.name,
            communicator.transport()
        );
        Ok(CollComm::put(communicator, hub, settings))
    }
}

/// Returns the settings of a comm. A time limit for collectives that the user has set stays.
fn for_comm(settings: &Settings) -> Settings {
    match is_free(&settings.in_force(), "INVAR_COLL_TIMEOUT_MS") {
        true => settings.clone().collective_timeout(COLLECTIVE_WITHIN),
        false => settings.clone(),
    }
}

fn not_met(error: Error) -> Failed {
    log::warn!("collNet: {error}");
    Failed(crate::outcome::code(&error))
}

/// `closeListen`.
pub(crate) unsafe extern "C" fn close_listen(comm: *mut c_void) -> Code {
    call(|| {
        if comm.is_null() {
            return Ok(());
        }
        let listening = LISTENERS.remove(Number::from_ptr(comm));
        drop(listening.ok_or_else(|| misused("closeListen: not a listening comm"))?);
        Ok(())
    })
}

/// `closeColl`. The comm's collectives end first, so nobody uses their memory afterwards.
pub(crate) unsafe extern "C" fn close_coll(comm: *mut c_void) -> Code {
    call(|| if comm.is_null() { Ok(()) } else { CollComm::close(comm) })
}

/// Drops all listening comms: NCCL forgets those whose `connect` has failed.
pub(crate) fn abandon() {
    LISTENERS.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collective_waits_a_day_for_a_late_rank_where_the_user_has_set_nothing() {
        let limit = |set: Option<&str>| {
            let of =
                |name: &str| set.filter(|_| name == "INVAR_COLL_TIMEOUT_MS").map(str::to_owned);
            let settings = for_comm(&Settings::from_lookup(of).unwrap());
            let all = settings.in_force();
            all.iter().find(|of| of.info.name == "INVAR_COLL_TIMEOUT_MS").unwrap().value.clone()
        };
        assert_eq!(limit(None), "86400000");
        assert_eq!(limit(Some("600000")), "600000");
    }
}
