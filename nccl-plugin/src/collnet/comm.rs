//! Collective comms, their registrations, and their requests.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar::communicator::{Mover, Posted, RawOperation};
use invar::{Communicator, Hub};

use super::window::Bounce;
use crate::abi::Code;
use crate::outcome::{Failed, Outcome, failed, misused};
use crate::registry::{Number, Registry};

/// Most requests of a comm that are not done; with more, a call writes a null request, and NCCL repeats
/// it. NCCL itself has at most 32 (`NCCL_NET_MAX_REQUESTS`).
const REQUESTS_MAX: usize = 64;

static COMMS: Registry<CollComm> = Registry::new(4);
static REQUESTS: Registry<CollRequest> = Registry::new(5);
static REGISTRATIONS: Registry<Registered> = Registry::new(6);

/// A collective comm.
pub(super) struct CollComm {
    communicator: Communicator,
    /// The hub, on rank 0. The ranks tell each other there that they are done, so it ends last.
    hub: Option<Hub>,
    /// Number of requests that are not done.
    pending: Arc<AtomicUsize>,
}

/// Registered memory. Processors reduce, so a registration only says which memory is meant.
struct Registered {
    comm: Number,
    first: usize,
    len: usize,
}

/// A collective in progress.
struct CollRequest {
    comm: Number,
    posted: Posted,
    /// Length of the output in bytes.
    bytes: usize,
    /// Memory in the place of a window that consists of several parts.
    bounce: Option<Bounce>,
    /// The code of the collective, once it has failed.
    failed: Mutex<Option<Code>>,
    pending: Arc<AtomicUsize>,
}

impl CollComm {
    /// Stores a comm and returns its number.
    pub(super) fn put(communicator: Communicator, hub: Option<Hub>) -> Number {
        let pending = Arc::default();
        COMMS.put(Arc::new(CollComm { communicator, hub, pending }))
    }

    /// Finds a comm by NCCL's pointer.
    pub(super) fn find(function: &str, comm: *mut c_void) -> Result<(Number, Arc<Self>), Failed> {
        let number = Number::from_ptr(comm);
        let found = COMMS.get(number).map(|comm| (number, comm));
        found.ok_or_else(|| {
            misused(format_args!("{function}: {comm:p} is no collective comm that is open"))
        })
    }

    /// Closes a comm. If collectives are in progress, all ranks hear that this rank gives them up.
    pub(super) fn close(comm: *mut c_void) -> Outcome {
        let number = Number::from_ptr(comm);
        let closed = COMMS.remove(number).ok_or_else(|| {
            misused(format_args!("closeColl: {comm:p} is no collective comm that is open"))
        })?;
        if closed.pending.load(Ordering::Acquire) > 0 {
            closed.communicator.abort("collNet's comm is closed with collectives in progress");
        }
        let closed = Arc::into_inner(closed)
            .ok_or_else(|| misused("closeColl during another call on the comm"))?;
        let CollComm { communicator, hub, .. } = closed;
        drop(communicator);
        // The communicator has ended its collectives, so nobody uses their memory any more. The rank
        // leaves with the last request.
        REQUESTS.remove_all(|request| request.comm == number);
        REGISTRATIONS.remove_all(|registered| registered.comm == number);
        drop(hub);
        Ok(())
    }

    /// Number of this rank, and number of ranks.
    pub(super) fn rank(&self) -> (u32, u32) {
        (self.communicator.rank(), self.communicator.nranks())
    }

    /// Starts collectives. Returns `None` if too many are in progress.
    ///
    /// # Safety
    /// The caller makes the promises of [`Communicator::post`]. `bounce` may own the memory.
    pub(super) unsafe fn start(
        &self,
        number: Number,
        collectives: &[RawOperation],
        bytes: usize,
        bounce: Option<Bounce>,
    ) -> Result<Option<Number>, Failed> {
        if self.pending.load(Ordering::Acquire) >= REQUESTS_MAX {
            self.communicator.check().map_err(|error| failed(&error))?;
            return Ok(None);
        }
        // SAFETY: The caller has promised what `post` demands.
        let posted = unsafe { self.communicator.post(collectives, Mover::Caller) };
        let posted = posted.map_err(|error| failed(&error))?;
        let pending = Arc::clone(&self.pending);
        pending.fetch_add(1, Ordering::AcqRel);
        let failed = Mutex::default();
        let request = CollRequest { comm: number, posted, bytes, bounce, failed, pending };
        Ok(Some(REQUESTS.put(Arc::new(request))))
    }
}

/// Registers memory with a comm. Returns the registration.
pub(super) fn register(comm: *mut c_void, first: usize, len: usize) -> Result<Number, Failed> {
    let (number, _) = CollComm::find("regMr", comm)?;
    if first.checked_add(len).is_none() {
        return Err(misused(format_args!("regMr of {len} bytes at {first:#x}")));
    }
    Ok(REGISTRATIONS.put(Arc::new(Registered { comm: number, first, len })))
}

/// Ends a registration with a comm.
pub(super) fn deregister(comm: *mut c_void, mhandle: *mut c_void) -> Outcome {
    let (comm, _) = CollComm::find("deregMr", comm)?;
    let number = Number::from_ptr(mhandle);
    if REGISTRATIONS.get(number).is_none_or(|registered| registered.comm != comm) {
        return Err(misused(format_args!("deregMr: {mhandle:p} is no registration of this comm")));
    }
    REGISTRATIONS.remove(number);
    Ok(())
}

/// Checks that memory lies within a registration with a comm. `function` and `what` name it for the log.
pub(super) fn check_registered(
    (function, what): (&str, &str),
    comm: Number,
    mhandle: *mut c_void,
    first: *const c_void,
    len: usize,
) -> Outcome {
    if len == 0 {
        return Ok(());
    }
    let registered = REGISTRATIONS.get(Number::from_ptr(mhandle));
    let registered = registered.filter(|registered| registered.comm == comm).ok_or_else(|| {
        misused(format_args!("{function}: {what}: {mhandle:p} is no registration with this comm"))
    })?;
    let before = first.addr().checked_sub(registered.first);
    let is_within =
        before.and_then(|before| before.checked_add(len)).is_some_and(|end| end <= registered.len);
    match is_within {
        true => Ok(()),
        false => Err(misused(format_args!(
            "{function}: {what}: {len} bytes at {first:p} are not within the registered {} bytes at \
             {:#x}",
            registered.len, registered.first
        ))),
    }
}

/// Moves a request. Returns the length of its output if it is done.
pub(super) fn test(request: *mut c_void) -> Result<Option<usize>, Failed> {
    let number = Number::from_ptr(request);
    let found = REQUESTS.get(number).ok_or_else(|| {
        misused(format_args!("test: {request:p} is no request that is in progress"))
    })?;
    if let Some(code) = *found.failed() {
        return Err(Failed(code));
    }
    match found.posted.test() {
        None => Ok(None),
        Some(Ok(())) => {
            REQUESTS.remove(number);
            found.pending.fetch_sub(1, Ordering::AcqRel);
            if let Some(bounce) = &found.bounce {
                // SAFETY: The collective is done, and NCCL leaves the memory alone until this test.
                unsafe { bounce.scatter() };
            }
            Ok(Some(found.bytes))
        }
        Some(Err(error)) => {
            let failed = failed(&error);
            found.pending.fetch_sub(1, Ordering::AcqRel);
            *found.failed() = Some(failed.0);
            Err(failed)
        }
    }
}

impl CollRequest {
    fn failed(&self) -> MutexGuard<'_, Option<Code>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
